/* Which pages lie where they lay when the bits were reset last (frames.c). */
#include <stddef.h>
#include <stdint.h>

/* An entry of a page map (Documentation/admin-guide/mm/pagemap.rst). */
#define ENTRY_SOFT_DIRTY (1ull << 55)

/* Before any process is frozen. `path` is the file of what was seen last, and of what is seen now; empty: none. */
void prepare_frames(const char *path);

/* Whether a file was named. */
int are_frames_wanted(void);

/* Entries, of pages of this process from `first` on, become dirty unless the page is where it was. How many did. */
size_t moved_are_dirty(int pid, uint64_t first, uint64_t *entries, size_t count);
