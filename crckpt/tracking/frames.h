/* Which pages lie where they lay when the bits were reset last, in maps that are as they were (frames.c). */
#include "bytes.h"

#include <stddef.h>
#include <stdint.h>

/* An entry of a page map (Documentation/admin-guide/mm/pagemap.rst). */
#define ENTRY_SOFT_DIRTY (1ull << 55)

/* Before any process is frozen. `path` is the file of what was seen last, and of what is seen now; empty: none. */
void prepare_frames(const char *path);

/* Whether a file was named. */
int are_frames_wanted(void);

/* Of a process that is frozen: those of its `maps`, a list that is open and is closed, that are as they were. */
void keep_maps(int pid, int maps, struct bytes *unchanged);

/*
 * Entries, of pages of this process from `first` on, become dirty unless the page is where it was, in one of the
 * `unchanged` maps. How many did.
 */
size_t moved_are_dirty(int pid, const struct bytes *unchanged, uint64_t first, uint64_t *entries, size_t count);
