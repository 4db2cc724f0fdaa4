/* System calls in stopped threads. Sources: ptrace(2); linux/ptrace.h; kernel/seccomp.c; arch/x86/entry/common.c. */
#ifdef __x86_64__
#include "thread_calls.h"

#include <linux/audit.h>
#include <time.h>

#define AT_ENTRY 1
#define IN_CALL (SIGTRAP | 0x80)
/* A thread whose code was changed may never enter a call. */
#define LONGEST_S 5
#define SPINS 1000

struct call_info { /* struct ptrace_syscall_info */
    uint8_t kind, none[3];
    uint32_t architecture;
    uint64_t ip, sp, number, arguments[6], rest[2];
};

int can_check_calls(int tid)
{
    struct call_info found;
    int before = errno, is_known = trace(GET_SYSCALL_INFO, tid, (void *)sizeof found, &found) > 0;
    errno = before;
    return is_known;
}

static long now(void)
{
    struct timespec time = {0};
    syscall(SYS_clock_gettime, (long)CLOCK_MONOTONIC, &time);
    return time.tv_sec;
}

/* Wait until the thread stops. Whether it does so in time, and has not ended. */
static int wait_for_stop(int tid, int *status, long until)
{
    const struct timespec pause = {0, 50000};
    for (int i = 0; now() <= until; i++) {
        long found = syscall(SYS_wait4, (long)tid, status, (long)(__WALL | WNOHANG), NULL);
        if (found == tid)
            return WIFSTOPPED(*status);
        if (found < 0 && errno != EINTR)
            return 0;
        if (i < SPINS)
            syscall(SYS_sched_yield);
        else
            syscall(SYS_nanosleep, &pause, NULL);
    }
    return 0;
}

/* Let the thread go on until it is in the stop that was asked for. Whether that worked. */
static int go_on_to_stop(int tid)
{
    int status;
    long passed_on = 0, until = now() + LONGEST_S;
    for (;;) {
        if (trace(PTRACE_INTERRUPT, tid, NULL, NULL) || trace(PTRACE_CONT, tid, NULL, (void *)passed_on) ||
            !wait_for_stop(tid, &status, until))
            return 0;
        if (status >> 16 == PTRACE_EVENT_STOP)
            return 1;
        passed_on = status >> 16 || WSTOPSIG(status) == IN_CALL ? 0 : WSTOPSIG(status);
    }
}

/* Let the thread go on until it enters a system call, or leaves one. Whether it does; if not, it is stopped. */
static int go_on_to_call(int tid)
{
    int status;
    long passed_on = 0, until = now() + LONGEST_S;
    do {
        if (trace(PTRACE_SYSCALL, tid, NULL, (void *)passed_on))
            return 0;
        if (!wait_for_stop(tid, &status, until)) {
            if (trace(PTRACE_INTERRUPT, tid, NULL, NULL) == 0)
                wait_for_stop(tid, &status, now() + LONGEST_S);
            return 0;
        }
        /* This signal cannot be blocked. The thread is stopped by it again when CRIU has detached. */
        passed_on = status >> 16 ? 0 : WSTOPSIG(status);
    } while (status >> 16 || passed_on == SIGSTOP);
    return passed_on == IN_CALL;
}

static int set_options(int tid, unsigned long options)
{
    return trace(PTRACE_SETOPTIONS, tid, NULL, (void *)options) == 0;
}

static int is_entering(int tid, uint64_t place, const struct thread_call *call)
{
    struct call_info found;
    memset(&found, 0, sizeof found);
    if (trace(GET_SYSCALL_INFO, tid, (void *)sizeof found, &found) <= 0 || found.kind != AT_ENTRY)
        return 0;
    int is_32 = found.architecture == AUDIT_ARCH_I386;
    return (is_32 || found.architecture == AUDIT_ARCH_X86_64) && found.ip == place + INSTRUCTION &&
           found.number == (is_32 ? call->number_32 : call->number) &&
           !memcmp(found.arguments, call->arguments, sizeof call->arguments);
}

static int has_no_filters(int tid)
{
    static struct bytes text;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", tid);
    const char *status = read_text(open_to_read(AT_FDCWD, path), &text);
    return status && strstr(status, "\nSeccomp:\t0\n");
}

