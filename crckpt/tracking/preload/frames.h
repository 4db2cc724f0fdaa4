/* Which pages lie where they lay when the bits were reset last, in maps that are as they were (frames.c). */
#include "bytes.h"

#include <stddef.h>
#include <stdint.h>

/* An entry of a page map (Documentation/admin-guide/mm/pagemap.rst). */
#define ENTRY_SOFT_DIRTY (1ull << 55)

/*
 * Before any process is frozen. `path` is the file of what was seen last, and of what is seen now; empty: none.
 * `compares_maps`: what lies in a map that is not as it was is dirty.
 */
void prepare_frames(const char *path, int compares_maps);

/* Whether a file was named. */
int are_frames_wanted(void);

/* A process is frozen, and nothing was done to it: `list` is its list of maps, which is open, and is closed. */
void see_maps(int pid, int list);

/* Its page map is opened: those of its maps that are as they were. `list` as before; perhaps CRIU has changed some. */
void keep_maps(int pid, int list, struct bytes *unchanged);

/*
 * Entries, of pages of this process from `first` on, become dirty unless the page is where it was, in one of the
 * `unchanged` maps. How many did.
 */
size_t moved_are_dirty(int pid, const struct bytes *unchanged, uint64_t first, uint64_t *entries, size_t count);
