/* The vDSO, which CRIU must always dump in full. */
#include "dump_library.h"

/*
 * Report it as written: CRIU counts no page of a file as written, and asks for all of the vDSO (should_dump_entire_vma).
 * The name of a file begins with a slash.
 */
void find_vdso(int directory, const char *list, struct bytes *regions)
{
    static struct bytes text;
    struct line map;
    for (const char *at = read_text(open_to_read(directory, list), &text); at && next_map(&at, &map);) {
        const struct region one = {map.start, map.end, PRESENT | WRITTEN};
        if (starts_with(map.name, "[vdso]\n"))
            append(regions, &one, sizeof one);
    }
}

static int add_part(struct bytes *into, const struct region *of, uint64_t start, uint64_t end)
{
    const struct region part = {MAX(start, of->start), MIN(end, of->end), of->categories};
    return part.start >= part.end || append(into, &part, sizeof part);
}

/*
 * CRIU asks for every page of the vDSO. It takes pages that are not reported from the dump before, where other memory
 * may be in their place if the program has moved its vDSO since.
 */
int lay_over(struct bytes *regions, const struct bytes *over)
{
    const struct region *one = (const void *)over->at, *end = one + over->length / sizeof *one;
    for (; one < end; one++) {
        struct bytes all = {0}, before = *regions;
        const struct region *first = (const void *)before.at, *last = first + before.length / sizeof *first;
        int is_done = 1;
        for (const struct region *region = first; region < last; region++)
            is_done = is_done && add_part(&all, region, 0, one->start);
        is_done = is_done && add_part(&all, one, 0, ~0ull);
        for (const struct region *region = first; region < last; region++)
            is_done = is_done && add_part(&all, region, one->end, ~0ull);
        *regions = all;
        release(&before);
        if (!is_done)
            return 0;
    }
    return 1;
}
