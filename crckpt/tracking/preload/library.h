/* What both preload libraries share: text, buffers that grow, lines of /proc, and what some of their parts do. */
#pragma once

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))
/* Another name of a function; callers may pass more arguments than it takes. */
#define ALIAS(name, of) VISIBLE extern __typeof__(of) name __attribute__((alias(#of)))
#define MIN(one, other) ((one) < (other) ? (one) : (other))
#define MAX(one, other) ((one) > (other) ? (one) : (other))
#define PAGE_SHIFT 12

static inline int starts_with(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

/* The last part of a path. */
static inline const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The value of a variable of the environment; empty if it is not there. */
static inline const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

/* Whether open(2) with these flags takes a mode. */
static inline int has_mode(int flags)
{
    return (flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) != 0;
}

/* Whether a file is in /proc, and not somewhere else under a name that we know. */
static inline int is_of_proc(int number)
{
    struct statfs there;
    return number >= 0 && syscall(SYS_fstatfs, number, &there) == 0 && there.f_type == PROC_SUPER_MAGIC;
}

static inline int open_to_read(int directory, const char *path)
{
    return syscall(SYS_openat, directory, path, O_RDONLY | O_CLOEXEC, 0);
}

/* Close a descriptor, and keep errno. Returns `result`. */
static inline long close_and_return(int number, long result)
{
    int before = errno;
    syscall(SYS_close, number);
    errno = before;
    return result;
}

static inline long trace(long request, int tid, const void *address, void *data)
{
    return syscall(SYS_ptrace, request, (long)tid, address, data);
}

/* As libc's function, which returns what the system call writes. */
static inline long trace_as_libc(int request, int tid, const void *address, void *data)
{
    long peeked;
    if (request < 1 || request > 3) /* PTRACE_PEEKTEXT, PTRACE_PEEKDATA, PTRACE_PEEKUSR */
        return trace(request, tid, address, data);
    long result = trace(request, tid, address, &peeked);
    if (result >= 0)
        errno = 0;
    return result < 0 ? result : peeked;
}

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

static inline int append(struct bytes *bytes, const void *from, size_t length)
{
    if (!reserve(bytes, length))
        return 0;
    memcpy(bytes->at + bytes->length, from, length);
    bytes->length += length;
    return 1;
}

static inline void release(struct bytes *bytes)
{
    if (bytes->at)
        syscall(SYS_munmap, bytes->at, bytes->room);
}

/* Read a file to its end, and write a zero after it. Whether all of it could be read. */
static inline int read_all(int number, struct bytes *into)
{
    ssize_t found;
    do {
        if (!reserve(into, 1 << 16))
            return 0;
        found = syscall(SYS_read, number, into->at + into->length, into->room - into->length);
        into->length += found > 0 ? found : 0;
    } while (found > 0 || (found < 0 && errno == EINTR));
    into->at[into->length] = 0;
    return found == 0;
}

/* The text of an open file, which is closed; NULL if it could not be read. Keeps errno. */
static inline const char *read_text(int number, struct bytes *into)
{
    int before = errno;
    into->length = 0;
    int is_read = number >= 0 && read_all(number, into);
    if (number >= 0)
        syscall(SYS_close, number);
    errno = before;
    return is_read ? into->at : NULL;
}

static inline int write_all(int number, const void *from, size_t length)
{
    ssize_t done = 0;
    for (const char *at = from; length && done >= 0; at += done, length -= done)
        done = syscall(SYS_write, number, at, length);
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

static inline const char *next_line(const char *line)
{
    line += strcspn(line, "\n");
    return *line ? line + 1 : line;
}

/* A line of /proc/PID/maps. */
struct line {
    uint64_t start, end;
    const char *rights, *name;
};

/* Read the next line, and move past it. Whether there is one. */
static inline int next_map(const char **text, struct line *map)
{
    const char *at = *text;
    if (!*at)
        return 0;
    map->start = parse_hex(&at);
    at++;
    map->end = parse_hex(&at);
    map->rights = map->name = at + 1;
    for (int field = 0; field < 4; field++) {
        map->name += strcspn(map->name, " \n");
        map->name += strspn(map->name, " ");
    }
    *text = next_line(map->name);
    return 1;
}

/* preload.c or ghosts.c: openat(2). */
int open_file(int directory, const char *path, int flags, mode_t mode);

/* links.c: whether CRIU gives its own files such names. It makes them in directories of other users. */
int is_of_criu(const char *name);

/* Open the directory of the path's `last` part, through no symlink; -1 and errno if there is none. */
int open_parent(int directory, const char *path, const char *last);

/* unlinkat(2). Relative to a root directory that CRIU has open, it removes only what it has made: through no symlink. */
int unlink_in_parent(int from, const char *name, int flags);

/* Whether this is an abstract name of a unix socket that begins so. */
static inline int is_abstract(const struct sockaddr *address, socklen_t length, const char *start)
{
    const struct sockaddr_un *named = (const void *)address;
    const size_t first = offsetof(struct sockaddr_un, sun_path) + 1, wanted = strlen(start);
    return address && length >= first + wanted && length <= sizeof *named && named->sun_family == AF_UNIX &&
           !named->sun_path[0] && !memcmp(named->sun_path + 1, start, wanted);
}

/* terminals.c: write(2), which the kernel passes on as it is if the file is a terminal. */
ssize_t write_unread(int number, const void *from, size_t length);
