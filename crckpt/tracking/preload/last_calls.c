/*
 * CRIU gives each thread the rights of the program on its own, and its code runs there before and after that. So in a
 * restore crckpt takes two things out of CRIU's images by which the program's user would control this code: the dumpable
 * flag, with which they may write to the memory of all threads, and restartable sequences (rseq(2)), with which the kernel
 * leaves the code for an address of theirs. Both are set here, when no task has code or files of CRIU any more: before CRIU
 * detaches from the first. All threads are stopped then, at the end of a system call. Each makes its calls itself, with the
 * rights of the program: first all sequences, then all flags.
 *
 * The instruction for it is in the vDSO. A program without a vDSO has it written over its next one, for that time. The
 * memory may be shared with others: so a call is only made if the kernel says that it is ours, and filters of system calls
 * (seccomp) are suspended only then.
 *
 * CRCKPT_LAST_CALLS names a file: a word that says how far we are (enum state), the number of records, and these (struct
 * record), in the order of their tids. crckpt writes them when it has read the images, perhaps after CRIU has started.
 */
#ifdef __x86_64__
#include "restore_library.h"

#include <linux/audit.h>
#include <linux/ptrace.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/user.h>
#include <sys/wait.h>

#define GET_SYSCALL_INFO 0x420e /* of Linux 5.3 (linux/ptrace.h) */
#define AT_ENTRY 1
#define IN_CALL (SIGTRAP | 0x80)
#define CODE_32 0x23  /* the code segment of 32-bit programs (__USER32_CS) */
#define INSTRUCTION 2 /* bytes of `syscall` and of `int $0x80` */
#define ARGUMENTS 5

enum state { NOT_LOADED, LOADED, DONE };

struct record {
    uint32_t tid, is_dumpable;
    uint64_t vdso, area;
    uint32_t size, signature;
};

/* A system call; its number is another one in 32-bit programs. */
struct call {
    int number, number_32;
    uint64_t arguments[ARGUMENTS];
};

/* A thread in which a call is made by the instruction at `place`. `code` has been there, if it `is_replaced`. */
struct caller {
    int tid, is_32, is_replaced;
    uint64_t place, code, mask;
    struct user_regs_struct before;
};

static const uint32_t *table;
static size_t most;
static struct bytes seized; /* tids as CRIU has them */

static int note_state(uint32_t state)
{
    const char *path = variable("CRCKPT_LAST_CALLS");
    int number = *path ? syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0) : -1;
    return number >= 0 && close_and_return(number, syscall(SYS_pwrite64, number, &state, sizeof state, 0l)) > 0;
}

__attribute__((constructor)) static void map_records(void)
{
    struct stat status;
    const char *path = variable("CRCKPT_LAST_CALLS");
    int number = *path ? open_to_read(AT_FDCWD, path) : -1;
    if (number < 0)
        return;
    long place = -1;
    if (!syscall(SYS_fstat, number, &status) && status.st_size >= 8)
        place = syscall(SYS_mmap, NULL, status.st_size, PROT_READ, MAP_SHARED, number, 0l);
    syscall(SYS_close, number);
    if (place == -1)
        return;
    /* Programs that CRIU starts come here, too. */
    if (*(const uint32_t *)place == NOT_LOADED && !note_state(LOADED))
        return;
    table = (const uint32_t *)place;
    most = (status.st_size - 8) / sizeof(struct record);
}

static long fail(int tid, const char *why, long number)
{
    dprintf(2, "crckpt's preload: the last calls of process %d failed: %s (%ld)\n", tid, why, number);
    if (tid > 0)
        syscall(SYS_kill, (long)tid, (long)SIGKILL);
    return 0;
}

/* Find the instruction in the vDSO; 0: there is none. */
static uint64_t find_instruction(int tid, uint64_t vdso, const char *wanted)
{
    char code[2 << PAGE_SHIFT]; /* it has one page or two */
    struct iovec into = {code, sizeof code}, from[2];
    for (int i = 0; i < 2; i++)
        from[i] = (struct iovec){(char *)vdso + (i << PAGE_SHIFT), 1 << PAGE_SHIFT};
    ssize_t length = vdso ? syscall(SYS_process_vm_readv, (long)tid, &into, 1l, from, 2l, 0l) : 0;
    for (ssize_t i = 0; i + INSTRUCTION <= length; i++)
        if (!memcmp(code + i, wanted, INSTRUCTION))
            return vdso + i;
    return 0;
}

