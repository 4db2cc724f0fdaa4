/*
 * CRIU's side of a hold (hold.py): for the action script (hold.c), and for the preload library (tracking/preload/gate.c).
 *
 * `alive` is a pipe. Each byte in it is a sign of life of crckpt, and says for how many seconds it is valid; end of file
 * means that crckpt has answered, or died. The answer is a name: either side renames `undecided`, crckpt to `commit` and
 * this side to `abort`. The kernel lets one of them win, also where a disk is full.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLICES_A_SECOND 10

enum answer { ABORTED, COMMITTED, UNANSWERED };

/* Open it: access(2) would check the real user, and CRIU may run as another user with capabilities. */
static int is_there(int hold, const char *name)
{
    long found = syscall(SYS_openat, hold, name, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0l);
    if (found < 0)
        return 0;
    syscall(SYS_close, found);
    return 1;
}

/* Wait for the end of `alive`. Returns 0 if no sign of life came in time. */
static int wait_for_end(int alive)
{
    unsigned char beats[64];
    long left = 0;

    for (;;) {
        struct timespec slice = {.tv_nsec = 1000000000 / SLICES_A_SECOND};
        struct pollfd waiting = {.fd = alive, .events = POLLIN};
        /* Count slices and read no clock: crckpt may have been stopped together with this process. */
        long ready = syscall(SYS_ppoll, &waiting, 1l, &slice, 0l, 0l);
        long length = syscall(SYS_read, alive, beats, sizeof beats);
        if (length == 0)
            return 1;
        if (length > 0)
            left = (long)beats[length - 1] * SLICES_A_SECOND;
        else if (ready == 0 && left-- <= 0)
            return 0;
    }
}

/* The directory `hold` is -1 if there is none: that aborts. */
static enum answer wait_for_answer(int hold)
{
    /* Opened for writing, too, so that it does not wait for a reader, which may have died. */
    long reached = syscall(SYS_openat, hold, "reached", O_RDWR | O_NONBLOCK | O_CLOEXEC, 0l);
    long alive = syscall(SYS_openat, hold, "alive", O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0l);
    int is_late = 0, is_decided = 0;

    if (reached >= 0 && alive >= 0) {
        syscall(SYS_write, reached, ".", 1l);
        is_late = !is_there(hold, "commit") && !is_there(hold, "abort") && !wait_for_end(alive);
        /* If the disk takes no new name, wait for the answer once more: the tree matters more than the record. */
        for (int tries = 0; !is_decided && tries < 2; tries++) {
            syscall(SYS_renameat2, hold, "undecided", hold, "abort", 0l);
            is_decided = is_there(hold, "commit") || is_there(hold, "abort");
            if (!is_decided && !tries)
                wait_for_end(alive);
        }
    }
    syscall(SYS_close, alive);
    syscall(SYS_close, reached);
    return is_there(hold, "commit") ? COMMITTED : is_late ? UNANSWERED : ABORTED;
}
