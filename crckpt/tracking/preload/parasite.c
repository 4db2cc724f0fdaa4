/*
 * CRIU and its code in a frozen process (the parasite) speak by a unix socket: CRIU listens on the abstract name
 * `crtools-pr-...`, and the code connects (compel/src/lib/infect.c, compel/plugins/std/infect.c). Every user of the network
 * namespace can read that name in /proc/net/unix, connect first, fill the queue, or send a descriptor that CRIU waits for
 * when it closes it; and the process stays frozen meanwhile. So there is no name: CRIU's code gets one end of a socket
 * pair, and CRIU the other.
 *
 *   bind, listen   do nothing for CRIU's name
 *   PTRACE_CONT    after that lets CRIU's code run until it calls socket(2), which becomes socketpair(2). CRIU takes the
 *                  second end from the process (pidfd_getfd(2), Linux 5.6); connect(2) becomes close(2) of it there
 *   accept         returns that end
 *
 * What goes wrong here, CRIU's code or CRIU finds: there is nothing to connect to, and nothing to accept.
 */
#include "dump_library.h"

#include <elf.h>
#include <linux/audit.h>
#include <linux/ptrace.h>
#include <signal.h>
#include <sys/user.h>
#include <sys/wait.h>

#if defined(__x86_64__) || defined(__aarch64__)

#define NAME "/crtools-pr-"
/* The most calls that CRIU's code makes before the one that is awaited. */
#define MOST_CALLS 64
/* Below the stack of CRIU's code, where a function may keep nothing. */
#define BELOW_STACK 256
#define SOCKETCALL 102
#define CALL_SOCKET 1
#define CALL_CONNECT 3

static const struct numbers {
    uint32_t machine;
    unsigned socket, connect, socketpair, close;
} known[] = {
    {AUDIT_ARCH_X86_64, 41, 42, 53, 3},
    {AUDIT_ARCH_I386, 359, 362, 360, 6},
    {AUDIT_ARCH_AARCH64, 198, 203, 199, 57},
};

/* CRIU's socket that would listen, and CRIU's end of the pair, or why there is none. */
static int listener = -1, end = -ECONNABORTED;

static long ask(long request, int pid, const void *address, void *data)
{
    return syscall(SYS_ptrace, request, (long)pid, address, data);
}

/* Have a process that is about to make a call make another one, or continue after it with this result. */
#ifdef __x86_64__
static int read_registers(int pid, struct user_regs_struct *registers)
{
    return !ask(PTRACE_GETREGS, pid, NULL, registers);
}

static int set_call(int pid, int is_compat, struct user_regs_struct registers, long number, const uint64_t arguments[4])
{
    registers.orig_rax = number;
    *(is_compat ? &registers.rbx : &registers.rdi) = arguments[0];
    *(is_compat ? &registers.rcx : &registers.rsi) = arguments[1];
    registers.rdx = arguments[2];
    *(is_compat ? &registers.rsi : &registers.r10) = arguments[3];
    return !ask(PTRACE_SETREGS, pid, NULL, &registers);
}

static int set_result(int pid, struct user_regs_struct registers, long result)
{
    registers.rax = result;
    return !ask(PTRACE_SETREGS, pid, NULL, &registers);
}
#else
static int read_registers(int pid, struct user_regs_struct *registers)
{
    struct iovec where = {registers, sizeof *registers};
    return !ask(PTRACE_GETREGSET, pid, (void *)NT_PRSTATUS, &where);
}

static int set_call(int pid, int is_compat, struct user_regs_struct registers, long number, const uint64_t arguments[4])
{
    int call = number;
    struct iovec where = {&registers, sizeof registers}, other = {&call, sizeof call};
    memcpy(registers.regs, arguments, 4 * sizeof *arguments);
    return !is_compat && !ask(PTRACE_SETREGSET, pid, (void *)NT_PRSTATUS, &where) &&
           !ask(PTRACE_SETREGSET, pid, (void *)NT_ARM_SYSTEM_CALL, &other);
}

static int set_result(int pid, struct user_regs_struct registers, long result)
{
    struct iovec where = {&registers, sizeof registers};
    registers.regs[0] = result;
    return !ask(PTRACE_SETREGSET, pid, (void *)NT_PRSTATUS, &where);
}
#endif

/* Let the process run until it begins or ends a system call. Any other end or stop is left for CRIU's handler of SIGCHLD. */
static int run_to_call(int pid, struct ptrace_syscall_info *info)
{
    siginfo_t found;
    long result = ask(PTRACE_SYSCALL, pid, NULL, NULL);
    if (result)
        return 0;
    do
        result = syscall(SYS_waitid, P_PID, pid, &found, WEXITED | WSTOPPED | WNOWAIT | __WALL, NULL);
    while (result && errno == EINTR);
    if (result || found.si_code != CLD_TRAPPED || ask(PTRACE_GET_SYSCALL_INFO, pid, (void *)sizeof *info, info) <= 0 ||
        (info->op != PTRACE_SYSCALL_INFO_ENTRY && info->op != PTRACE_SYSCALL_INFO_EXIT))
        return 0;
    return !syscall(SYS_waitid, P_PID, pid, &found, WSTOPPED | __WALL, NULL);
}