/* Write the instruction where the program is to go on: in that word, which is code. Whether that worked. */
static int replace_code(struct caller *caller, const char *instruction)
{
    union {
        uint64_t word;
        char bytes[8];
    } code;
    caller->place = caller->before.rip & ~7ull;
    if (trace(PTRACE_PEEKTEXT, caller->tid, (void *)caller->place, &code) < 0)
        return 0;
    caller->code = code.word;
    memcpy(code.bytes, instruction, INSTRUCTION);
    caller->is_replaced = trace(PTRACE_POKETEXT, caller->tid, (void *)caller->place, (void *)code.word) == 0;
    return caller->is_replaced;
}

/* Let the thread go on until it enters a system call, or leaves one. Whether it does. */
static int go_on_to_call(int tid)
{
    long passed_on = 0;
    int status;
    do {
        if (trace(PTRACE_SYSCALL, tid, NULL, (void *)passed_on) < 0)
            return 0;
        long found;
        do
            found = syscall(SYS_wait4, (long)tid, &status, (long)__WALL, NULL);
        while (found < 0 && errno == EINTR);
        if (found != tid || !WIFSTOPPED(status))
            return 0;
        /* This signal cannot be blocked. The thread is stopped by it again when CRIU has detached. */
        passed_on = status >> 16 ? 0 : WSTOPSIG(status);
    } while (status >> 16 || passed_on == SIGSTOP);
    return passed_on == IN_CALL;
}

static int is_entering(const struct caller *caller, const struct call *call)
{
    struct {
        uint8_t kind, none[3];
        uint32_t architecture;
        uint64_t ip, sp, number, arguments[6], rest[2];
    } found; /* struct ptrace_syscall_info */
    memset(&found, 0, sizeof found);
    if (trace(GET_SYSCALL_INFO, caller->tid, (void *)sizeof found, &found) <= 0 || found.kind != AT_ENTRY ||
        found.architecture != (caller->is_32 ? AUDIT_ARCH_I386 : AUDIT_ARCH_X86_64) ||
        found.ip != caller->place + INSTRUCTION ||
        found.number != (uint64_t)(caller->is_32 ? call->number_32 : call->number))
        return 0;
    return !memcmp(found.arguments, call->arguments, sizeof call->arguments);
}

static void set_arguments(struct user_regs_struct *registers, const uint64_t *values, int is_32)
{
    unsigned long long *to[2][ARGUMENTS] = {
        {(void *)&registers->rdi, (void *)&registers->rsi, (void *)&registers->rdx, (void *)&registers->r10, (void *)&registers->r8},
        {(void *)&registers->rbx, (void *)&registers->rcx, (void *)&registers->rdx, (void *)&registers->rsi, (void *)&registers->rdi},
    };
    for (int i = 0; i < ARGUMENTS; i++)
        *to[is_32][i] = values[i];
}

/* Make the call in a thread whose signals are blocked. Whether that worked; then `result` is the call's. */
static int enter_and_leave(struct caller *caller, const struct call *call, long *result)
{
    struct user_regs_struct registers = caller->before;
    int tid = caller->tid;
    registers.rip = caller->place;
    registers.rax = caller->is_32 ? call->number_32 : call->number;
    registers.orig_rax = -1; /* in no call that is made again */
    set_arguments(&registers, call->arguments, caller->is_32);
    if (trace(PTRACE_SETOPTIONS, tid, NULL, (void *)PTRACE_O_TRACESYSGOOD) || trace(PTRACE_SETREGS, tid, NULL, &registers) ||
        !go_on_to_call(tid) || !is_entering(caller, call))
        return 0;
    /* Where it has filters and they cannot be suspended, they decide. */
    trace(PTRACE_SETOPTIONS, tid, NULL, (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_SUSPEND_SECCOMP));
    if (!go_on_to_call(tid) || trace(PTRACE_SETOPTIONS, tid, NULL, (void *)PTRACE_O_TRACESYSGOOD) ||
        trace(PTRACE_GETREGS, tid, NULL, &registers))
        return 0;
    *result = caller->is_32 ? (int32_t)registers.rax : (long)registers.rax;
    return 1;
}

