/* Which system calls can be made again after EINTR, and where registers hold a call. */
#ifdef __x86_64__
#include "calls.h"

static const struct {
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

static int is_socket(int tid, long number)
{
    char path[64];
    struct stat status;
    int before = errno;
    snprintf(path, sizeof path, "/proc/%d/fd/%ld", tid, number & INT32_MAX);
    int is_there = syscall(SYS_newfstatat, AT_FDCWD, path, &status, 0) == 0;
    errno = before;
    return is_there && S_ISSOCK(status.st_mode);
}

int is_made_again(int tid, const struct call *call)
{
    for (size_t i = 0; i < sizeof again / sizeof *again; i++) {
        if (call->number != (call->is_compat ? again[i].number_32 : again[i].number))
            continue;
        short only = again[i].only;
        if (only == SOCKET ? is_socket(tid, call->first) : !only || (call->first & 0xffff) == only)
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
