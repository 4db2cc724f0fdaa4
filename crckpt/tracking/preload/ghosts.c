/*
 * For a restore, with links.c, a library of its own: CRIU makes removed files again in the directory where they were,
 * by paths: it creates NAME.cr.N.ghost there, changes whose it is and then its mode, links it to the name that the file
 * had, opens that, and removes both (criu/files-reg.c). The file is the user's between two of these steps, who can put
 * another in its place: what is changed here is the file that CRIU made, in a directory that no symlink leads to.
 */
#define _GNU_SOURCE
#include "links.h"
#include "opens.h"
#include "trusted.h"

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
        /* Files of the tree are below a root directory that CRIU has open. */
        return directory == AT_FDCWD ? syscall(SYS_openat, directory, path, flags, mode)
                                     : opened_by_trusted(directory, path, flags, mode);
    int parent = opened_parent(directory, path, last);
    return parent < 0 ? -1 : with_closed(parent, syscall(SYS_openat, parent, last, flags | O_NOFOLLOW, mode));
}

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
CHECKED_OPEN(__open_2)
CHECKED_OPEN(__open64_2)
CHECKED_OPENAT(__openat_2)
CHECKED_OPENAT(__openat64_2)

/* What has no other name, or is a directory, where hard links cannot be; of other names than CRIU's only a socket. */
static int opened_own(int directory, const char *path, struct stat *status)
{
    struct place place;
    if (!found_place(directory, path, 0, &place))
        return -1;
    int number = syscall(SYS_openat, place.directory, place.last, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
    if (with_closed(place.directory, number) < 0)
        return -1;
    if (!syscall(SYS_fstat, number, status) && (S_ISDIR(status->st_mode) || status->st_nlink == 1) &&
        (is_of_criu(place.last) || S_ISSOCK(status->st_mode)))
        return number;
    errno = EPERM;
    return with_closed(number, -1);
}

VISIBLE int fchownat(int directory, const char *path, uid_t user, gid_t group, int flags)
{
    struct stat status;
    if (!*path)
        return syscall(SYS_fchownat, directory, path, user, group, flags);
    int number = opened_own(directory, path, &status);
    if (number < 0)
        return -1;
    given.device = status.st_dev;
    given.inode = status.st_ino;
    return with_closed(number, syscall(SYS_fchownat, number, "", user, group, AT_EMPTY_PATH));
}

/* chmod(2) and connect(2) take no descriptor that was opened with O_PATH. */
const char *name_of(int number, char name[32])
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
    if (!*path || flags)
        return syscall(SYS_fchmodat, directory, path, mode);
    int number = opened_own(directory, path, &status);
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
    struct place place;
    const char *last = begin_of_last(path);
    if (directory == AT_FDCWD && !found_place(directory, path, 0, &place))
        return -1;
    if (directory == AT_FDCWD)
        return with_closed(place.directory, syscall(SYS_mkdirat, place.directory, place.last, mode));
    if (last == path)
        return syscall(SYS_mkdirat, directory, path, mode);
    int parent = opened_parent(directory, path, last);
    return parent < 0 ? -1 : with_closed(parent, syscall(SYS_mkdirat, parent, last, mode));
}