static const struct numbers *numbers_of(const struct ptrace_syscall_info *info)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].machine == info->arch)
            return &known[i];
    return NULL;
}

/* A 32-bit program calls by socketcall(2), and so does CRIU's code in it. */
static int is_call(const struct ptrace_syscall_info *info, int is_connect)
{
    const struct numbers *numbers = numbers_of(info);
    if (info->op != PTRACE_SYSCALL_INFO_ENTRY || !numbers)
        return 0;
    if (info->arch == AUDIT_ARCH_I386 && info->entry.nr == SOCKETCALL)
        return (uint32_t)info->entry.args[0] == (is_connect ? CALL_CONNECT : CALL_SOCKET);
    return info->entry.nr == (is_connect ? numbers->connect : numbers->socket);
}

static int run_to(int pid, int is_connect, struct ptrace_syscall_info *info)
{
    for (int i = 0; i < MOST_CALLS; i++)
        if (!run_to_call(pid, info))
            return 0;
        else if (is_call(info, is_connect))
            return 1;
    return 0;
}

/* CRIU's code runs, stops at both calls, and stands after the second. Whether it does. */
static int connect_code(int pid)
{
    struct ptrace_syscall_info info;
    struct user_regs_struct registers;
    int ends[2];
    if (!run_to(pid, 0, &info) || !read_registers(pid, &registers))
        return 0;
    const struct numbers *numbers = numbers_of(&info);
    int is_compat = info.arch == AUDIT_ARCH_I386;
    uint64_t place = (info.stack_pointer - BELOW_STACK) & ~15ull;
    const uint64_t pair[4] = {AF_UNIX, SOCK_SEQPACKET, 0, place};
    if (!set_call(pid, is_compat, registers, numbers->socketpair, pair) || !run_to_call(pid, &info))
        return 0;
    if (info.exit.is_error) /* It has no room for descriptors, say: CRIU's code tells that. */
        return set_result(pid, registers, info.exit.rval);
    if (ask(PTRACE_PEEKDATA, pid, (void *)place, ends) || !set_result(pid, registers, ends[0]))
        return 0;
    end = take_descriptor(pid, ends[1]);
    if (end < 0)
        end = -errno;
    const uint64_t first[4] = {ends[1]};
    return run_to(pid, 1, &info) && read_registers(pid, &registers) &&
           set_call(pid, is_compat, registers, numbers->close, first) && run_to_call(pid, &info) &&
           set_result(pid, registers, 0);
}

int is_code_awaited(void)
{
    return listener >= 0 && end == -ECONNABORTED;
}

/* CRIU's handler of SIGCHLD takes each stop for a failure: it runs after these, and finds only one that is still there. */
long let_code_connect(int pid)
{
    const uint64_t children = 1ull << (SIGCHLD - 1);
    uint64_t before;
    siginfo_t left = {.si_pid = 0};
    syscall(SYS_rt_sigprocmask, (long)SIG_BLOCK, &children, &before, sizeof before);
    connect_code(pid);
    syscall(SYS_waitid, P_PID, pid, &left, WEXITED | WSTOPPED | WNOHANG | WNOWAIT | __WALL, NULL);
    long result = left.si_pid ? 0 : ask(PTRACE_CONT, pid, NULL, NULL);
    syscall(SYS_rt_sigprocmask, (long)SIG_SETMASK, &before, NULL, sizeof before);
    return result;
}

VISIBLE int bind(int socket, const struct sockaddr *address, socklen_t length)
{
    if (!is_abstract(address, length, NAME))
        return syscall(SYS_bind, socket, address, length);
    listener = socket;
    end = -ECONNABORTED;
    return 0;
}

VISIBLE int listen(int socket, int backlog)
{
    return socket == listener ? 0 : syscall(SYS_listen, socket, backlog);
}

VISIBLE int accept(int socket, struct sockaddr *address, socklen_t *length)
{
    if (socket != listener)
        return syscall(SYS_accept4, socket, address, length, 0);
    int accepted = end;
    listener = -1;
    errno = accepted < 0 ? -accepted : errno;
    return accepted < 0 ? -1 : accepted;
}

#ifndef __x86_64__
/* For x86-64 there is one in restart.c. */
VISIBLE long ptrace(int request, ...)
{
    va_list more;
    long peeked;
    va_start(more, request);
    int tid = va_arg(more, int);
    void *address = va_arg(more, void *), *data = va_arg(more, void *);
    va_end(more);
    if (request == PTRACE_CONT && is_code_awaited())
        return let_code_connect(tid);
    if (request != PTRACE_PEEKTEXT && request != PTRACE_PEEKDATA)
        return ask(request, tid, address, data);
    long result = ask(request, tid, address, &peeked);
    errno = result < 0 ? errno : 0;
    return result < 0 ? result : peeked;
}
#endif
#endif
