/*
 * A restore makes sockets, pipes and the like as root, and opens files as root; and the kernel remembers who did: it takes
 * a socket for root's in firewall rules and in SO_REUSEPORT, charges watches to root, and judges what is done to many files
 * of /proc and of control groups by who has opened them. So do it with user and groups of the process that had it. CRIU
 * does it in that process, whose PID is the right one already. Where the user may not, it is done as root: the program may
 * have got it from root, and crckpt judges in the hold whether it may keep it.
 *
 * The kernel also remembers in which control group a socket was made and memory first used. So a process that comes back to
 * control groups enters them before anything else; in the hold crckpt makes sure that it is there.
 *
 * CRCKPT_HOLDERS names a file of numbers: PID, user, group, the number of other groups, and these; for each process, until
 * a zero. Then for each control group: PID, the number of words of its path, and the path of its cgroup.procs, with zeros at
 * its end; until a zero. crckpt writes it when it has read the images, which may be after CRIU has started.
 */
#include "restore_library.h"

#include <linux/capability.h>
#include <sys/prctl.h>

#define MOST_GROUPS 65536 /* NGROUPS_MAX of linux/limits.h */

struct rights {
    uid_t users[3];
    gid_t groups[3], others[MOST_GROUPS];
    int count, dumpable, death;
};

static const uint32_t *table, *table_end;
static pid_t started_as, makes_files_as;
/* Of this process: each is looked for once. */
static struct {
    pid_t pid;
    const uint32_t *found;
} own;
static struct rights before;

__attribute__((constructor)) static void map_table(void)
{
    struct stat status;
    const char *path = variable("CRCKPT_HOLDERS");
    int number = *path ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC, 0) : -1;
    if (number < 0)
        return;
    if (!syscall(SYS_fstat, number, &status)) {
        long place = syscall(SYS_mmap, NULL, status.st_size, PROT_READ, MAP_SHARED, number, 0l);
        if (place != -1) {
            table = (const uint32_t *)place;
            table_end = table + status.st_size / sizeof *table;
            started_as = syscall(SYS_getpid);
        }
    }
    syscall(SYS_close, number);
}

static void enter_control_groups(const uint32_t *one, pid_t pid)
{
    for (; one + 2 < table_end && *one && one[1] && one[1] < table_end - one - 1; one += 2 + one[1]) {
        const char *path = (const char *)(one + 2);
        if (one[0] != (uint32_t)pid || path[4 * one[1] - 1])
            continue;
        int number = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
        if (number >= 0) {
            syscall(SYS_write, number, "0", 1l); /* the process that writes */
            syscall(SYS_close, number);
        }
    }
}

int is_criu_itself(void)
{
    return table && syscall(SYS_getpid) == started_as;
}

void begin_files(void)
{
    makes_files_as = syscall(SYS_getpid);
}

/* The record of this process, or NULL. In CRIU itself there is none, whatever its PID. */
static const uint32_t *find_holder(void)
{
    pid_t pid = syscall(SYS_getpid);
    if (!table || is_criu_itself())
        return NULL;
    if (own.pid == pid)
        return own.found;
    own.pid = pid;
    own.found = NULL;
    const uint32_t *one = table;
    for (; one + 4 <= table_end && *one; one += 4 + one[3])
        if (one[3] > MOST_GROUPS || one + 4 + one[3] > table_end)
            return NULL;
        else if (one[0] == (uint32_t)pid)
            own.found = one;
    enter_control_groups(one + 1, pid);
    return own.found;
}

static int note_rights(void)
{
    uid_t *user = before.users;
    gid_t *group = before.groups;
    before.count = syscall(SYS_getgroups, MOST_GROUPS, before.others);
    before.dumpable = syscall(SYS_prctl, PR_GET_DUMPABLE, 0l, 0l, 0l, 0l);
    return before.count >= 0 && !syscall(SYS_getresuid, &user[0], &user[1], &user[2]) && user[1] == 0 && user[2] == 0 &&
           !syscall(SYS_getresgid, &group[0], &group[1], &group[2]) &&
           !syscall(SYS_prctl, PR_GET_PDEATHSIG, &before.death, 0l, 0l, 0l);
}

int become_holder(void)
{
    const uint32_t *holder = find_holder();
    if (!holder || !holder[1] || !note_rights())
        return 0;
    /* The saved user stays root's: with it we come back. */
    if (!syscall(SYS_setgroups, (long)holder[3], holder + 4) && !syscall(SYS_setresgid, (long)holder[2], (long)holder[2], -1l) &&
        !syscall(SYS_setresuid, (long)holder[1], (long)holder[1], -1l))
        return 1;
    become_builder();
    return 0;
}

