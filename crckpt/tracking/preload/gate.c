/* The gate: CRIU waits here, with the tree frozen, before it resets what was written. */
#include "dump_library.h"

#include "../../criu/hold.h"

/*
 * CRIU comes to its first scan and reset with all of the tree frozen, in a pre-dump, too, where it runs no script. crckpt
 * looks then for what writes the tree's memory unseen. This is CRIU's end of a hold (criu/hold.h), as its action script
 * is elsewhere. After ECANCELED CRIU fails and lets the tree continue; after EINVAL it would assume a kernel without
 * soft-dirty bits, and abort.
 */
int pass_gate(void)
{
    static int is_let;
    const char *place = variable("CRCKPT_HOLD");
    if (is_let || !*place)
        return 1;
    int hold = syscall(SYS_openat, AT_FDCWD, place, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    enum answer answer = wait_for_answer(hold);
    syscall(SYS_close, hold);
    if (answer == UNANSWERED)
        dprintf(2, "crckpt's preload: no answer while the tree was frozen\n");
    is_let = answer == COMMITTED;
    if (!is_let) {
        dprintf(2, "crckpt's preload: who started this CRIU does not let it reset what was written\n");
        errno = ECANCELED;
    }
    return is_let;
}
