/*
 * CRIU and its code in a frozen process share memory (compel/src/lib/infect.c): CRIU has the process make a memory file,
 * opens it by its number, /proc/PID/fd/N, and maps it. Processes outside the tree run meanwhile, and those of the same user
 * can change what the process does: by its memory, by code that both map, by shared descriptors (CLONE_FILES).
 *
 *   - The number may be that of another file, which CRIU would open as root, to write, and cut. So CRIU gets the process's
 *     descriptor (pidfd_getfd(2), Linux 5.6), which allows what the process may do.
 *   - "There are no memory files": then CRIU would open a map of the process's, to write. Every kernel for us has them.
 *   - CRIU keeps a number in the memory by which it finds where to write (criu/include/parasite.h, pargs_iovs): a number of
 *     32 bits, of maps that take 24 bytes each. So the memory is where nothing else is within its reach.
 */
#include "dump_library.h"

#define OF_DESCRIPTOR "fd/"
#define OF_MAP "map_files/"
/* Below programs, libraries and stacks by more than any such number can lead to: that is 96 GiB. */
#define PLACE (64ull << 30)
#define BETWEEN (1ull << 20)

static int shared = -1;
/* Each one is above the one before. */
static uint64_t next_place = PLACE;

int take_descriptor(int pid, int number)
{
    long process = syscall(SYS_pidfd_open, (long)pid, 0l);
    return process < 0 ? -1 : close_and_return(process, syscall(SYS_pidfd_getfd, process, (long)number, 0l));
}

int open_shared(int directory, const char *path, int flags, int *number)
{
    int of_process = 0;
    if ((flags & O_ACCMODE) == O_RDONLY || directory == AT_FDCWD || !is_of_proc(directory))
        return 0;
    if (starts_with(path, OF_MAP)) {
        *number = refuse("to write to a map of a process");
        return 1;
    }
    if (!starts_with(path, OF_DESCRIPTOR))
        return 0;
    for (const char *at = path + strlen(OF_DESCRIPTOR); *at >= '0' && *at <= '9'; at++)
        of_process = 10 * of_process + *at - '0';
    *number = shared = take_descriptor(pid_in(directory, "stat"), of_process);
    return 1;
}

VISIBLE void *mmap(void *at, size_t length, int rights, int flags, int number, off_t offset)
{
    if (number >= 0 && number == shared && !at) {
        shared = -1;
        at = (void *)next_place;
        flags |= MAP_FIXED_NOREPLACE;
        next_place += (length + BETWEEN) / BETWEEN * BETWEEN + BETWEEN;
    }
    return (void *)syscall(SYS_mmap, at, length, rights, flags, number, offset);
}
ALIAS(mmap64, mmap);
