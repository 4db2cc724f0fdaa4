/*
 * CRIU suspends the filters of system calls (seccomp) of a program for as long as it has it stopped, so that its code there
 * may make any call. That code is in the memory of the program, and waits there for commands. Other processes of the same
 * user, which may have the same filters, could write to it and make the calls that their filters forbid. So in a process of
 * which a thread has filters
 *
 *   - the dumpable flag is 0 while CRIU's code is there: only root may write to the memory (ptrace(2));
 *   - each call that CRIU makes by an instruction of the program's own code, which others may have mapped, is checked, and
 *     filters are suspended only for it (thread_calls.c);
 *   - in CRIU's code they are suspended while it runs.
 *
 * CRIU writes its instruction over the program's, with the first PTRACE_POKEDATA, and unmaps its code in the same way; then
 * the flag gets its value again. CRIU's code has reported 0, so the image of the process (mm-PID.img) gets the true value
 * when CRIU closes it. Sources: compel/src/lib/infect.c, criu/mem.c of CRIU 4.2; images/mm.proto.
 */
#ifdef __x86_64__
#include "filtered.h"

#include "calls.h"
#include "thread_calls.h"

#define EFFECTIVE 2 /* the place of this user id after tabulators */
#define LAST 64
#define MUNMAP 11
#define MUNMAP_32 91
/* Where an image has the length of its only message, and where that begins. */
#define LENGTH 8
#define MESSAGE 12
/* The field `dumpable` of mm.proto, 15, with the value 1. Of several the last one counts. */
#define DUMPABLE "\x78\x01"

struct process {
    int pid, inner;
    unsigned user;
    /* Where CRIU has written first, over code of the program, or 0: CRIU does not use it; and where it has written last. */
    uint64_t place, written;
    int was_dumpable, is_unmapping, is_refused;
};
static struct bytes processes;
static int image = -1, image_of;

static struct process *find_process(int pid)
{
    struct process *one = (struct process *)processes.at, *end = one + processes.length / sizeof *one;
    for (; pid && one < end; one++)
        if (one->pid == pid)
            return one;
    return NULL;
}

/* The number of this place in a line of /proc/PID/status, or the last one; 0 if there is none. */
static int number_in(const char *status, const char *line, int place)
{
    int value = 0;
    const char *at = strstr(status, line);
    for (at += at ? strlen(line) : 0; at && *at && *at != '\n' && place >= 0; at++)
        if (*at < '0' || *at > '9')
            place--;
        else
            value = (at[-1] == '\t' ? 0 : 10 * value) + *at - '0';
    return value;
}

static int note_process(int tid)
{
    static struct bytes text;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", tid);
    const char *status = read_text(open_to_read(AT_FDCWD, path), &text);
    int pid = status ? number_in(status, "\nTgid:", LAST) : 0;
    if (!pid || find_process(pid))
        return pid;
    /* A thread's own number is not that of its process. */
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    status = read_text(open_to_read(AT_FDCWD, path), &text);
    struct process one = {.pid = pid, .inner = status ? number_in(status, "\nNSpid:", LAST) : 0};
    one.user = status ? number_in(status, "\nUid:", EFFECTIVE) : 0;
    return one.inner && append(&processes, &one, sizeof one) ? pid : 0;
}

static long fail(int pid, const char *what)
{
    dprintf(2, "crckpt's preload: process %d has system call filters, and %s\n", pid, what);
    errno = ECANCELED;
    return -1;
}

long set_options_of(int tid, struct filtered *thread, unsigned long options)
{
    long result = trace(PTRACE_SETOPTIONS, tid, NULL, (void *)options);
    if (result || !(options & SUSPEND_SECCOMP) || !can_check_calls(tid))
        return result;
    if (!thread || !(thread->pid = note_process(tid)))
        return fail(tid, "nothing is known of it");
    return trace(PTRACE_SETOPTIONS, tid, NULL, (void *)(options & ~SUSPEND_SECCOMP));
}

static int set_dumpable(int tid, uint64_t place, uint64_t value)
{
    const struct thread_call call = {SYS_prctl, 172, {PR_SET_DUMPABLE, value}};
    long result;
    return make_call(tid, place, &call, &result) && !result;
}

