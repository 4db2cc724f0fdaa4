/* Find pages that are not where they were when the bits were last reset, or whose map has changed (frames.c). */
#include "bytes.h"

#include <stddef.h>
#include <stdint.h>

/* An entry of a page map (Documentation/admin-guide/mm/pagemap.rst). */
#define ENTRY_SOFT_DIRTY (1ull << 55)

/*
 * Call it before any process is frozen. `path` is the file with the frames and maps of the last reset, which are
 * replaced by those of this one; empty: none. `compares_maps`: every page of a map that has changed is dirty.
 */
void prepare_frames(const char *path, int compares_maps);

/* Whether a file was named. */
int are_frames_wanted(void);

/* Record the maps of a process that is frozen and otherwise unchanged. `list` is its open list of maps, which is closed. */
void record_maps(int pid, int list);

/* Find its maps that are unchanged since the last reset. `list` as before, but CRIU may have changed some maps. */
void keep_maps(int pid, int list, struct bytes *unchanged);

/*
 * Mark entries as dirty, of pages of this process from `first` on, unless the page is where it was and in one of the
 * `unchanged` maps. Returns how many were marked.
 */
size_t mark_moved(int pid, const struct bytes *unchanged, uint64_t first, uint64_t *entries, size_t count);
