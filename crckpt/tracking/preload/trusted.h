/* Open paths that only root, or the user who owns the directory, can redirect (trusted.c). */
#pragma once

#include <sys/types.h>

struct place {
    /* The open directory, and the name in it. */
    int directory;
    char last[256];
    /* The user, besides root, who could have replaced the directory; 0: none. */
    uid_t user;
    /* Nobody but root can have put anything there: neither the directory, nor what is in it. */
    int is_roots;
};

/* Find the place of a path. Whether that worked; else errno says why. ELOOP: there is a symlink of another user. */
int find_place(int directory, const char *path, int is_last_followed, struct place *place);

/* As openat(2). */
int open_trusted(int directory, const char *path, int flags, mode_t mode);
