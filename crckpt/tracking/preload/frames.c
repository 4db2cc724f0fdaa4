/*
 * A page can come to hold something else, and have no soft-dirty bit. mremap hangs whole page tables elsewhere as they
 * are (mm/mremap.c, move_normal_pmd); the huge page of zeros has no bit, where somebody reads memory that was given
 * back; and pages lose theirs when the kernel merges them (mm/ksm.c, replace_page), or a probe replaces them
 * (uprobes). CRIU would take what the dump before has at that address. In all of that the page lies in another frame
 * than before. So a page counts as clean only if it has no bit, and is in the frame in which it was at the reset
 * before. A page that the kernel moved by itself, or swapped out or in, counts as written, which costs bytes.
 *
 * And a page can be written where it is, and have no bit: new memory makes the map that it joins dirty as a whole;
 * mprotect makes pages of such a map writable without a fault that would set their bits (Linux 6.0, mm/mprotect.c,
 * can_change_pte_writable); and when that map joins another by mprotect, it is no longer dirty (until "mm: propagate
 * VM_SOFTDIRTY on merge"). So on a kernel that does so the page's map must also be as it was at the reset: a map that
 * has joined another, or was cut, counts as written. One that is again as it was does not: what came between cannot be
 * seen. CRIU itself makes maps readable before it opens a page map (criu/mem.c), which can join them: they are compared
 * as they were before, when it read smaps, and must still have the same borders then.
 *
 * The frames and the maps of a tree are kept in a file as long as it is followed, 8 bytes a page and 16 a map: what
 * CRIU reads of its page maps in the freeze, before it resets the bits. After a dump that comes to nothing the next is
 * full, and asks for none.
 */
#define _GNU_SOURCE
#include "frames.h"

#include "bytes.h"

#include <fcntl.h>

#define WHERE ((3ull << 62) | (ENTRY_SOFT_DIRTY - 1))

/* What is before the entries of pages that follow each other, and before the maps of a process, as OF_MAPS. */
struct run {
    uint64_t pid, first, count;
};
#define OF_MAPS (1ull << 63)

/* Its permissions are in the low bits of its end. */
struct map {
    uint64_t start, end;
};

static struct bytes before;
static size_t looked_at;
static int now = -1, is_wanted, are_maps_compared;

/* Of the process of which smaps was read last. */
static struct bytes maps_seen;
static int seen_of;

void prepare_frames(const char *path, int compares_maps)
{
    is_wanted = *path != 0;
    are_maps_compared = compares_maps;
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

static void keep(uint64_t pid, uint64_t first, const uint64_t *entries, size_t count)
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

static int added_map(struct bytes *maps, const struct map *map)
{
    return added(maps, (const char *)map, (const char *)(map + 1));
}

/* The maps in a list of them, lines of START-END PERMISSIONS ..., if they are wanted and can be read. Closes it. */
static void read_maps(int list, struct bytes *maps)
{
    static struct bytes text;
    text.length = maps->length = 0;
    if (list >= 0 && are_maps_compared && all_read(list, &text)) {
        const char *end = text.at + text.length;
        for (const char *line = text.at; line < end; line = line_after(line, end)) {
            struct map map;
            map.start = address(&line);
            line++;
            map.end = address(&line);
            for (int bit = 0; bit < 4; bit++)
                map.end |= (uint64_t)(line[1 + bit] != '-' && line[1 + bit] != 'p') << bit;
            if (!added_map(maps, &map))
                break;
        }
    }
    if (list >= 0)
        syscall(SYS_close, list);
}

void see_maps(int pid, int list)
{
    read_maps(list, &maps_seen);
    seen_of = pid;
}

/* Adds those maps that are among `count` others, or of which these have at least the `borders`. */
static void add_common(const struct bytes *maps, const struct map *other, size_t count, int borders, struct bytes *into)
{
    const struct map *map = (const void *)maps->at, *end = map + maps->length / sizeof *map, *last = other + count;
    while (map < end && other < last)
        if (map->start == other->start && !((map->end ^ other->end) >> (borders ? PAGE_SHIFT : 0))) {
            if (!added_map(into, map))
                return;
            map++, other++;
        } else if (map->start < other->start)
            map++;
        else
            other++;
}

void keep_maps(int pid, int list, struct bytes *unchanged)
{
    static const struct map all = {0, ~0ull};
    static struct bytes here, same;
    uint64_t until;
    unchanged->length = same.length = 0;
    read_maps(list, &here);
    if (!are_maps_compared) {
        added_map(unchanged, &all);
        return;
    }
    const struct bytes *maps = seen_of == pid ? &maps_seen : &here;
    const struct run *run = run_with(OF_MAPS | pid, 0, &until);
    if (run)
        add_common(maps, (const void *)(run + 1), run->count * sizeof until / sizeof(struct map), 0, &same);
    add_common(&same, (const void *)here.at, here.length / sizeof(struct map), 1, unchanged);
    if (now >= 0 && maps->length)
        keep(OF_MAPS | pid, 0, (const uint64_t *)maps->at, maps->length / sizeof until);
}

size_t moved_are_dirty(int pid, const struct bytes *unchanged, uint64_t first, uint64_t *entries, size_t count)
{
    const struct map *map = (const void *)unchanged->at, *last = map + unchanged->length / sizeof *map;
    const struct run *run = NULL;
    uint64_t until = 0;
    size_t moved = 0;
    map += first_after(map, sizeof *map / sizeof until, last - map, first);
    if (now >= 0)
        keep(pid, first, entries, count);
    for (size_t i = 0; i < count; i++) {
        uint64_t page = first + i, where = entries[i] & WHERE;
        while (map < last && map->end >> PAGE_SHIFT <= page)
            map++;
        if (!(where >> 62) || entries[i] & ENTRY_SOFT_DIRTY)
            continue;
        if (page >= until)
            run = run_with(pid, page, &until);
        /* Who may not see frames sees none. */
        if (map == last || map->start >> PAGE_SHIFT > page || !run || !(where & (ENTRY_SOFT_DIRTY - 1)) ||
            (((const uint64_t *)(run + 1))[page - run->first] & WHERE) != where) {
            entries[i] |= ENTRY_SOFT_DIRTY;
            moved++;
        }
    }
    return moved;
}
