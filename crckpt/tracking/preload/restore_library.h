/* What the parts of the preload library for restores share. */
#pragma once

#include "library.h"

struct place {
    /* The open directory, and the name in it. */
    int directory;
    char last[256];
    /* The user, besides root, who could have replaced the directory; 0: none. */
    uid_t user;
    /* Nobody but root can have put anything there: neither the directory, nor what is in it. */
    int is_roots;
};

/* trusted.c: find the place of a path. Whether that worked; else errno says why. ELOOP: there is a symlink of another user. */
int find_place(int directory, const char *path, int is_last_followed, struct place *place);

/* Evaluate a call that uses the `place` of this path in `directory`, and close that; -1 if there is none. */
#define IN_PLACE(directory_, path, call)                                                        \
    ({                                                                                          \
        struct place place;                                                                     \
        find_place(directory_, path, 0, &place) ? close_and_return(place.directory, call) : -1; \
    })

/* Open a file only for its place (O_PATH), and with these `flags`. */
int open_place(int directory, const char *path, int is_last_followed, int flags);

/* As openat(2). */
int open_trusted(int directory, const char *path, int flags, mode_t mode);

/* ghosts.c: remember that CRIU made this open file: owner and mode of no other are changed. */
void remember_made(int number);

/* holders.c: whether this is CRIU itself, before it makes the processes: what they had has no holder here. */
int is_criu_itself(void);

/* This process makes its files from now on: CRIU itself prepares nothing in it any more. */
void begin_files(void);

/* Become the user whose process this is to be. Whether that is another than now: then call `become_builder`. */
int become_holder(void);

/* Have our own rights again. Keeps errno. */
void become_builder(void);

/* Make a call as that user. Whether that is another than now: then `result` is the call's. */
#define AS_HOLDER(result, call) (become_holder() && ((result) = (call), become_builder(), 1))

static inline int is_forbidden(void)
{
    return errno == EPERM || errno == EACCES;
}

/* transport.c: bind(2) of a socket without a path. */
int bind_transport(int socket, const struct sockaddr *address, socklen_t length);

/* Whether this is the name of CRIU's store of descriptors, and connect(2) of it. */
int is_store(const struct sockaddr *address, socklen_t length);
int connect_store(int socket, const struct sockaddr *address, socklen_t length);
