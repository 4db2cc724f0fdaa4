/*
 * CRIU can dump a tree that has its own mounts (PrivateTmp= of systemd) if it is in the same mount namespace. But the
 * tree may be able to write what is mounted there: CRIU must use no program, library, configuration or cache from it. So
 * CRIU starts outside, and examines the kernel there. It enters the mount namespace when it first looks at the root of
 * the tree (to log its name, which CRIU does from 3.18 on), and keeps its root directory: each path that it opens,
 * executes or loads is still a path of the host. The exception are two files that CRIU reads to find the tree's files:
 * "/" is the root directory of the tree's mounts, and CRIU's own mountinfo lists these.
 *
 * The namespace is entered, and its owner is read, through one descriptor: the process may have changed its namespaces
 * since crckpt looked. Sources: setns(2), ioctl_nsfs(2); criu/mount.c, criu/proc_parse.c,
 * criu/namespaces.c of CRIU 4.2.
 */
#include "dump_library.h"

#include <linux/nsfs.h>
#include <linux/sched.h>

#define DIRECTORY (O_PATH | O_DIRECTORY | O_CLOEXEC)

/* `outside` is the host's root directory, `inside` that of the tree's mounts; `home` keeps the host's mounts alive. */
static struct {
    const char *pid;
    int is_entered, outside, inside, home;
} tree;

static void give_up(const char *why)
{
    dprintf(2, "crckpt's preload: the mounts of the tree cannot be entered: %s\n", why);
    syscall(SYS_exit_group, 1);
}

void prepare_to_enter(const char *pid)
{
    if (!*pid)
        return;
    if (*pid == '0' || pid[strspn(pid, "0123456789")])
        give_up("no PID was given");
    tree.pid = pid;
}

/* Open a namespace of the process with this name in /proc. */
static int open_namespace(int proc, const char *process, const char *kind)
{
    char name[64];
    snprintf(name, sizeof name, "%s/ns/%s", process, kind);
    return open_to_read(proc, name);
}

static int has_our_users(int proc, int namespace)
{
    struct stat owner, own;
    int owners = syscall(SYS_ioctl, namespace, NS_GET_USERNS, 0), users = open_namespace(proc, "self", "user");
    int is_same = owners >= 0 && users >= 0 && !syscall(SYS_fstat, owners, &owner) && !syscall(SYS_fstat, users, &own) &&
                  owner.st_dev == own.st_dev && owner.st_ino == own.st_ino;
    syscall(SYS_close, owners);
    syscall(SYS_close, users);
    return is_same;
}

static int open_directory(const char *path)
{
    return syscall(SYS_openat, AT_FDCWD, path, DIRECTORY, 0);
}

static int change_root(int directory)
{
    return !syscall(SYS_fchdir, directory) && !syscall(SYS_chroot, ".");
}

static void enter(void)
{
    int proc = open_directory("/proc"), namespace = open_namespace(proc, tree.pid, "mnt"), here = open_directory(".");
    if (namespace < 0)
        give_up("the process is gone");
    if (!has_our_users(proc, namespace))
        give_up("they belong to another user namespace");
    /* CRIU may be the only process in these mounts, which end with their last process. */
    tree.home = open_namespace(proc, "self", "mnt");
    tree.outside = open_directory("/");
    if (here < 0 || tree.home < 0 || tree.outside < 0)
        give_up("the host's directories cannot be opened");
    if (syscall(SYS_setns, namespace, CLONE_NEWNS))
        give_up("the kernel refuses it");
    tree.inside = open_directory("/");
    if (tree.inside < 0 || !change_root(tree.outside) || syscall(SYS_fchdir, here))
        give_up("there is no way back to the host's directories");
    syscall(SYS_close, here);
    syscall(SYS_close, namespace);
    syscall(SYS_close, proc);
    tree.is_entered = 1;
    dprintf(2, "crckpt's preload: entered the mounts of the tree\n");
}

/* mountinfo lists what can be reached from the root directory of the process that opens it. */
static int open_mount_table(int directory, const char *path, int flags)
{
    int here = open_directory("."), number = -1;
    if (here >= 0 && change_root(tree.inside))
        number = syscall(SYS_openat, directory, path, flags, 0);
    int why = errno;
    if (here < 0 || !change_root(tree.outside) || syscall(SYS_fchdir, here))
        give_up("there is no way back to the host's directories");
    syscall(SYS_close, here);
    errno = why;
    return number;
}

/* Whether CRIU opens a file of the tree's root in /proc, which is the time to enter. */
static int is_time(int directory, const char *path)
{
    if (directory != AT_FDCWD)
        return !strcmp(path, tree.pid);
    return starts_with(path, "/proc/") && starts_with(path + 6, tree.pid) && path[6 + strlen(tree.pid)] == '/';
}

int open_inside(int directory, const char *path, int flags, int *number)
{
    if (!tree.pid)
        return 0;
    if (!tree.is_entered && is_time(directory, path))
        enter();
    if (!tree.is_entered)
        return 0;
    if (!strcmp(path, "mountinfo") && !(flags & O_CREAT) && !pid_beside(directory, path, path)) {
        *number = open_mount_table(directory, path, flags);
        return 1;
    }
    /* Where CRIU means its own root directory it opens it without O_DIRECTORY (criu/sk-unix.c). */
    if (!strcmp(path, "/") && flags & O_DIRECTORY) {
        *number = syscall(SYS_openat, tree.inside, ".", flags, 0);
        return 1;
    }
    return 0;
}

/* Refuse CRIU's own setns(2): its root directory would become that of the mounts that it enters. */
VISIBLE int setns(int namespace, int kind)
{
    if (tree.is_entered && (kind ? kind : syscall(SYS_ioctl, namespace, NS_GET_NSTYPE, 0)) & CLONE_NEWNS) {
        errno = EPERM;
        return -1;
    }
    return syscall(SYS_setns, namespace, kind);
}
