/* A buffer that grows, filled from files and written to them, and text in it, without a libc. */
#pragma once

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE_SHIFT 12

struct bytes {
    char *at;
    size_t length, room;
};

static inline int reserve(struct bytes *bytes, size_t more)
{
    if (bytes->room - bytes->length >= more)
        return 1;
    size_t room = 2 * (bytes->room + more);
    long at = bytes->at ? syscall(SYS_mremap, bytes->at, bytes->room, room, MREMAP_MAYMOVE)
                        : syscall(SYS_mmap, NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0l);
    if (at == -1)
        return 0;
    bytes->at = (char *)at;
    bytes->room = room;
    return 1;
}

static inline int append(struct bytes *bytes, const char *from, const char *to)
{
    if (!reserve(bytes, to - from))
        return 0;
    /* In a variable: as far as the compiler knows, a write through a char pointer may change the length. */
    char *at = bytes->at + bytes->length;
    bytes->length += to - from;
    while (from < to)
        *at++ = *from++;
    return 1;
}

static inline void release(struct bytes *bytes)
{
    if (bytes->at)
        syscall(SYS_munmap, bytes->at, bytes->room);
}

/* Read a file to its end. Whether all of it could be read. */
static inline int read_all(int number, struct bytes *into)
{
    ssize_t found;
    do {
        if (!reserve(into, 1 << 16))
            return 0;
        found = syscall(SYS_read, number, into->at + into->length, into->room - into->length);
        into->length += found > 0 ? found : 0;
    } while (found > 0 || (found < 0 && errno == EINTR));
    return found == 0;
}

static inline int write_all(int number, const char *from, size_t length)
{
    ssize_t done = 0;
    for (; length && done >= 0; from += done, length -= done)
        done = syscall(SYS_write, number, from, length);
    return !length;
}

/*
 * The index of the first of `count` records, in the order of their addresses, that ends after this page. Each record has
 * so many `words`, of which the second is its end, without its bits below a page.
 */
static inline size_t first_after(const void *records, size_t words, size_t count, uint64_t page)
{
    const uint64_t *ends = (const uint64_t *)records + 1;
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ends[middle * words] >> PAGE_SHIFT <= page)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static inline const char *next_line(const char *line, const char *end)
{
    while (line < end && *line++ != '\n')
        ;
    return line;
}

/* Read a hexadecimal number, and move past it. A character that is no digit must follow it. */
static inline uint64_t parse_hex(const char **text)
{
    uint64_t value = 0;
    for (;; (*text)++)
        if (**text >= '0' && **text <= '9')
            value = value << 4 | (**text - '0');
        else if (**text >= 'a' && **text <= 'f')
            value = value << 4 | (**text - 'a' + 10);
        else
            return value;
}
