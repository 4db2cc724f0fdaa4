/* Which system calls can be made again after EINTR, and where registers hold a call. */
#ifdef __x86_64__
#define _GNU_SOURCE
#include "calls.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * Calls that have done nothing when they return EINTR: they can be made again. `only` are the low bits of the first
 * argument for which that is so, 0 for any. SOCKET: only if it is a socket, which returns EINTR if it has a timeout
 * (SO_RCVTIMEO, SO_SNDTIMEO) and nothing was read or sent. Other files are left out: a FUSE server may have done its
 * part, and so may close(2).
 */
#define SOCKET -1
static const struct again {
    short number, number_32, only;
} again[] = {
    /* Events stay in the set until they are returned. */
    {232, 256, 0},      /* epoll_wait */
    {281, 319, 0},      /* epoll_pwait */
    {441, 441, 0},      /* epoll_pwait2 */
    /* All operations are done, or none. */
    {65, -1, 0},        /* semop */
    {220, 420, 0},      /* semtimedop */
    {-1, 117, 1},       /* ipc: semop */
    {-1, 117, 4},       /* ipc: semtimedop */
    /* It returns a signal that it took. */
    {128, 177, 0},      /* rt_sigtimedwait */
    {-1, 421, 0},       /* rt_sigtimedwait_time64 */
    /* It returns the count of events that it took. */
    {208, 247, 0},      /* io_getevents */
    {333, 385, 0},      /* io_pgetevents */
    {-1, 416, 0},       /* io_pgetevents_time64 */
    /* They return the count of what was read or sent. */
    {0, 3, SOCKET},     /* read */
    {19, 145, SOCKET},  /* readv */
    {45, 371, SOCKET},  /* recvfrom */
    {47, 372, SOCKET},  /* recvmsg */
    {299, 337, SOCKET}, /* recvmmsg */
    {-1, 417, SOCKET},  /* recvmmsg_time64 */
    {1, 4, SOCKET},     /* write */
    {20, 146, SOCKET},  /* writev */
    {44, 369, SOCKET},  /* sendto */
    {46, 370, SOCKET},  /* sendmsg */
    {307, 345, SOCKET}, /* sendmmsg */
    {40, 187, SOCKET},  /* sendfile */
    {-1, 239, SOCKET},  /* sendfile64 */
    {43, -1, SOCKET},   /* accept */
    {288, 364, SOCKET}, /* accept4 */
    /* It waits for the connection that it began. Over TCP it then times out with another errno. */
    {42, 362, SOCKET},  /* connect */
    /* The same by socketcall. */
    {-1, 102, 3},       /* socketcall: connect */
    {-1, 102, 5},       /* socketcall: accept */
    {-1, 102, 9},       /* socketcall: send */
    {-1, 102, 10},      /* socketcall: recv */
    {-1, 102, 11},      /* socketcall: sendto */
    {-1, 102, 12},      /* socketcall: recvfrom */
    {-1, 102, 16},      /* socketcall: sendmsg */
    {-1, 102, 17},      /* socketcall: recvmsg */
    {-1, 102, 18},      /* socketcall: accept4 */
    {-1, 102, 19},      /* socketcall: recvmmsg */
    {-1, 102, 20},      /* socketcall: sendmmsg */
};

int read_call(const struct iovec *where, struct call *call)
{
    if (where->iov_len == sizeof(struct registers)) {
        const struct registers *found = where->iov_base;
        /* The kernel's own numbers of calls are 32 bits; `first` is rdi. */
        *call = (struct call){0, (int)found->orig_ax, (int)found->ax, found->ip, found->sp, found->after[3]};
        return 1;
    }
    if (where->iov_len == sizeof(struct registers_32)) {
        const struct registers_32 *found = where->iov_base;
        *call = (struct call){1, (int)found->orig_ax, (int)found->ax, found->ip, found->sp, found->bx};
        return 1;
    }
    return 0;
}

void write_call(struct iovec *where, const struct call *call, long ip, long result)
{
    if (call->is_compat) {
        struct registers_32 *registers = where->iov_base;
        registers->ip = ip;
        registers->ax = result;
        registers->orig_ax = call->number;
    } else {
        struct registers *registers = where->iov_base;
        registers->ip = ip;
        registers->ax = result;
        registers->orig_ax = call->number;
    }
}

const char *proc_path(char into[64], int tid, const char *name, long number)
{
    char digits[24], *at = into;
    const char *const parts[] = {"/proc/", NULL, name, NULL};
    const long numbers[] = {0, tid, 0, number};
    for (int part = 0; part < (number < 0 ? 3 : 4); part++) {
        int count = 0;
        for (const char *text = parts[part]; text && *text;)
            *at++ = *text++;
        if (parts[part])
            continue;
        long left = numbers[part];
        do
            digits[count++] = '0' + left % 10;
        while (left /= 10);
        while (count)
            *at++ = digits[--count];
    }
    *at = 0;
    return into;
}

static int is_socket(int tid, long number)
{
    char path[64];
    struct stat status;
    int before = errno;
    int is_there = syscall(SYS_newfstatat, AT_FDCWD, proc_path(path, tid, "/fd/", number & INT32_MAX), &status, 0) == 0;
    errno = before;
    return is_there && S_ISSOCK(status.st_mode);
}

int is_made_again(int tid, const struct call *call)
{
    for (const struct again *one = again; one < again + sizeof again / sizeof *again; one++) {
        if (call->number != (call->is_compat ? one->number_32 : one->number))
            continue;
        if (one->only == SOCKET ? is_socket(tid, call->first) : !one->only || (call->first & 0xffff) == one->only)
            return 1;
    }
    return 0;
}

int is_interrupted(const struct call *call)
{
    return call->number >= 0 && (call->result == -EINTR || call->result == -ERESTARTSYS ||
                                 call->result == -ERESTARTNOINTR || call->result == -ERESTARTNOHAND ||
                                 call->result == -ERESTART_RESTARTBLOCK);
}
#endif
