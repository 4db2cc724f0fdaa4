/*
 * For a restore, with links.c, a library of its own: CRIU makes removed files again in the directory where they were,
 * by paths: it creates NAME.cr.N.ghost there, changes whose it is and then its mode, links it to the name that the file
 * had, opens that, and removes both (criu/files-reg.c). The file is the user's between two of these steps, who can put
 * another in its place: what is changed here is the file that CRIU made, in a directory that no symlink leads to.
 */
#define _GNU_SOURCE
#include "links.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))

#undef open64
#undef openat64

/* Of the file that CRIU gave to its owner last: its mode comes next. */
static struct {
    dev_t device;
    ino_t inode;
} given;

static int opened(int directory, const char *path, int flags, mode_t mode)
{
    const char *last = begin_of_last(path);
    if (!(flags & O_CREAT) || !is_of_criu(last))
        return syscall(SYS_openat, directory, path, flags, mode);
    int parent = opened_parent(directory, path, last);
    return parent < 0 ? -1 : with_closed(parent, syscall(SYS_openat, parent, last, flags | O_NOFOLLOW, mode));
}

#define MODE                                                    \
    mode_t mode = 0;                                            \
    if (flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) {       \
        va_list more;                                           \
        va_start(more, flags);                                  \
        mode = va_arg(more, mode_t);                            \
        va_end(more);                                           \
    }

#define OPEN(name)                                              \
    VISIBLE int name(const char *path, int flags, ...)          \
    {                                                           \
        MODE return opened(AT_FDCWD, path, flags, mode);        \
    }
#define OPENAT(name)                                            \
    VISIBLE int name(int at, const char *path, int flags, ...)  \
    {                                                           \
        MODE return opened(at, path, flags, mode);              \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* What has no other name, or is a directory, where hard links cannot be. */
static int opened_own(int directory, const char *path, const char *last, struct stat *status)
{
    int parent = opened_parent(directory, path, last);
    if (parent < 0)
        return -1;
    int number = with_closed(parent, syscall(SYS_openat, parent, last, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0));
    if (number < 0)
        return -1;
    if (!syscall(SYS_fstat, number, status) && (S_ISDIR(status->st_mode) || status->st_nlink == 1))
        return number;
    errno = EPERM;
    return with_closed(number, -1);
}

VISIBLE int fchownat(int directory, const char *path, uid_t user, gid_t group, int flags)
{
    struct stat status;
    const char *last = begin_of_last(path);
    if (!is_of_criu(last))
        return syscall(SYS_fchownat, directory, path, user, group, flags);
    int number = opened_own(directory, path, last, &status);
    if (number < 0)
        return -1;
    given.device = status.st_dev;
    given.inode = status.st_ino;
    return with_closed(number, syscall(SYS_fchownat, number, "", user, group, AT_EMPTY_PATH));
}

/* The path of the descriptor in /proc: chmod(2) takes none that was opened with O_PATH. */
static const char *name_of(int number, char name[32])
{
    char digits[16], *at = name;
    int count = 0;
    for (const char *begin = "/proc/self/fd/"; *begin;)
        *at++ = *begin++;
    do
        digits[count++] = '0' + number % 10;
    while (number /= 10);
    while (count)
        *at++ = digits[--count];
    *at = 0;
    return name;
}

VISIBLE int fchmodat(int directory, const char *path, mode_t mode, int flags)
{
    struct stat status;
    char name[32];
    const char *last = begin_of_last(path);
    if (!is_of_criu(last) || flags)
        return syscall(SYS_fchmodat, directory, path, mode);
    int number = opened_own(directory, path, last, &status);
    if (number < 0)
        return -1;
    if (status.st_dev != given.device || status.st_ino != given.inode || S_ISLNK(status.st_mode)) {
        errno = EPERM;
        return with_closed(number, -1);
    }
    return with_closed(number, syscall(SYS_fchmodat, AT_FDCWD, name_of(number, name), mode));
}

/* Where the directory of a removed file is gone, too, CRIU makes it again, below a root directory that it has open. */
VISIBLE int mkdirat(int directory, const char *path, mode_t mode)
{
    const char *last = begin_of_last(path);
    if (directory == AT_FDCWD || last == path)
        return syscall(SYS_mkdirat, directory, path, mode);
    int parent = opened_parent(directory, path, last);
    return parent < 0 ? -1 : with_closed(parent, syscall(SYS_mkdirat, parent, last, mode));
}
