/* CRIU in the mount namespace of a tree, with the root directory of the host. */
#pragma once

#include <fcntl.h>

/* The PID of the tree's root, as CRIU names it, or empty: whose mount namespace CRIU is to enter. */
void prepare_to_enter(const char *pid);

/* Whether this file is opened here and now; it is then in `number`, or -1 and errno say why not. */
int opened_inside(int directory, const char *path, int flags, int is_own, int *number);

/* Whether to ask for `is_own` before that. */
int is_mount_table(const char *path);
