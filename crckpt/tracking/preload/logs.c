/*
 * CRIU gives its code in a frozen process a descriptor of its log. Another process of the same user can take that from the
 * process (pidfd_getfd), and keep it: it would fill root's disk, whatever its quota. So that code gets a pipe, and what it
 * says comes to the log before CRIU's next line. If the pipe is full, it is lost.
 */
#include "dump_library.h"

#define MOST (1 << 20)

static int log_number = -1, own_log, ends[2];
static long passed;

static int is_log(int number)
{
    struct stat status;
    int flags = syscall(SYS_fcntl, number, F_GETFL, 0l);
    return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && !syscall(SYS_fstat, number, &status) && S_ISREG(status.st_mode);
}

void pass_log_on(int number)
{
    char text[4096];
    long length;
    int before = errno;
    if (log_number < 0 || number != log_number)
        return;
    while (passed < MOST && (length = syscall(SYS_read, ends[0], text, sizeof text)) > 0)
        passed += syscall(SYS_write, own_log, text, length);
    errno = before;
}

__attribute__((destructor)) static void pass_last_on(void)
{
    pass_log_on(log_number);
}

static int find_end(int number)
{
    if (log_number < 0) {
        if (syscall(SYS_pipe2, ends, O_NONBLOCK | O_CLOEXEC))
            return -1;
        own_log = syscall(SYS_fcntl, number, F_DUPFD_CLOEXEC, 0l);
        log_number = number;
    }
    return ends[1];
}

/* CRIU has sockets of this type only for its code. */
static int is_of_code(int socket)
{
    int type = 0, before = errno;
    socklen_t length = sizeof type;
    long result = syscall(SYS_getsockopt, socket, SOL_SOCKET, SO_TYPE, &type, &length);
    errno = before;
    return !result && type == SOCK_SEQPACKET;
}

VISIBLE ssize_t sendmsg(int socket, const struct msghdr *message, int flags)
{
    struct cmsghdr *part = CMSG_FIRSTHDR(message);
    if (!part || part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS || !is_of_code(socket))
        return syscall(SYS_sendmsg, socket, message, flags);
    int *number = (int *)CMSG_DATA(part), log = *number;
    if (!is_log(log))
        return syscall(SYS_sendmsg, socket, message, flags);
    *number = find_end(log);
    ssize_t sent = *number < 0 ? -1 : syscall(SYS_sendmsg, socket, message, flags);
    *number = log;
    return sent;
}
