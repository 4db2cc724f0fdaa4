/*
 * Keep a dump from interrupting system calls. Freezing a thread interrupts the call that it waits in. The kernel then
 * has in the thread's registers how the call ends (kernel/signal.c, arch/x86/kernel/signal.c):
 *
 *   ERESTARTSYS, ERESTARTNOINTR   it is made again; the former not if a handler without SA_RESTART runs
 *   ERESTARTNOHAND                it is made again, unless a handler runs
 *   ERESTART_RESTARTBLOCK         the same, by restart_syscall(2), which knows how much of a timeout is left
 *   EINTR                         it returns that: signal(7), "Interruption of system calls by stop signals"
 *
 * CRIU's image has no restart block, and its own code in a process ends with rt_sigreturn(2), which removes it: CRIU
 * turns ERESTART_RESTARTBLOCK into EINTR (compel/arch/x86/src/lib/infect.c). So here
 *
 *   PTRACE_SEIZE       finds the call that restart_syscall(2) continues after an earlier interruption;
 *   PTRACE_GETREGSET   returns, the first time for a thread, ERESTARTNOHAND for a call that can be made again, or EINTR
 *                      if a handler is about to run that interrupts it: this is what CRIU saves;
 *   PTRACE_SETREGSET   restores what the kernel had, with ERESTARTNOHAND for the last two: when the tree runs again, the
 *                      kernel decides, with all signals that came in the freeze;
 *   PTRACE_DETACH      does the same for threads whose registers CRIU did not set, as in a pre-dump.
 *
 * A call that is made again waits for all of a relative timeout, unless the kernel wrote the rest of it to the program's
 * memory (select, ppoll, sleep of glibc).
 *
 * On arm64 the kernel rewinds such calls before a tracer looks (arch/arm64/kernel/signal.c), so CRIU need not. A call
 * that returns EINTR has lost its first argument there, and is left as it is.
 */
#ifdef __x86_64__
#include "calls.h"
#include "dump_library.h"
#include "filtered.h"

#include <elf.h>
#include <linux/ptrace.h>

#define RESTART_SYSCALL 219
#define RESTART_SYSCALL_32 0
#define POLL 7
#define POLL_32 168
#define NANOSLEEP 35
#define CLOCK_NANOSLEEP 230
#define FUTEX 202
/* Clocks are small numbers, or negative ones of 32 bits. Any other first argument of such a call is an address. */
#define MOST_CLOCKS 4096
/* Bytes of both `syscall` and `int $0x80`. */
#define INSTRUCTION 2
#define GET_RSEQ 0x420f /* of Linux 5.13 (linux/ptrace.h) */

/* What is known of a thread; `next` has the same hash. */
struct thread {
    int tid, next;
    /* The call that restart_syscall(2) continues in it, or -1. */
    int restarted;
    int is_looked_at;
    /* Its call ends otherwise than CRIU is told, or would have it. */
    int is_kept;
    struct call found;
    long told, put_back;
    struct filtered filtered;
};
static struct bytes threads;
static int first_thread[1 << 12];

/* NULL: there is no memory for another one. It may move when the next one is asked for. */
static struct thread *find_thread(int tid)
{
    int *first = &first_thread[(unsigned)tid % (sizeof first_thread / sizeof *first_thread)];
    const struct thread made = {.tid = tid, .next = *first, .restarted = -1};
    for (int place = *first; place;) {
        struct thread *thread = (struct thread *)threads.at + place - 1;
        if (thread->tid == tid)
            return thread;
        place = thread->next;
    }
    if (!append(&threads, &made, sizeof made))
        return NULL;
    *first = threads.length / sizeof made;
    return (struct thread *)threads.at + *first - 1;
}

int is_seized(int tid)
{
    int place = first_thread[(unsigned)tid % (sizeof first_thread / sizeof *first_thread)];
    const struct thread *all = (const struct thread *)threads.at;
    while (place && all[place - 1].tid != tid)
        place = all[place - 1].next;
    return place != 0;
}

/* The text of a thread's file in /proc; empty if it cannot be read. */
static const char *text_of(int tid, const char *name)
{
    static struct bytes text;
    char path[64];
    int before = errno;
    snprintf(path, sizeof path, "/proc/%d/%s", tid, name);
    const char *found = read_text(open_to_read(AT_FDCWD, path), &text);
    errno = before;
    return found ? found : "";
}