int pass_call(int tid, uint64_t place, const struct thread_call *call)
{
    if (!set_options(tid, PTRACE_O_TRACESYSGOOD) || !go_on_to_call(tid) || !is_entering(tid, place, call))
        return 0;
    /* It takes CAP_SYS_ADMIN. */
    int is_passed = set_options(tid, PTRACE_O_TRACESYSGOOD | SUSPEND_SECCOMP) || has_no_filters(tid);
    is_passed = is_passed && go_on_to_call(tid);
    return set_options(tid, PTRACE_O_TRACESYSGOOD) && is_passed;
}

static void find_arguments(struct user_regs_struct *of, unsigned long long *found[6])
{
    unsigned long long *native[] = {(void *)&of->rdi, (void *)&of->rsi, (void *)&of->rdx,
                                    (void *)&of->r10, (void *)&of->r8,  (void *)&of->r9};
    unsigned long long *compat[] = {(void *)&of->rbx, (void *)&of->rcx, (void *)&of->rdx,
                                    (void *)&of->rsi, (void *)&of->rdi, (void *)&of->rbp};
    memcpy(found, of->cs == CODE_32 ? compat : native, sizeof native);
}

int read_thread_call(int tid, struct thread_call *call)
{
    struct user_regs_struct registers;
    unsigned long long *arguments[6];
    if (trace(PTRACE_GETREGS, tid, NULL, &registers))
        return 0;
    find_arguments(&registers, arguments);
    call->number = call->number_32 = registers.rax;
    for (int i = 0; i < 6; i++)
        call->arguments[i] = *arguments[i];
    return 1;
}

static int make_at(int tid, uint64_t place, const struct thread_call *call, const struct user_regs_struct *before, long *result)
{
    struct user_regs_struct registers = *before;
    unsigned long long *arguments[6];
    int is_32 = before->cs == CODE_32;
    find_arguments(&registers, arguments);
    for (int i = 0; i < 6; i++)
        *arguments[i] = call->arguments[i];
    registers.rip = place;
    registers.rax = is_32 ? call->number_32 : call->number;
    registers.orig_rax = -1; /* in no call that is made again */
    int is_made = trace(PTRACE_SETREGS, tid, NULL, &registers) == 0 && pass_call(tid, place, call) &&
                  trace(PTRACE_GETREGS, tid, NULL, &registers) == 0;
    *result = is_32 ? (int32_t)registers.rax : (long)registers.rax;
    if (!is_made) {
        /* The call that it may be entering must do nothing. */
        registers = *before;
        registers.orig_rax = -1;
        trace(PTRACE_SETREGS, tid, NULL, &registers);
    }
    return go_on_to_stop(tid) && trace(PTRACE_SETREGS, tid, NULL, (void *)before) == 0 && is_made;
}

const char *instruction_of(const struct user_regs_struct *registers)
{
    return registers->cs == CODE_32 ? "\xcd\x80" : "\x0f\x05";
}

int make_call(int tid, uint64_t place, const struct thread_call *call, long *result)
{
    struct user_regs_struct before;
    uint64_t mask, every = ~0ull;
    union {
        uint64_t word;
        char bytes[8];
    } code;
    if (trace(PTRACE_GETREGS, tid, NULL, &before) || trace(PTRACE_GETSIGMASK, tid, (void *)8, &mask) ||
        trace(PTRACE_PEEKDATA, tid, (void *)place, &code))
        return 0;
    uint64_t found = code.word;
    memcpy(code.bytes, instruction_of(&before), INSTRUCTION);
    int is_there = code.word == found;
    if (trace(PTRACE_SETSIGMASK, tid, (void *)8, &every) ||
        (!is_there && trace(PTRACE_POKEDATA, tid, (void *)place, (void *)code.word)))
        return 0;
    int is_made = make_at(tid, place, call, &before, result);
    int is_as_before = is_there || trace(PTRACE_POKEDATA, tid, (void *)place, (void *)found) == 0;
    return trace(PTRACE_SETSIGMASK, tid, (void *)8, &mask) == 0 && is_as_before && is_made;
}
#endif
