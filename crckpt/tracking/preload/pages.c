/* How CRIU takes pages out of a process: with fewer calls while the tree is frozen, and without pinning afterwards. */
#include "dump_library.h"

/* More than any pipe holds. */
#define MOST (1ul << 30)

/* Pages that were moved from a pipe to a file before CRIU asked for them. */
static struct {
    int from, to;
    size_t length;
} ahead;

/*
 * CRIU moves the pages of a frozen tree into their image run by run. Where every tenth page was written, each is a run
 * of its own, for the price of a write. The first call here moves all that the pipe holds, to the end of the same file
 * and in the same order; CRIU's further calls are answered from that. An error is reported at once. Only for images of
 * pages does what follows in the pipe also follow in the file (criu/page-xfer.c, write_pages_loc).
 */
VISIBLE ssize_t splice(int from, off_t *from_place, int to, off_t *to_place, size_t length, unsigned flags)
{
    struct file *file;
    if (ahead.length) {
        if (from != ahead.from || to != ahead.to)
            return refuse("pages of another pipe or for another file, before it took all of one");
    } else {
        if (flags != SPLICE_F_MOVE || from_place || to_place || !(file = find_file(to)) || file->kind != PAGES)
            return syscall(SYS_splice, from, from_place, to, to_place, length, flags);
        long moved = syscall(SYS_splice, from, NULL, to, NULL, MOST, flags);
        if (moved <= 0)
            return moved;
        ahead.from = from;
        ahead.to = to;
        ahead.length = moved;
    }
    size_t answered = MIN(length, ahead.length);
    ahead.length -= answered;
    return answered;
}

void forget_moved(int number)
{
    if (number == ahead.from || number == ahead.to)
        ahead.from = -1;
}

/*
 * CRIU reads the pages of a round when the tree runs again, process by process. This call would pin them: of every page
 * that a process shares with its relatives since a fork the kernel would give it a copy of its own, for good. Reading
 * /proc/PID/mem does not, and can read what the program has protected in the meantime.
 */
VISIBLE ssize_t process_vm_readv(pid_t pid, const struct iovec *into, unsigned long places, const struct iovec *from,
                                 unsigned long runs, unsigned long flags)
{
    static int memory = -1, of;
    char name[32];
    size_t done = 0;
    if (tracker_is("soft-dirty") || !is_tracking())
        return syscall(SYS_process_vm_readv, pid, into, places, from, runs, flags);
    if (places != 1 || flags)
        return refuse("process_vm_readv into more than one place, or with flags");
    if (of != pid) {
        if (memory >= 0)
            syscall(SYS_close, memory);
        of = pid;
        snprintf(name, sizeof name, "/proc/%d/mem", pid);
        memory = open_to_read(AT_FDCWD, name);
    }
    for (; runs && done < into->iov_len; runs--, from++) {
        size_t end = done + MIN(from->iov_len, into->iov_len - done);
        off_t place = (uintptr_t)from->iov_base - done;
        while (done < end) {
            long found = syscall(SYS_pread64, memory, (char *)into->iov_base + done, end - done, place + done);
            if (found <= 0 && !done)
                errno = found && errno == EIO ? EFAULT : ESRCH;
            if (found <= 0)
                return done ? (ssize_t)done : -1;
            done += found;
        }
    }
    return done;
}