/* Make the call in this thread, and restore it. Whether it succeeded; if not, its process is killed. */
static int make_call(int tid, uint64_t vdso, const struct call *call)
{
    struct caller caller = {.tid = tid};
    uint64_t every = ~0ull;
    long result = 0;
    if (trace(PTRACE_GETREGS, tid, NULL, &caller.before) || trace(PTRACE_GETSIGMASK, tid, (void *)8, &caller.mask) ||
        trace(PTRACE_SETSIGMASK, tid, (void *)8, &every))
        return fail(tid, "it is not stopped", errno);
    caller.is_32 = caller.before.cs == CODE_32;
    const char *instruction = caller.is_32 ? "\xcd\x80" : "\x0f\x05";
    caller.place = find_instruction(tid, vdso, instruction);
    if (!caller.place && !replace_code(&caller, instruction))
        return fail(tid, "its code cannot be changed", errno);
    if (!enter_and_leave(&caller, call, &result))
        return fail(tid, "it did not make the call", call->number);
    if (caller.is_replaced && trace(PTRACE_POKETEXT, tid, (void *)caller.place, (void *)caller.code))
        return fail(tid, "its code cannot be changed back", errno);
    if (trace(PTRACE_SETREGS, tid, NULL, &caller.before) || trace(PTRACE_SETSIGMASK, tid, (void *)8, &caller.mask))
        return fail(tid, "its registers cannot be restored", errno);
    return !result || fail(tid, call->number == SYS_rseq ? "rseq" : "PR_SET_DUMPABLE", result);
}

/* The number of a thread that we trace in its own PID namespace; -1 if it is no such thread. */
static int find_inner_tid(int tid)
{
    static struct bytes text;
    char path[64];
    uint64_t mask;
    snprintf(path, sizeof path, "/proc/%d/status", tid);
    const char *at = read_text(open_to_read(AT_FDCWD, path), &text);
    at = at && trace(PTRACE_GETSIGMASK, tid, (void *)8, &mask) == 0 ? strstr(at, "\nNSpid:") : NULL;
    int found = -1;
    for (at += at ? strlen("\nNSpid:") : 0; at && *at != '\n' && *at; at++)
        if (*at >= '0' && *at <= '9')
            found = (at[-1] == '\t' ? 0 : 10 * found) + *at - '0';
    return found;
}

static uint32_t find_record(const struct record *records, uint32_t count, uint32_t tid)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (records[middle].tid < tid)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && records[low].tid == tid ? low : count;
}

/* Find the thread of each record: `tids` gets its tid. Whether all are there. */
static int find_threads(const struct record *records, uint32_t count, int *tids)
{
    const int *tid = (const int *)seized.at;
    for (size_t i = 0; i < seized.length / sizeof *tid; i++) {
        int inner = find_inner_tid(tid[i]);
        uint32_t place = inner > 0 ? find_record(records, count, inner) : count;
        if (place < count)
            tids[place] = tid[i];
    }
    for (uint32_t i = 0; i < count; i++)
        if (!tids[i])
            return fail(0, "there is no thread", records[i].tid);
    return 1;
}

static int make_last_calls(void)
{
    const struct record *records = (const struct record *)(table + 2);
    uint32_t count = table[1];
    struct bytes room = {0};
    if (count > most || !reserve(&room, (count + 1) * sizeof(int)))
        return fail(0, "there is no memory", count);
    int *tids = memset(room.at, 0, count * sizeof(int)), is_made = find_threads(records, count, tids);
    for (uint32_t i = 0; is_made && i < count; i++) {
        const struct call rseq = {SYS_rseq, 386, {records[i].area, records[i].size, 0, records[i].signature}};
        is_made = !records[i].area || make_call(tids[i], records[i].vdso, &rseq);
    }
    const struct call dumpable = {SYS_prctl, 172, {PR_SET_DUMPABLE, 1}};
    for (uint32_t i = 0; is_made && i < count; i++)
        is_made = !records[i].is_dumpable || make_call(tids[i], records[i].vdso, &dumpable);
    release(&room);
    return is_made && note_state(DONE);
}

VISIBLE long ptrace(int request, ...)
{
    static int is_done;
    va_list more;
    va_start(more, request);
    int tid = va_arg(more, int);
    void *address = va_arg(more, void *), *data = va_arg(more, void *);
    va_end(more);
    if (table && request == PTRACE_SEIZE && !append(&seized, &tid, sizeof tid)) {
        errno = ENOMEM;
        return -1;
    }
    if (table && request == PTRACE_DETACH && !is_done && !(is_done = make_last_calls())) {
        errno = ECANCELED;
        return -1;
    }
    return trace_as_libc(request, tid, address, data);
}
#endif