/*
 * Note which call restart_syscall(2) continues in a thread that is still untouched. It has the arguments of the call that
 * was interrupted, and its kernel stack shows which that is: no other calls restart, and a stack without a known
 * function is of one that sleeps. In a 32-bit program only poll is certain: a time can have two layouts there.
 */
static void note_restarted(int tid)
{
    struct thread *thread = find_thread(tid);
    const char *text = text_of(tid, "syscall");
    int is_compat = starts_with(text, "0 0x");
    if (!thread)
        return;
    thread->restarted = -1;
    if (!is_compat && !starts_with(text, "219 0x"))
        return;
    text += is_compat ? 4 : 6;
    uint64_t first = parse_hex(&text);
    const char *stack = text_of(tid, "stack");
    if (strstr(stack, "poll"))
        thread->restarted = is_compat ? POLL_32 : POLL;
    else if (!is_compat && strstr(stack, "futex"))
        thread->restarted = FUTEX;
    else if (!is_compat && *stack && first < MOST_CLOCKS)
        thread->restarted = CLOCK_NANOSLEEP;
    else if (!is_compat && *stack && first >> 31 != 1 && first >> 31 != ~0ull >> 31)
        thread->restarted = NANOSLEEP;
}

/* Replace restart_syscall(2) by the call that it continues, if that is known. */
static void recognise(const struct thread *thread, struct call *call)
{
    if (call->result == -ERESTART_RESTARTBLOCK && thread->restarted >= 0 &&
        call->number == (call->is_compat ? RESTART_SYSCALL_32 : RESTART_SYSCALL) &&
        (thread->restarted == POLL_32) == call->is_compat)
        call->number = thread->restarted;
}

/* The set of signals after the beginning of a line; all signals if it is not there. */
static uint64_t signals(const char *status, const char *line)
{
    const char *at = strstr(status, line);
    if (!at)
        return ~0ull;
    at += strlen(line);
    return parse_hex(&at);
}

/*
 * Whether a handler runs as soon as the thread does. A signal to the whole process counts for each of its threads. The
 * program's own mask counts: a mask that a call sets while it waits (ppoll) is set again.
 */
static int is_handler_due(int tid)
{
    struct ptrace_peeksiginfo_args own = {.nr = 1}, shared = {.flags = PTRACE_PEEKSIGINFO_SHARED, .nr = 1};
    uint64_t blocked, ignored[16];
    if (trace(PTRACE_PEEKSIGINFO, tid, &own, ignored) == 0 && trace(PTRACE_PEEKSIGINFO, tid, &shared, ignored) == 0)
        return 0;
    if (trace(PTRACE_GETSIGMASK, tid, (void *)sizeof blocked, &blocked) != 0)
        return 1;
    const char *status = text_of(tid, "status");
    uint64_t pending = signals(status, "\nSigPnd:\t") | signals(status, "\nShdPnd:\t");
    return (pending & ~blocked & signals(status, "\nSigCgt:\t")) != 0;
}

/* How the call must end when the tree runs again; unchanged if the kernel's result is right. */
static long end_of(int tid, const struct call *call)
{
    long restarts = call->is_compat ? RESTART_SYSCALL_32 : RESTART_SYSCALL;
    if (call->result == -ERESTART_RESTARTBLOCK && call->number != restarts)
        return -ERESTARTNOHAND;
    if (call->result == -EINTR && is_made_again(tid, call))
        return -ERESTARTNOHAND;
    return call->result;
}

/*
 * Leave a restartable sequence (rseq(2)), as the kernel does when the thread runs again. CRIU before 4.2.1 lets it run
 * CRIU's code without that: a program whose sequence covers the addresses of this code would get control instead.
 */
static void leave_sequence(int tid, struct iovec *where, struct call *call)
{
    struct {
        uint64_t area;
        uint32_t others[4];
    } rseq; /* struct ptrace_rseq_configuration; the area has its sequence at 8, this its begin, length and abort at 8 */
    uint64_t sequence, found[3];
    if (trace(GET_RSEQ, tid, (void *)sizeof rseq, &rseq) != sizeof rseq || !rseq.area)
        return;
    const char *pointer = (const char *)rseq.area + 8;
    if (trace(PTRACE_PEEKDATA, tid, pointer, &sequence) != 0 || !sequence)
        return;
    int is_read = 1;
    for (int i = 0; i < 3; i++)
        is_read = is_read && trace(PTRACE_PEEKDATA, tid, (const char *)sequence + 8 + 8 * i, &found[i]) == 0;
    if (is_read && (uint64_t)call->ip - found[0] < found[1]) {
        call->ip = found[2];
        write_call(where, call, call->ip, call->result);
        trace(PTRACE_SETREGSET, tid, (void *)NT_PRSTATUS, where);
    }
    trace(PTRACE_POKEDATA, tid, pointer, NULL);
}

