/*
 * CRIU's sockets with abstract names: any user of the network namespace can read these names (/proc/net/unix), connect, and
 * send. At a dump CRIU waits on `crtools-pr-...` for its code in a frozen process, and takes whoever connects first: that
 * one would get a descriptor of CRIU's log, and the process stay frozen until CRIU is ended. At a restore processes send
 * each other descriptors by `crtools-fd-...`. So take only what CRIU's own processes send.
 */
#include "library.h"

#include <sys/un.h>
#include <sys/wait.h>

/* As many as a name may have waiting before CRIU's own: those of others are closed. */
#define BACKLOG 4096
/* Room for all descriptors that a message may have (SCM_MAX_FD, 253), and who sent it. */
#define ROOM 2048

int is_name_of_criu(const struct sockaddr *address, socklen_t length, const char *kind)
{
    const struct sockaddr_un *named = (const void *)address;
    const size_t start = offsetof(struct sockaddr_un, sun_path) + 1;
    if (length <= start || named->sun_family != AF_UNIX || named->sun_path[0])
        return 0;
    size_t wanted = strlen(kind);
    return wanted <= MIN(length - start, sizeof named->sun_path - 1) && !memcmp(named->sun_path + 1, kind, wanted);
}

int has_name(int socket, const char *kind)
{
    struct sockaddr_un named;
    socklen_t length = sizeof named;
    int before = errno;
    int is_named = !syscall(SYS_getsockname, socket, &named, &length);
    errno = before;
    return is_named && is_name_of_criu((const void *)&named, length, kind);
}

/* CRIU traces the processes into which it puts code. */
static int is_of_tracee(int connection)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    siginfo_t found;
    if (syscall(SYS_getsockopt, connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) || peer.pid <= 0)
        return 0;
    return !syscall(SYS_waitid, P_PID, peer.pid, &found, WNOHANG | WEXITED | WSTOPPED | WNOWAIT | __WALL, NULL);
}

/* The library for restores has another one. */
__attribute__((weak)) VISIBLE int listen(int socket, int backlog)
{
    return syscall(SYS_listen, socket, has_name(socket, OF_CODE) ? BACKLOG : backlog);
}

VISIBLE int accept(int socket, struct sockaddr *address, socklen_t *length)
{
    int is_checked = has_name(socket, OF_CODE);
    for (;;) {
        int connection = syscall(SYS_accept4, socket, address, length, 0);
        if (connection < 0 || !is_checked || is_of_tracee(connection))
            return connection;
        syscall(SYS_close, connection);
    }
}

/* Whether the message is of our user; closes the descriptors of others. */
static int is_of_us(struct msghdr *message)
{
    int is_ours = 0;
    struct cmsghdr *part;
    for (part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_CREDENTIALS)
            is_ours = ((const struct ucred *)CMSG_DATA(part))->uid == (uid_t)syscall(SYS_geteuid);
    for (part = CMSG_FIRSTHDR(message); part && !is_ours; part = CMSG_NXTHDR(message, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS)
            for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= part->cmsg_len; i++)
                syscall(SYS_close, ((const int *)CMSG_DATA(part))[i]);
    return is_ours;
}

/* Copy the descriptors of `from` into the room of `into`. */
static void copy_descriptors(struct msghdr *into, const struct msghdr *from)
{
    size_t used = 0, room = into->msg_controllen;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(from); part; part = CMSG_NXTHDR((struct msghdr *)from, part)) {
        /* After the last part there need be no room for padding. */
        size_t size = part->cmsg_len, padded = CMSG_SPACE(size - CMSG_LEN(0));
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        if (size > room - used) {
            into->msg_flags |= MSG_CTRUNC;
            break;
        }
        memcpy((char *)into->msg_control + used, part, size);
        used += padded <= room - used ? padded : size;
    }
    into->msg_controllen = used;
}

VISIBLE ssize_t recvmsg(int socket, struct msghdr *message, int flags)
{
    if (!has_name(socket, OF_DESCRIPTORS))
        return syscall(SYS_recvmsg, socket, message, flags);
    for (;;) {
        char control[ROOM] __attribute__((aligned(sizeof(size_t))));
        struct msghdr found = *message;
        found.msg_control = control;
        found.msg_controllen = sizeof control;
        ssize_t length = syscall(SYS_recvmsg, socket, &found, flags);
        if (length < 0)
            return length;
        if (!is_of_us(&found))
            continue;
        message->msg_namelen = found.msg_namelen;
        message->msg_flags = found.msg_flags;
        copy_descriptors(message, &found);
        return length;
    }
}

void ask_who_sends(int socket)
{
    int yes = 1;
    syscall(SYS_setsockopt, socket, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes);
}
