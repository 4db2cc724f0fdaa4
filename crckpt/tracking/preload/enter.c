/*
 * CRIU dumps a tree that has mounts of its own (PrivateTmp= of systemd) if it is in the same mount namespace. But what
 * is mounted there may be the tree's to write: no program, library, configuration or cache in it may be used. So CRIU
 * starts outside, and looks at the kernel there. It enters the mount namespace when it first looks at the root of the
 * tree (to log its name, which CRIU does from 3.18 on), and keeps the root directory that it had: each path that it opens,
 * executes or loads is a path of the host, as before. Two files are the exception, which CRIU reads to find the files of
 * the tree: "/" is the root directory of the tree's mounts, and its own mountinfo lists these.
 *
 * The owner of the namespace is asked for through the same descriptor by which it is entered: the process may have
 * changed its namespaces since crckpt looked. Sources: setns(2), ioctl_nsfs(2); criu/mount.c, criu/proc_parse.c,
 * criu/namespaces.c of CRIU 4.2.
 */
#define _GNU_SOURCE
#include "enter.h"
#include "text.h"

#include <errno.h>
#include <linux/nsfs.h>
#include <linux/sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DIRECTORY (O_PATH | O_DIRECTORY | O_CLOEXEC)

/* `outside` is the host's root directory, `inside` that of the tree's mounts; `home` keeps the mounts of the former. */
static struct {
    const char *pid;
    int is_entered, outside, inside, home;
} tree;

static void give_up(const char *why)
{
    say("crckpt's preload: the mounts of the tree cannot be entered: ");
    say(why);
    say("\n");
    syscall(SYS_exit_group, 1);
}

static int is_number(const char *text)
{
    if (!*text || *text == '0')
        return 0;
    while (*text >= '0' && *text <= '9')
        text++;
    return !*text;
}

void prepare_to_enter(const char *pid)
{
    if (!*pid)
        return;
    if (!is_number(pid))
        give_up("no PID was given");
    tree.pid = pid;
}

/* Of the process that is called so in this /proc. */
static int opened_namespace(int proc, const char *process, const char *kind)
{
    char name[64], *at = name;
    while (*process && at < name + 32)
        *at++ = *process++;
    for (const char *rest = "/ns/"; *rest;)
        *at++ = *rest++;
    while ((*at++ = *kind))
        kind++;
    return syscall(SYS_openat, proc, name, O_RDONLY | O_CLOEXEC, 0);
}

static int is_ours(int proc, int namespace)
{
    struct stat owner, own;
    int owners = syscall(SYS_ioctl, namespace, NS_GET_USERNS, 0), users = opened_namespace(proc, "self", "user");
    int is_same = owners >= 0 && users >= 0 && !syscall(SYS_fstat, owners, &owner) && !syscall(SYS_fstat, users, &own) &&
                  owner.st_dev == own.st_dev && owner.st_ino == own.st_ino;
    syscall(SYS_close, owners);
    syscall(SYS_close, users);
    return is_same;
}

static int opened_directory(const char *path)
{
    return syscall(SYS_openat, AT_FDCWD, path, DIRECTORY, 0);
}

static int has_root(int directory)
{
    return !syscall(SYS_fchdir, directory) && !syscall(SYS_chroot, ".");
}

static void enter(void)
{
    int proc = opened_directory("/proc"), namespace = opened_namespace(proc, tree.pid, "mnt"), here = opened_directory(".");
    if (namespace < 0)
        give_up("the process is gone");
    if (!is_ours(proc, namespace))
        give_up("they belong to another user namespace");
    /* These mounts may be a copy that nobody else is in, and would go with its last process. */
    tree.home = opened_namespace(proc, "self", "mnt");
    tree.outside = opened_directory("/");
    if (here < 0 || tree.home < 0 || tree.outside < 0)
        give_up("the host's directories cannot be opened");
    if (syscall(SYS_setns, namespace, CLONE_NEWNS))
        give_up("the kernel refuses it");
    tree.inside = opened_directory("/");
    if (tree.inside < 0 || !has_root(tree.outside) || syscall(SYS_fchdir, here))
        give_up("there is no way back to the host's directories");
    syscall(SYS_close, here);
    syscall(SYS_close, namespace);
    syscall(SYS_close, proc);
    tree.is_entered = 1;
    say("crckpt's preload: entered the mounts of the tree\n");
}

/* The table shows what can be reached from the root directory of who opens it. */
static int opened_mount_table(int directory, const char *path, int flags)
{
    int here = opened_directory("."), number = -1;
    if (here >= 0 && has_root(tree.inside))
        number = syscall(SYS_openat, directory, path, flags, 0);
    int before = errno;
    if (here < 0 || !has_root(tree.outside) || syscall(SYS_fchdir, here))
        give_up("there is no way back to the host's directories");
    syscall(SYS_close, here);
    errno = before;
    return number;
}

int is_mount_table(const char *path)
{
    return tree.is_entered && same(path, "mountinfo");
}

/* A file of the root in /proc. */
static int is_time(int directory, const char *path)
{
    const char *proc = "/proc/", *pid = tree.pid;
    if (directory != AT_FDCWD)
        return same(path, pid);
    while (*proc && *proc == *path)
        proc++, path++;
    while (!*proc && *pid && *pid == *path)
        pid++, path++;
    return !*proc && !*pid && *path == '/';
}

int opened_inside(int directory, const char *path, int flags, int is_own, int *number)
{
    if (!tree.pid)
        return 0;
    if (!tree.is_entered && is_time(directory, path))
        enter();
    if (!tree.is_entered)
        return 0;
    if (is_mount_table(path) && is_own && !(flags & O_CREAT)) {
        *number = opened_mount_table(directory, path, flags);
        return 1;
    }
    /* CRIU opens it without O_DIRECTORY where it means its own (criu/sk-unix.c). */
    if (same(path, "/") && flags & O_DIRECTORY) {
        *number = syscall(SYS_openat, tree.inside, ".", flags, 0);
        return 1;
    }
    return 0;
}

/* With it CRIU's root directory would become that of the mounts which it enters. */
__attribute__((visibility("default"))) int setns(int namespace, int kind)
{
    if (tree.is_entered && (kind ? kind : syscall(SYS_ioctl, namespace, NS_GET_NSTYPE, 0)) & CLONE_NEWNS) {
        errno = EPERM;
        return -1;
    }
    return syscall(SYS_setns, namespace, kind);
}
