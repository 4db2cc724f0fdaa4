/*
 * A dump reads the messages that wait in unix sockets without taking them (MSG_PEEK), and so CRIU gets the descriptors in
 * them. Whoever may send to the socket chooses these. The kernel waits for a file system in user space (FUSE) when such a
 * file is closed, at the end of CRIU too, and nothing ends that wait: nobody can free a tree that CRIU holds then. So a
 * process of its own takes the descriptors first, and CRIU gets only a message without such files.
 *
 * The tree is frozen, so the next message stays the same: nobody else takes messages.
 */
#include "dump_library.h"

#include <linux/sched.h>
#include <poll.h>
#include <sys/vfs.h>

#define FUSE 0x65735546
#define OVERLAY 0x794c7630
#define MOST 2048        /* as CRIU (criu/sk-queue.c) */
#define PATIENCE_MS 5000 /* for an answer of the process, which may have to wait for the file system; on a busy machine */

/* Whether a mount is one of ours. A user can mount an overlay of a file system of their own only elsewhere. */
static int is_our_mount(int number)
{
    static struct bytes info, mounts;
    char path[64], line[32];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", number);
    const char *text = read_text(open_to_read(AT_FDCWD, path), &info), *id = text ? strstr(text, "mnt_id:\t") : NULL;
    const char *all = id ? read_text(open_to_read(AT_FDCWD, "/proc/self/mountinfo"), &mounts) : NULL;
    if (!all)
        return 0;
    int length = snprintf(line, sizeof line, "\n%d ", atoi(id + strlen("mnt_id:\t")));
    return !strncmp(all, line + 1, length - 1) || strstr(all, line);
}

static int may_wait(int number)
{
    struct statfs found;
    if (syscall(SYS_fstatfs, number, &found))
        return 1;
    return found.f_type == FUSE || (found.f_type == OVERLAY && !is_our_mount(number));
}

/* Receive a message in this process. Whether its files can be closed at once. */
static int is_harmless(int socket, struct msghdr message, int flags)
{
    char control[MOST] __attribute__((aligned(8)));
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (syscall(SYS_recvmsg, socket, &message, flags) < 0)
        return 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t each = 0; each < count; each++) {
            int number;
            memcpy(&number, CMSG_DATA(part) + each * sizeof number, sizeof number);
            if (may_wait(number))
                return 0;
        }
    }
    return !(message.msg_flags & MSG_CTRUNC);
}

/* The process keeps nothing open but these: it may never end. */
static void close_all_but(int one, int other)
{
    unsigned low = one < other ? one : other, high = one < other ? other : one;
    syscall(SYS_close_range, high + 1, ~0u, 0);
    if (high > low + 1)
        syscall(SYS_close_range, low + 1, high - 1, 0);
    if (low)
        syscall(SYS_close_range, 0u, low - 1, 0);
}

/* Whether a process of its own says so in time. Nobody waits for its end. */
static int try_message(int socket, const struct msghdr *message, int flags)
{
    int ends[2], offset = -1;
    socklen_t length = sizeof offset;
    char answer = 0;
    if (syscall(SYS_pipe2, ends, O_CLOEXEC))
        return 0;
    /* A look moves the place of the next one. */
    int is_moved = !syscall(SYS_getsockopt, socket, SOL_SOCKET, SO_PEEK_OFF, &offset, &length) && offset >= 0;
    /* Not a child of CRIU, which waits for all its children and for the processes of the tree alike. */
    long child = syscall(SYS_clone, (long)CLONE_PARENT, 0l, 0l, 0l, 0l);
    if (child == 0) {
        close_all_but(socket, ends[1]);
        answer = is_harmless(socket, *message, flags);
        syscall(SYS_write, ends[1], &answer, 1l);
        syscall(SYS_exit_group, 0l);
    }
    syscall(SYS_close, ends[1]);
    struct pollfd waiting = {.fd = ends[0], .events = POLLIN};
    if (child < 0 || poll(&waiting, 1, PATIENCE_MS) != 1 || syscall(SYS_read, ends[0], &answer, 1l) != 1)
        answer = 0;
    syscall(SYS_close, ends[0]);
    if (is_moved && syscall(SYS_setsockopt, socket, SOL_SOCKET, SO_PEEK_OFF, &offset, length))
        answer = 0;
    return answer;
}

VISIBLE ssize_t recvmsg(int socket, struct msghdr *message, int flags)
{
    struct msghdr without = {0};
    if (flags & MSG_PEEK && message->msg_control) {
        if (syscall(SYS_recvmsg, socket, &without, flags) < 0)
            return -1;
        /* Something could not be received: descriptors, or the sender's credentials. */
        if (without.msg_flags & MSG_CTRUNC && !try_message(socket, message, flags)) {
            dprintf(2, "crckpt's preload: a message that waits in a unix socket has a file of a file system in user space\n");
            errno = EREMOTEIO; /* the kernel has no such answer here, and CRIU logs it */
            return -1;
        }
    }
    return syscall(SYS_recvmsg, socket, message, flags);
}
