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

static const struct again {
    short number, number_32, only;
} again[] = {
#define AGAIN(name, number, number_32, only) {number, number_32, only},
#include "../../host/syscalls/restarted_calls.h"
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
