/* Paths that lead where root, or nobody else than the user of a directory, has them lead (trusted.c). */
#pragma once

#include <sys/types.h>

struct place {
    /* The directory, opened, and the name in it. */
    int directory;
    char last[256];
    /* Who could have put another directory in the place of this one: root only, or this user. */
    uid_t user;
};

/* Whether the place could be found; if not, errno says why. ELOOP: by a symlink of somebody who is not to be followed. */
int found_place(int directory, const char *path, int is_last_followed, struct place *place);

/* As openat(2). */
int opened_by_trusted(int directory, const char *path, int flags, mode_t mode);
