/*
 * The session of a tree that a restore put into a new PID namespace on the user's terminal: the user's shell leads it from
 * outside, so it has no number in there. CRIU refuses that (criu/cr-dump.c: "A session leader is outside of its pid
 * namespace"), although a restore replaces the number of a shell's session anyway (--shell-job). So say that the first
 * process of the namespace leads it.
 *
 * What CRIU runs in a process writes its ids into memory that both share, then sends a message
 * (criu/pie/parasite.c, dump_misc): 64 bits of the program break, then PID, session, group and umask of 32 bits each.
 */
#define _GNU_SOURCE
#include "bytes.h"
#include "text.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))
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
    struct bytes maps = {0};
    long group = syscall(SYS_getpgid, pid);
    int number = syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    if (group >= 0 && read_all(number, &maps)) {
        const char *end = maps.at + maps.length;
        for (const char *line = maps.at; line < end; line = next_line(line, end)) {
            const char *at = line, *name = line;
            uint64_t from = parse_hex(&at);
            uint64_t to = (at++, parse_hex(&at));
            while (name < end && *name != '/' && *name != '\n')
                name++;
            if (end - name > (long)sizeof shared && starts_with(name, shared) && at[1] == 'r' && at[2] == 'w')
                name_session((uint32_t *)from, (const uint32_t *)to, pid, group);
        }
    }
    syscall(SYS_close, number);
    release(&maps);
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