void become_builder(void)
{
    int why = errno;
    if (syscall(SYS_setresuid, (long)before.users[0], 0l, -1l) ||
        syscall(SYS_setresgid, (long)before.groups[0], (long)before.groups[1], -1l) ||
        syscall(SYS_setgroups, (long)before.count, before.others))
        syscall(SYS_exit_group, 1l);
    /* The kernel resets both when a process gets other rights. */
    syscall(SYS_prctl, PR_SET_PDEATHSIG, (long)before.death, 0l, 0l, 0l);
    syscall(SYS_prctl, PR_SET_DUMPABLE, (long)before.dumpable, 0l, 0l, 0l);
    errno = why;
}

/* Have root's capabilities as another user, until `become_builder`. */
static void have_all_rights(void)
{
    struct __user_cap_header_struct version = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct rights[_LINUX_CAPABILITY_U32S_3];
    if (syscall(SYS_capget, &version, rights))
        return;
    for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
        rights[i].effective = rights[i].permitted;
    syscall(SYS_capset, &version, rights);
}

/* Make the call as the holder, and as root if that is not allowed. */
#define MAKE(...)                                                                \
    long made;                                                                   \
    if (AS_HOLDER(made, syscall(__VA_ARGS__)) && (made >= 0 || !is_forbidden())) \
        return made;                                                             \
    return syscall(__VA_ARGS__);

VISIBLE int socket(int family, int type, int protocol)
{
    /*
     * The kernel allows what whoever has made it and whoever writes to it may do: that may be a set-user-id program, to
     * which it was given as its output. So never make it as root instead. But CRIU itself needs netlink, as root, for a
     * network namespace that it makes: before the process makes its files.
     */
    int is_netlink = family == AF_NETLINK;
    if (is_netlink && makes_files_as != syscall(SYS_getpid))
        return syscall(SYS_socket, family, type, protocol);
    long made;
    if (AS_HOLDER(made, syscall(SYS_socket, family, type, protocol)) && (made >= 0 || is_netlink || !is_forbidden()))
        return made;
    /* The program may have the right that this takes, without being root: rules for packets go by users. */
    int is_other = become_holder();
    if (is_other)
        have_all_rights();
    made = syscall(SYS_socket, family, type, protocol);
    if (is_other)
        become_builder();
    return made;
}

VISIBLE int socketpair(int family, int type, int protocol, int ends[2])
{
    MAKE(SYS_socketpair, family, type, protocol, ends)
}

VISIBLE int pipe(int ends[2])
{
    MAKE(SYS_pipe2, ends, 0l)
}

VISIBLE int epoll_create(int size)
{
    if (size <= 0) {
        errno = EINVAL;
        return -1;
    }
    MAKE(SYS_epoll_create1, 0l)
}

VISIBLE int inotify_init1(int flags)
{
    MAKE(SYS_inotify_init1, flags)
}

VISIBLE int inotify_init(void)
{
    MAKE(SYS_inotify_init1, 0l)
}

VISIBLE int fanotify_init(unsigned flags, unsigned event_flags)
{
    MAKE(SYS_fanotify_init, flags, event_flags)
}

/* Make the call as the holder, and never as root: what it may watch or lease depends on the caller's rights alone. */
#define MAKE_ONLY(...)                               \
    long made;                                       \
    if (AS_HOLDER(made, syscall(__VA_ARGS__)))       \
        return made;                                 \
    return syscall(__VA_ARGS__);

/* CRIU finds what was watched by its path, where the file of another user may be by now. */
VISIBLE int inotify_add_watch(int number, const char *path, uint32_t mask)
{
    MAKE_ONLY(SYS_inotify_add_watch, number, path, mask)
}

VISIBLE int fanotify_mark(int number, unsigned flags, uint64_t mask, int directory, const char *path)
{
    MAKE_ONLY(SYS_fanotify_mark, number, flags, mask, directory, path)
}

#undef fcntl64

VISIBLE int fcntl(int number, int command, ...)
{
    va_list more;
    va_start(more, command);
    long value = va_arg(more, long);
    va_end(more);
    /* The kernel makes the caller the owner of the signals; CRIU would set the lease as the owner of the file. */
    if (command == F_SETLEASE) {
        MAKE_ONLY(SYS_fcntl, number, command, value)
    }
    return syscall(SYS_fcntl, number, command, value);
}

ALIAS(fcntl64, fcntl);
