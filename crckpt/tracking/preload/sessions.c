/*
 * The session of a tree that a restore put into a new PID namespace on the user's terminal: the user's shell leads it from
 * outside, so it has no number in there. CRIU refuses that (criu/cr-dump.c: "A session leader is outside of its pid
 * namespace"), although a restore replaces the number of a shell's session anyway (--shell-job). So say that the first
 * process of the namespace leads it.
 *
 * What CRIU runs in a process writes its ids into memory that both share, then sends a message
 * (criu/pie/parasite.c, dump_misc): 64 bits of the program break, then PID, session, group and umask of 32 bits each.
 */
#include "library.h"

#define LEADER 1
#define MOST_UMASK 0777

/* compel/include/infect-priv.h: MEMFD_FNAME */
static const char shared[] = "/memfd:CRIUMFD";

static void name_session(uint32_t *from, const uint32_t *to, uint32_t pid, uint32_t group)
{
    for (uint32_t *ids = from + 2; ids + 4 <= to; ids += 2)
        if (ids[0] == pid && !ids[1] && ids[2] == group && ids[3] <= MOST_UMASK && (ids[-1] || ids[-2]))
            ids[1] = LEADER;
}

static void name_session_of(int pid)
{
    static struct bytes maps;
    struct line map;
    long group = syscall(SYS_getpgid, pid);
    int number = open_to_read(AT_FDCWD, "/proc/self/maps");
    for (const char *at = read_text(number, &maps); at && group >= 0 && next_map(&at, &map);)
        if (starts_with(map.name, shared) && map.rights[0] == 'r' && map.rights[1] == 'w')
            name_session((uint32_t *)map.start, (const uint32_t *)map.end, pid, group);
}

VISIBLE ssize_t recv(int socket, void *into, size_t length, int flags)
{
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    ssize_t found = syscall(SYS_recvfrom, socket, into, length, flags, NULL, NULL);
    int why = errno;
    if (found > 0 && !syscall(SYS_getsockopt, socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.pid > 0 &&
        syscall(SYS_getsid, peer.pid) == 0)
        name_session_of(peer.pid);
    errno = why;
    return found;
}