/* All threads of the process are stopped now. */
static int enter_process(struct process *process, int tid, uint64_t place)
{
    const struct thread_call get = {SYS_prctl, 172, {PR_GET_DUMPABLE}};
    long value;
    if (!make_call(tid, place, &get, &value))
        return 0;
    process->place = place;
    process->was_dumpable = value == 1;
    return !process->was_dumpable || set_dumpable(tid, place, 0);
}

/* No other process can open its memory from now on. Whether none has before. */
static int is_closed(const struct process *process)
{
    int holder = process->was_dumpable ? find_memory_holder(process->pid, process->inner, process->user) : -1;
    if (holder >= 0)
        dprintf(2, "crckpt's preload: process %d has system call filters, and process %d has its memory open\n", process->pid,
                holder);
    return holder < 0;
}

static void leave_process(struct process *process, int tid)
{
    int before = errno;
    if (process->was_dumpable && !set_dumpable(tid, process->place, 1))
        fail(process->pid, "did not get its dumpable flag back");
    process->place = 0;
    process->is_unmapping = 0;
    errno = before;
}

long write_word(int tid, const void *place, void *word)
{
    struct process *process = find_process(tid);
    if (process && process->is_refused) {
        errno = ECANCELED;
        return -1;
    }
    if (process && !process->place) {
        if (!enter_process(process, tid, (uintptr_t)place))
            return fail(tid, "did not make a call of crckpt's");
        if (!is_closed(process)) {
            leave_process(process, tid);
            process->is_refused = 1;
            errno = ECANCELED;
            return -1;
        }
    }
    long result = trace(PTRACE_POKEDATA, tid, place, word);
    if (!process || result)
        return result;
    int is_last = process->is_unmapping && process->written == (uintptr_t)place;
    process->written = (uintptr_t)place;
    if (is_last)
        leave_process(process, tid);
    return result;
}

void note_registers(int tid, struct filtered *thread, const struct iovec *registers)
{
    struct process *process = find_process(tid);
    struct call call;
    if ((!process && !thread->pid) || !read_call(registers, &call))
        return;
    thread->ip = call.ip;
    if (process && process->place && thread->ip == process->written)
        process->is_unmapping = call.result == (call.is_compat ? MUNMAP_32 : MUNMAP);
}

int prepare_to_run(int tid, const struct filtered *thread)
{
    struct process *process = find_process(thread->pid);
    struct thread_call call;
    if (!process || !process->place)
        return 1;
    if (thread->ip != process->written)
        return trace(PTRACE_SETOPTIONS, tid, NULL, (void *)(PTRACE_O_TRACESYSGOOD | SUSPEND_SECCOMP)) == 0;
    if (read_thread_call(tid, &call) && pass_call(tid, thread->ip, &call))
        return 1;
    fail(tid, "did not make a call of CRIU's");
    return 0;
}

void leave(int tid, const struct filtered *thread)
{
    struct process *process = find_process(thread->pid ? thread->pid : tid);
    if (process && process->place)
        leave_process(process, tid);
}

void note_image(int number, const char *name)
{
    const char *at = name + 3;
    int pid = 0;
    if (number < 0 || !starts_with(name, "mm-"))
        return;
    for (; *at >= '0' && *at <= '9'; at++)
        pid = 10 * pid + *at - '0';
    image = number;
    image_of = pid;
}

void correct_image(int number)
{
    struct stat status;
    int before = errno;
    struct process *one = (struct process *)processes.at, *end = one + processes.length / sizeof *one;
    if (number < 0 || number != image)
        return;
    image = -1;
    while (one < end && one->inner != image_of)
        one++;
    if (one < end && one->was_dumpable && !syscall(SYS_fstat, number, &status) && status.st_size > MESSAGE) {
        uint32_t length = status.st_size - MESSAGE + strlen(DUMPABLE);
        syscall(SYS_pwrite64, number, DUMPABLE, strlen(DUMPABLE), (long)status.st_size);
        syscall(SYS_pwrite64, number, &length, sizeof length, (long)LENGTH);
    }
    errno = before;
}
#endif
