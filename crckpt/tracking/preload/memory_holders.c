/*
 * Who has the memory of a process open (/proc/PID/mem) may write to it, whatever its dumpable flag is now. Look for such
 * descriptors of processes of the same user without root's rights, for a limited time: the tree is frozen.
 */
#ifdef __x86_64__
#include "filtered.h"

#include <time.h>

#define LONGEST_NS 50000000l /* for all processes */
#define ADMIN 21             /* CAP_SYS_ADMIN: it may do more than write to memory */

struct entry { /* struct linux_dirent64 */
    uint64_t inode, next;
    unsigned short length;
    unsigned char kind;
    char name[];
};

static struct bytes text;

static long now(void)
{
    struct timespec time = {0};
    syscall(SYS_clock_gettime, (long)CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000l + time.tv_nsec;
}

static int number_of(const char *name)
{
    int value = 0;
    for (; *name >= '0' && *name <= '9'; name++)
        value = 10 * value + *name - '0';
    return value;
}

/* Call `check` with the name of each entry that is a number, until that is true. Returns that number, or -1. */
static int find_entry(int directory, int (*check)(int directory, const char *name, void *data), void *data)
{
    char room[1 << 13] __attribute__((aligned(8)));
    long length;
    while (directory >= 0 && (length = syscall(SYS_getdents64, directory, room, sizeof room)) > 0)
        for (char *at = room; at < room + length; at += ((struct entry *)at)->length) {
            const char *name = ((struct entry *)at)->name;
            if (*name >= '0' && *name <= '9' && check(directory, name, data))
                return number_of(name);
        }
    return -1;
}

/* A search: `name` and `inner` are how paths name the process, with a slash on both sides. It ends at `until`. */
struct search {
    char name[16], inner[16];
    unsigned user;
    long until;
};

/* Whether the descriptor is of that memory: the number of the process may be another one in that /proc. */
static int is_memory(int directory, const char *name, void *data)
{
    const struct search *search = data;
    char path[256];
    long length = syscall(SYS_readlinkat, directory, name, path, sizeof path - 1);
    if (length < 5 || memcmp(path + length - 4, "/mem", 4))
        return 0;
    path[length] = 0;
    return strstr(path, search->name) || strstr(path, search->inner);
}

/* Whether it is of that user, and has not root's rights. Its files may be root's. */
static int is_candidate(int process, const struct search *search)
{
    struct stat status;
    if (syscall(SYS_fstat, process, &status) || (status.st_uid && status.st_uid != search->user))
        return 0;
    if (status.st_uid)
        return 1;
    const char *at = read_text(open_to_read(process, "status"), &text), *uids = at ? strstr(at, "\nUid:") : NULL;
    const char *rights = uids ? strstr(uids, "\nCapEff:\t") : NULL;
    int is_of_user = 0;
    for (unsigned value = 0; uids && *++uids != '\n';)
        if (*uids >= '0' && *uids <= '9') {
            value = (uids[-1] == '\t' ? 0 : 10 * value) + *uids - '0';
            is_of_user |= (uids[1] == '\t' || uids[1] == '\n') && value == search->user;
        }
    if (!is_of_user || !rights)
        return 0;
    rights += strlen("\nCapEff:\t");
    return !(parse_hex(&rights) >> ADMIN & 1);
}

static int has_memory(int proc, const char *name, void *data)
{
    struct search *search = data;
    if (now() > search->until || is_seized(number_of(name)))
        return 0;
    int process = syscall(SYS_openat, proc, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0), found = 0;
    if (process >= 0 && is_candidate(process, search)) {
        int descriptors = syscall(SYS_openat, process, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
        found = find_entry(descriptors, is_memory, search) >= 0;
        syscall(SYS_close, descriptors);
    }
    syscall(SYS_close, process);
    return found;
}

int find_memory_holder(int pid, int inner, unsigned user)
{
    static long spent;
    int before = errno;
    struct search search = {.user = user};
    long begin = now();
    search.until = begin + LONGEST_NS - spent;
    snprintf(search.name, sizeof search.name, "/%d/", pid);
    snprintf(search.inner, sizeof search.inner, "/%d/", inner);
    int proc = syscall(SYS_openat, AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    int found = find_entry(proc, has_memory, &search);
    syscall(SYS_close, proc);
    spent += now() - begin;
    errno = before;
    return found;
}
#endif
