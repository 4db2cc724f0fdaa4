/*
 * CRIU gives each thread the rights of the program on its own, and its code runs there before and after that. So in a
 * restore crckpt takes two things out of CRIU's images by which the program's user would control this code: the dumpable
 * flag, with which they may write to the memory of all threads, and restartable sequences (rseq(2)), with which the kernel
 * leaves the code for an address of theirs. Both are set here, when no task has code or files of CRIU any more: before CRIU
 * detaches from the first. All threads are stopped then, at the end of a system call. Each makes its calls itself, with the
 * rights of the program: first all sequences, then all flags.
 *
 * The instruction for it is in the vDSO. A program without a vDSO has it written over its next one, for that time.
 *
 * CRCKPT_LAST_CALLS names a file: a word that says how far we are (enum state), the number of records, and these (struct
 * record), in the order of their tids. crckpt writes them when it has read the images, perhaps after CRIU has started.
 */
#ifdef __x86_64__
#include "restore_library.h"
#include "thread_calls.h"

enum state { NOT_LOADED, LOADED, DONE };

struct record {
    uint32_t tid, is_dumpable;
    uint64_t vdso, area;
    uint32_t size, signature;
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

/* Find the instruction of a system call in the vDSO; 0: there is none. */
static uint64_t find_instruction(int tid, uint64_t vdso, const char *wanted)
{
    char code[2 << PAGE_SHIFT]; /* it has one page or two */
    struct iovec into = {code, sizeof code}, from[2];
    for (int i = 0; i < 2; i++)
        from[i] = (struct iovec){(char *)vdso + (i << PAGE_SHIFT), 1 << PAGE_SHIFT};
    ssize_t length = vdso ? syscall(SYS_process_vm_readv, (long)tid, &into, 1l, from, 2l, 0l) : 0;
    for (ssize_t i = 0; i + 8 <= length; i++) /* `make_call` reads so much */
        if (!memcmp(code + i, wanted, INSTRUCTION))
            return vdso + i;
    return 0;
}

/* Make the call in this thread. Whether it succeeded; if not, its process is killed. */
static int make_last_call(int tid, uint64_t vdso, const struct thread_call *call)
{
    struct user_regs_struct registers;
    long result;
    if (trace(PTRACE_GETREGS, tid, NULL, &registers))
        return fail(tid, "it is not stopped", errno);
    uint64_t place = find_instruction(tid, vdso, instruction_of(&registers));
    /* In a word, which lies in one page. */
    if (!make_call(tid, place ? place : registers.rip & ~7ull, call, &result))
        return fail(tid, "it did not make the call", call->number);
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
        const struct thread_call rseq = {SYS_rseq, 386, {records[i].area, records[i].size, 0, records[i].signature}};
        is_made = !records[i].area || make_last_call(tids[i], records[i].vdso, &rseq);
    }
    const struct thread_call dumpable = {SYS_prctl, 172, {PR_SET_DUMPABLE, 1}};
    for (uint32_t i = 0; is_made && i < count; i++)
        is_made = !records[i].is_dumpable || make_last_call(tids[i], records[i].vdso, &dumpable);
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
