/* Files that CRIU makes by a path in directories of others: link_remap.N at a dump, NAME.cr.N.ghost at a restore. */
#pragma once

#include "text.h"

/* Whether CRIU calls its own files so. */
int is_of_criu(const char *name);

/* The directory of what `last` is the name of, reached without a symlink; -1 and errno if there is none. */
int opened_parent(int directory, const char *path, const char *last);

/* Close it; errno is as it was. Returns `result`. */
int with_closed(int number, int result);

/* unlinkat(2) of what is not CRIU's, by a path that no directory is given for: as ever (preload.c), or as sockets.c. */
int unlinked_by_name(const char *path, int flags);

/* The path of a descriptor in /proc. */
const char *name_of(int number, char name[32]);
