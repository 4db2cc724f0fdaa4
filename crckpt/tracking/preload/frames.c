/*
 * Find written pages that have no soft-dirty bit.
 *
 * A page's content can change without a bit: mremap moves whole page tables (mm/mremap.c, move_normal_pmd); reading
 * memory that was given back maps the huge zero page, which has no bit; and pages lose their bit when the kernel merges
 * them (mm/ksm.c, replace_page) or a probe replaces them (uprobes). CRIU would take the old page from the dump before.
 * In each of these cases the page is in another frame. So a page counts as clean only if it has no bit, and is in the
 * same frame as at the last reset. A page that the kernel moved, or swapped out or in, counts as written, too, which
 * costs bytes.
 *
 * A page can also be written in place without a bit. New memory makes the map that it joins dirty as a whole; mprotect
 * makes pages of such a map writable without the fault that would set their bits (Linux 6.0, mm/mprotect.c,
 * can_change_pte_writable); and when mprotect joins that map with another, it is no longer dirty (until "mm: propagate
 * VM_SOFTDIRTY on merge"). So on such a kernel the page's map must be unchanged, too: a map that has joined another, or
 * was cut, counts as written. A change that was undone cannot be seen. CRIU itself makes maps readable before it opens a
 * page map (criu/mem.c), which can join them: so they are compared as they were when it read smaps, and need only have
 * the same borders later.
 *
 * The frames and maps of a tree are kept in a file while it is tracked, 8 bytes a page and 16 a map: what CRIU reads of
 * page maps in the freeze, before it resets the bits. After a failed dump the next one is full, and needs none.
 */
#include "dump_library.h"

#define WHERE ((3ull << 62) | (ENTRY_SOFT_DIRTY - 1))

/* The header of the entries of consecutive pages, and, with OF_MAPS, of the maps of a process. */
struct run {
    uint64_t pid, first, count;
};
#define OF_MAPS (1ull << 63)

/* The low bits of `end` are the permissions. */
struct map {
    uint64_t start, end;
};

static struct bytes before;
static size_t looked_at;
static int now = -1, is_wanted, are_maps_compared;

/* The maps of the process whose smaps was read last. */
static struct bytes maps_seen;
static int seen_of;

void prepare_frames(const char *path, int compares_maps)
{
    is_wanted = *path != 0;
    are_maps_compared = compares_maps;
    now = is_wanted ? syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_APPEND | O_CLOEXEC, 0) : -1;
    if (now >= 0 && !read_all(now, &before))
        before.length = 0;
}

int are_frames_wanted(void)
{
    return is_wanted;
}

/*
 * The run with this page. Pages are asked for mostly in order: search from the last run on, then from the first. `until`
 * becomes the page at which to search again: after this run, or at the next one.
 */
static const struct run *find_run(uint64_t pid, uint64_t page, uint64_t *until)
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
    /* Not earlier: a shell that starts CRIU may have loaded the library, too. */
    if (!has_begun++)
        syscall(SYS_ftruncate, now, 0l);
    if (!write_all(now, &run, sizeof run) || !write_all(now, entries, count * sizeof *entries)) {
        /* Later runs would be read as the rest of this one: keep none. */
        syscall(SYS_ftruncate, now, 0l);
        syscall(SYS_close, now);
        now = -1;
    }
}

/* Read this list of maps, if maps are compared. */
static void read_maps(int directory, const char *list, struct bytes *maps)
{
    static struct bytes text;
    struct line line;
    const char *at = are_maps_compared ? read_text(open_to_read(directory, list), &text) : NULL;
    maps->length = 0;
    while (at && next_map(&at, &line)) {
        struct map map = {line.start, line.end};
        for (int bit = 0; bit < 4; bit++)
            map.end |= (uint64_t)(line.rights[bit] != '-' && line.rights[bit] != 'p') << bit;
        if (!append(maps, &map, sizeof map))
            break;
    }
}

void record_maps(int pid, int directory)
{
    read_maps(directory, "maps", &maps_seen);
    seen_of = pid;
}

/* Append the maps that are among `count` others, with the same permissions or, with `borders`, any. */
static void add_common(const struct bytes *maps, const struct map *other, size_t count, int borders, struct bytes *into)
{
    const struct map *map = (const void *)maps->at, *end = map + maps->length / sizeof *map, *last = other + count;
    while (map < end && other < last)
        if (map->start == other->start && !((map->end ^ other->end) >> (borders ? PAGE_SHIFT : 0))) {
            if (!append(into, map, sizeof *map))
                return;
            map++, other++;
        } else if (map->start < other->start)
            map++;
        else
            other++;
}

void keep_maps(int pid, int directory, const char *list, struct bytes *unchanged)
{
    static const struct map all = {0, ~0ull};
    static struct bytes here, same;
    uint64_t until;
    unchanged->length = same.length = 0;
    read_maps(directory, list, &here);
    if (!are_maps_compared) {
        append(unchanged, &all, sizeof all);
        return;
    }
    const struct bytes *maps = seen_of == pid ? &maps_seen : &here;
    const struct run *run = find_run(OF_MAPS | pid, 0, &until);
    if (run)
        add_common(maps, (const void *)(run + 1), run->count * sizeof until / sizeof(struct map), 0, &same);
    add_common(&same, (const void *)here.at, here.length / sizeof(struct map), 1, unchanged);
    if (now >= 0 && maps->length)
        keep(OF_MAPS | pid, 0, (const uint64_t *)maps->at, maps->length / sizeof until);
}

size_t mark_moved(int pid, const struct bytes *unchanged, uint64_t first, uint64_t *entries, size_t count)
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
            run = find_run(pid, page, &until);
        /* Without the right to see frames, all are 0: then every page counts as moved. */
        if (map == last || map->start >> PAGE_SHIFT > page || !run || !(where & (ENTRY_SOFT_DIRTY - 1)) ||
            (((const uint64_t *)(run + 1))[page - run->first] & WHERE) != where) {
            entries[i] |= ENTRY_SOFT_DIRTY;
            moved++;
        }
    }
    return moved;
}