/* Record the call of a thread that is still untouched, and set what CRIU is to save. */
static void look(struct thread *thread, struct iovec *where)
{
    struct call call;
    int tid = thread->tid;
    if (!read_call(where, &call))
        return;
    thread->is_looked_at = 1;
    leave_sequence(tid, where, &call);
    if (!is_interrupted(&call))
        return;
    recognise(thread, &call);
    long put_back = end_of(tid, &call);
    if (put_back == -EINTR)
        return;
    thread->is_kept = 1;
    thread->found = call;
    thread->put_back = put_back;
    thread->told = put_back == -ERESTARTNOHAND && is_handler_due(tid) ? -EINTR : put_back;
    write_call(where, &call, call.ip, thread->told);
}

/* Whether this is what CRIU was told, or what it made of that: it moves a thread back before a call to be made again. */
static int is_as_kept(const struct thread *kept, const struct call *call)
{
    if (call->number != kept->found.number || call->sp != kept->found.sp || call->is_compat != kept->found.is_compat)
        return 0;
    if (call->ip == kept->found.ip)
        return call->result == kept->told || call->result == -EINTR;
    return call->ip == kept->found.ip - INSTRUCTION && call->result == kept->found.number;
}

static long put_back(const struct thread *kept, const struct iovec *where)
{
    struct registers copy;
    struct iovec ours = {&copy, where->iov_len};
    struct call call;
    if (!read_call(where, &call) || !is_as_kept(kept, &call))
        return trace(PTRACE_SETREGSET, kept->tid, (void *)NT_PRSTATUS, (void *)where);
    memcpy(&copy, where->iov_base, where->iov_len);
    write_call(&ours, &call, kept->found.ip, kept->put_back);
    return trace(PTRACE_SETREGSET, kept->tid, (void *)NT_PRSTATUS, &ours);
}

/* Set how the call ends in a thread whose registers CRIU did not set. A thread that runs has none to read. */
static void let_call_go_on(const struct thread *thread)
{
    struct registers registers;
    struct iovec where = {&registers, sizeof registers};
    struct call call;
    int before = errno, tid = thread->tid;
    if (trace(PTRACE_GETREGSET, tid, (void *)NT_PRSTATUS, &where) == 0 && read_call(&where, &call) &&
        is_interrupted(&call)) {
        recognise(thread, &call);
        long end = end_of(tid, &call);
        if (end != call.result) {
            write_call(&where, &call, call.ip, end);
            trace(PTRACE_SETREGSET, tid, (void *)NT_PRSTATUS, &where);
        }
    }
    errno = before;
}

VISIBLE long ptrace(int request, ...)
{
    va_list more;
    long result;
    va_start(more, request);
    int tid = va_arg(more, int);
    void *address = va_arg(more, void *), *data = va_arg(more, void *);
    va_end(more);
    int is_of_registers = (long)address == NT_PRSTATUS && tid > 0;
    struct thread *thread;
    switch (request) {
    case PTRACE_SEIZE:
        note_restarted(tid);
        break;
    case PTRACE_GETREGSET:
        result = trace(request, tid, address, data);
        if (result == 0 && is_of_registers && (thread = find_thread(tid)) && !thread->is_looked_at)
            look(thread, data);
        return result;
    case PTRACE_SETREGSET:
        if (is_of_registers && (thread = find_thread(tid))) {
            note_registers(tid, &thread->filtered, data);
            if (thread->is_kept)
                return put_back(thread, data);
        }
        break;
    case PTRACE_SETOPTIONS:
        thread = find_thread(tid);
        return set_options_of(tid, thread ? &thread->filtered : NULL, (uintptr_t)data);
    case PTRACE_POKEDATA:
        return write_word(tid, address, data);
    case PTRACE_CONT:
    case PTRACE_SYSCALL:
        if (tid > 0 && (thread = find_thread(tid)) && !prepare_to_run(tid, &thread->filtered))
            return -1;
        if (request == PTRACE_CONT && is_code_awaited())
            return let_code_connect(tid);
        break;
    case PTRACE_DETACH:
        if (tid > 0 && (thread = find_thread(tid))) {
            leave(tid, &thread->filtered);
            let_call_go_on(thread);
            thread->tid = 0; /* forgotten */
        }
    }
    return trace_as_libc(request, tid, address, data);
}
#endif
