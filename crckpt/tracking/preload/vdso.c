/* The vDSO, which CRIU must always dump in full. */
#include "dump_library.h"

#include <sys/syscall.h>
#include <unistd.h>

/* Whether a line of maps, from its permissions on, is that of the vDSO. The name of a file begins with a slash. */
static int is_of_vdso(const char *line, const char *end)
{
    for (int field = 0; field < 4; field++) {
        while (line < end && *line != ' ')
            line++;
        while (line < end && *line == ' ')
            line++;
    }
    const char *wanted = "[vdso]\n";
    while (*wanted && line < end && *line == *wanted)
        line++, wanted++;
    return !*wanted;
}

/*
 * Report it as written: CRIU counts no page of a file as written, and asks for all of the vDSO (should_dump_entire_vma).
 */
void find_vdso(int list, struct bytes *regions)
{
    static struct bytes text;
    text.length = 0;
    if (list >= 0 && read_all(list, &text)) {
        const char *end = text.at + text.length;
        for (const char *line = text.at; line < end; line = next_line(line, end)) {
            struct region one = {.categories = PRESENT | WRITTEN};
            one.start = parse_hex(&line);
            line++;
            one.end = parse_hex(&line);
            if (is_of_vdso(++line, end))
                append(regions, (const char *)&one, (const char *)(&one + 1));
        }
    }
    syscall(SYS_close, list);
}

static int add_part(struct bytes *into, const struct region *of, uint64_t start, uint64_t end)
{
    const struct region part = {MAX(start, of->start), MIN(end, of->end), of->categories};
    return part.start >= part.end || append(into, (const char *)&part, (const char *)(&part + 1));
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
