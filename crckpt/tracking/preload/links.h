/*
 * Files that CRIU makes in directories of other users: link_remap.N.NUMBER at a dump, NAME.cr.N.NUMBER.ghost at a restore
 * (names.c).
 */
#pragma once

#include "text.h"

/* Whether CRIU gives its own files such names. */
int is_of_criu(const char *name);

/* Open the directory of the path's `last` part, through no symlink; -1 and errno if there is none. */
int open_parent(int directory, const char *path, const char *last);

/* Close a descriptor, and keep errno. Returns `result`. */
int close_and_return(int number, int result);

/* unlinkat(2). Relative to a root directory that CRIU has open, it removes only what it has made: through no symlink. */
int unlink_in_parent(int from, const char *name, int flags);

/* Remember that CRIU made this open file: owner and mode of no other are changed. */
void remember_made(int number);

/* The path of a descriptor in /proc. */
const char *descriptor_path(int number, char name[32]);
