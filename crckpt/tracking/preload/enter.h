/* Have CRIU enter the mount namespace of a tree, and keep the root directory of the host (enter.c). */
#pragma once

#include <fcntl.h>

/* `pid` is the tree's root as CRIU names it: CRIU is to enter its mount namespace. Empty: none. */
void prepare_to_enter(const char *pid);

/* Open a file of the tree's mounts into `number`, or set that to -1 and errno. Returns 0 for a file of the host. */
int open_inside(int directory, const char *path, int flags, int is_own, int *number);

/* Whether `open_inside` needs to know if the file is CRIU's own (`is_own`). */
int is_mount_table(const char *path);
