/*
 * A page can come to hold something else, and have no soft-dirty bit. mremap hangs whole page tables elsewhere as they
 * are (mm/mremap.c, move_normal_pmd); the huge page of zeros has no bit, where somebody reads memory that was given
 * back; and pages lose theirs when the kernel merges them (mm/ksm.c, replace_page), or a probe replaces them
 * (uprobes). CRIU would take what the dump before has at that address. In all of that the page lies in another frame
 * than before. So a page counts as clean only if it has no bit, and is in the frame in which it was at the reset
 * before. A page that the kernel moved by itself, or swapped out or in, counts as written, which costs bytes.
 *
 * The frames of a tree are kept in a file as long as it is followed, 8 bytes a page: what CRIU reads of its page maps
 * in the freeze, before it resets the bits. After a dump that comes to nothing the next is full, and asks for none.
 */
#define _GNU_SOURCE
#include "frames.h"

#include "bytes.h"

#include <fcntl.h>

#define WHERE ((3ull << 62) | (ENTRY_SOFT_DIRTY - 1))

/* What is before the entries of pages that follow each other. */
struct run {
    uint64_t pid, first, count;
};

static struct bytes before;
static size_t looked_at;
static int now = -1, is_wanted;

void prepare_frames(const char *path)
{
    is_wanted = *path != 0;
    now = is_wanted ? syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_APPEND | O_CLOEXEC, 0) : -1;
    if (now >= 0 && !all_read(now, &before))
        before.length = 0;
}

int are_frames_wanted(void)
{
    return is_wanted;
}

/*
 * The run with this page. They are asked for in the order in which they are: it is looked for from the last one on, and
 * then from the first. `until` becomes the page that it is to be looked for again, after this run or at the next one.
 */
static const struct run *run_with(uint64_t pid, uint64_t page, uint64_t *until)
{
    size_t begin = looked_at, at = begin;
    *until = ~0ull;
    do {
        const struct run *run = (const void *)(before.at + at);
        if (before.length - at < sizeof *run || (before.length - at - sizeof *run) / sizeof page < run->count) {
            at = 0;
            continue;
        }
        if (run->pid == pid && run->first <= page && page - run->first < run->count) {
            looked_at = at;
            *until = run->first + run->count;
            return run;
        }
        if (run->pid == pid && run->first > page && run->first < *until)
            *until = run->first;
        at += sizeof *run + run->count * sizeof page;
    } while (at != begin);
    return NULL;
}

static void keep(int pid, uint64_t first, const uint64_t *entries, size_t count)
{
    static int has_begun;
    const struct run run = {pid, first, count};
    /* Not before: a shell that starts CRIU may have the library, too. */
    if (!has_begun++)
        syscall(SYS_ftruncate, now, 0l);
    if (!written(now, (const char *)&run, sizeof run) ||
        !written(now, (const char *)entries, count * sizeof *entries)) {
        /* What is kept later would be taken for its rest. */
        syscall(SYS_ftruncate, now, 0l);
        syscall(SYS_close, now);
        now = -1;
    }
}

size_t moved_are_dirty(int pid, uint64_t first, uint64_t *entries, size_t count)
{
    const struct run *run = NULL;
    uint64_t until = 0;
    size_t moved = 0;
    if (now >= 0)
        keep(pid, first, entries, count);
    for (size_t i = 0; i < count; i++) {
        uint64_t page = first + i, where = entries[i] & WHERE;
        if (!(where >> 62) || entries[i] & ENTRY_SOFT_DIRTY)
            continue;
        if (page >= until)
            run = run_with(pid, page, &until);
        /* Who may not see frames sees none. */
        if (!run || !(where & (ENTRY_SOFT_DIRTY - 1)) ||
            (((const uint64_t *)(run + 1))[page - run->first] & WHERE) != where) {
            entries[i] |= ENTRY_SOFT_DIRTY;
            moved++;
        }
    }
    return moved;
}
