/*
 * Part of the preload library for restores. CRIU makes removed files again in the directory where they were, by paths:
 * it creates NAME.cr.N.NUMBER.ghost there, changes its owner and then its mode, links it to the name that the file had,
 * opens that, and removes both (criu/files-reg.c). Between these steps the file belongs to the user, who can replace it:
 * so change only the file that CRIU made, in a directory that is reached through no symlink. The same holds for sockets.
 */
#include "restore_library.h"

struct identity {
    dev_t device;
    ino_t inode;
};

/* The regular file or socket that this process made last, and the file that it gave to its owner last: its mode is next. */
static struct identity made, given;

static int is_same(const struct stat *status, const struct identity *identity)
{
    return status->st_dev == identity->device && status->st_ino == identity->inode;
}

void remember_made(int number)
{
    struct stat status;
    if (syscall(SYS_fstat, number, &status))
        return;
    made = (struct identity){status.st_dev, status.st_ino};
    given = (struct identity){0}; /* a removed file's inode may be used again */
}

int open_file(int directory, const char *path, int flags, mode_t mode)
{
    const char *last = last_part(path);
    if (!(flags & O_CREAT) || !is_of_criu(last))
        /* CRIU opens files of the tree relative to a root directory that it has open. */
        return directory == AT_FDCWD ? syscall(SYS_openat, directory, path, flags, mode)
                                     : open_trusted(directory, path, flags, mode);
    int parent = open_parent(directory, path, last);
    if (parent < 0)
        return -1;
    int number = close_and_return(parent, syscall(SYS_openat, parent, last, flags | O_NOFOLLOW, mode));
    if (number >= 0 && flags & O_EXCL)
        remember_made(number);
    return number;
}

/* A directory that CRIU made is empty. The user may have put another in its place, but can remove that if it is empty. */
static int is_empty(int directory)
{
    char entries[1024];
    int number = syscall(SYS_openat, directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    /* The entries "." and "..", of 24 bytes each. */
    long length = syscall(SYS_getdents64, number, entries, sizeof entries);
    return close_and_return(number, length > 0 && length <= 48 && syscall(SYS_getdents64, number, entries, sizeof entries) == 0);
}

/*
 * Open a file that CRIU made: one without other names, or a directory. Of sockets and regular files it is the very one:
 * the directory's user can have exchanged it, or the directory, for one of root's. Only a socket has a name of its own.
 */
static int open_own(int directory, const char *path, struct stat *status)
{
    int number = open_place(directory, path, 0, 0);
    if (number < 0)
        return -1;
    if (!syscall(SYS_fstat, number, status) &&
        (S_ISDIR(status->st_mode) ? is_empty(number) : status->st_nlink == 1) &&
        (S_ISSOCK(status->st_mode) || is_of_criu(last_part(path))) &&
        (!(S_ISSOCK(status->st_mode) || S_ISREG(status->st_mode)) || is_same(status, &made)))
        return number;
    errno = EPERM;
    return close_and_return(number, -1);
}

VISIBLE int fchownat(int directory, const char *path, uid_t user, gid_t group, int flags)
{
    struct stat status;
    if (!*path)
        return syscall(SYS_fchownat, directory, path, user, group, flags);
    int number = open_own(directory, path, &status);
    if (number < 0)
        return -1;
    given = (struct identity){status.st_dev, status.st_ino};
    return close_and_return(number, syscall(SYS_fchownat, number, "", user, group, AT_EMPTY_PATH));
}

VISIBLE int fchmodat(int directory, const char *path, mode_t mode, int flags)
{
    struct stat status;
    char name[32];
    if (!*path || flags)
        return syscall(SYS_fchmodat, directory, path, mode);
    int number = open_own(directory, path, &status);
    if (number < 0)
        return -1;
    if (!is_same(&status, &given) || S_ISLNK(status.st_mode)) {
        errno = EPERM;
        return close_and_return(number, -1);
    }
    /* chmod(2) takes no descriptor that was opened with O_PATH. */
    snprintf(name, sizeof name, "/proc/self/fd/%d", number);
    return close_and_return(number, syscall(SYS_fchmodat, AT_FDCWD, name, mode));
}

/*
 * CRIU makes a removed directory again, by a name that crckpt gave it. If the directory of a removed file is gone, too, it
 * makes that again, relative to a root directory that it has open.
 */
VISIBLE int mkdirat(int directory, const char *path, mode_t mode)
{
    const char *last = last_part(path);
    if (directory == AT_FDCWD)
        return IN_PLACE(directory, path, syscall(SYS_mkdirat, place.directory, place.last, mode));
    if (last == path)
        return syscall(SYS_mkdirat, directory, path, mode);
    int parent = open_parent(directory, path, last);
    return parent < 0 ? -1 : close_and_return(parent, syscall(SYS_mkdirat, parent, last, mode));
}

VISIBLE ssize_t write(int number, const void *from, size_t length)
{
    return write_unread(number, from, length);
}
