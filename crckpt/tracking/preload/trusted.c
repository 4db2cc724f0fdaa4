/*
 * A restore opens by path, with root's rights, what the tree had open. A user who owns a directory of the path can have
 * replaced a file or directory by a symlink since the dump, and the tree would get a file of root's, to read and to
 * write. The path of a file comes from the kernel, so it had no symlink. But root may have moved a directory since, and
 * a program may have given its socket a name with a symlink in it (/var/run). So follow a symlink only if root owns it
 * and all directories before it: only root can have put it there. In a directory like /tmp the owner of the symlink
 * counts.
 */
#define _GNU_SOURCE
#include "trusted.h"
#include "holders.h"
#include "links.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define MOST_LINKS 40
#define LONGEST_PATH 4096
#define ONLY_NAME (O_PATH | O_NOFOLLOW | O_CLOEXEC)

struct walk {
    struct place *place;
    int is_trusted, links;
    char rest[2 * LONGEST_PATH];
};

static int fail_walk(struct walk *walk, int why)
{
    if (walk->place->directory >= 0)
        syscall(SYS_close, walk->place->directory);
    walk->place->directory = -1;
    errno = why;
    return 0;
}

static int is_roots(uid_t user)
{
    return user == 0 || user == (uid_t)syscall(SYS_geteuid);
}

/* Go on from this open directory. */
static int enter_directory(struct walk *walk, int number)
{
    struct stat status;
    int why = errno;
    if (walk->place->directory >= 0)
        syscall(SYS_close, walk->place->directory);
    walk->place->directory = number;
    if (number < 0 || syscall(SYS_fstat, number, &status))
        return fail_walk(walk, number < 0 ? why : errno);
    int is_shared = status.st_mode & (S_IWGRP | S_IWOTH);
    if (walk->is_trusted && !is_roots(status.st_uid))
        walk->place->user = status.st_uid;
    if (!is_roots(status.st_uid) || (is_shared && !(status.st_mode & S_ISVTX)))
        walk->is_trusted = 0;
    walk->place->is_roots = walk->is_trusted && !is_shared;
    return 1;
}

static int enter_root(struct walk *walk)
{
    walk->is_trusted = 1;
    walk->place->user = 0;
    return enter_directory(walk, syscall(SYS_openat, AT_FDCWD, "/", O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
}

static size_t length_of(const char *text)
{
    size_t length = 0;
    while (text[length])
        length++;
    return length;
}

/* Move the next part of the path into `last`. Whether more parts follow; -1 if it is too long. */
static int next_part(struct walk *walk)
{
    char *from = walk->rest, *into = walk->rest;
    size_t length = 0;
    while (*from && *from != '/' && length < sizeof walk->place->last - 1)
        walk->place->last[length++] = *from++;
    walk->place->last[length] = 0;
    if (*from && *from != '/')
        return -1;
    while (*from == '/')
        from++;
    while ((*into++ = *from++))
        ;
    return *walk->rest != 0;
}

/* Put the text of this open symlink before the rest of the path. */
static int follow_symlink(struct walk *walk, int symlink)
{
    char text[LONGEST_PATH];
    long length = syscall(SYS_readlinkat, symlink, "", text, sizeof text - 1);
    size_t rest = length_of(walk->rest), skipped = 0;
    syscall(SYS_close, symlink);
    if (length <= 0)
        return fail_walk(walk, ENOENT);
    if (++walk->links > MOST_LINKS || length + rest + 2 > sizeof walk->rest)
        return fail_walk(walk, ELOOP);
    if (*text == '/' && !enter_root(walk))
        return 0;
    while (skipped < (size_t)length && text[skipped] == '/')
        skipped++;
    length -= skipped;
    for (size_t i = rest + 1; i-- > 0;)
        walk->rest[i + length + 1] = walk->rest[i];
    walk->rest[length] = '/';
    for (long i = 0; i < length; i++)
        walk->rest[i] = text[skipped + i];
    if (!rest)
        walk->rest[length] = 0;
    return 1;
}

/* Never a magic link of /proc: it leads wherever a process has gone. */
static int may_follow(struct walk *walk, int symlink, const struct stat *status)
{
    struct statfs there;
    return walk->is_trusted && is_roots(status->st_uid) && !syscall(SYS_fstatfs, symlink, &there) &&
           there.f_type != PROC_SUPER_MAGIC;
}

static int begin_walk(struct walk *walk, int directory, const char *path)
{
    size_t length = length_of(path);
    if (!length || length >= LONGEST_PATH)
        return fail_walk(walk, length ? ENAMETOOLONG : ENOENT);
    char *into = walk->rest;
    int is_begun;
    if (*path == '/' || directory != AT_FDCWD)
        is_begun = *path == '/' ? enter_root(walk) : enter_directory(walk, syscall(SYS_openat, directory, ".", ONLY_NAME, 0));
    else {
        /* The owners of the directories above the working directory count, too. */
        long end = syscall(SYS_getcwd, walk->rest, LONGEST_PATH);
        if (end <= 0 || *walk->rest != '/')
            return fail_walk(walk, ENOENT);
        for (long i = 0; i < end - 1; i++)
            walk->rest[i] = walk->rest[i + 1];
        into += end - 2;
        *into++ = '/';
        is_begun = enter_root(walk);
    }
    while (*path == '/')
        path++;
    while ((*into++ = *path++))
        ;
    return is_begun;
}

static int is_own(const char *name)
{
    return !*name || (name[0] == '.' && !name[1]);
}

int find_place(int directory, const char *path, int is_last_followed, struct place *place)
{
    struct walk walk;
    struct stat status;
    walk.place = place;
    walk.is_trusted = 1;
    walk.links = 0;
    place->directory = -1;
    place->user = 0;
    place->is_roots = 0;
    if (!begin_walk(&walk, directory, path))
        return 0;
    for (;;) {
        int is_more = next_part(&walk);
        if (is_more < 0)
            return fail_walk(&walk, ENAMETOOLONG);
        if (is_own(place->last) && is_more)
            continue;
        if (!is_more && (is_own(place->last) || !is_last_followed))
            break;
        int number = syscall(SYS_openat, place->directory, place->last, ONLY_NAME, 0);
        if (number < 0 && !is_more && errno == ENOENT)
            break;
        if (number < 0 || syscall(SYS_fstat, number, &status))
            return fail_walk(&walk, errno);
        if (S_ISLNK(status.st_mode)) {
            if (!may_follow(&walk, number, &status))
                return close_and_return(number, fail_walk(&walk, ELOOP));
            if (!follow_symlink(&walk, number))
                return 0;
        } else if (!is_more) {
            syscall(SYS_close, number);
            break;
        } else if (!enter_directory(&walk, number))
            return 0;
    }
    if (!*place->last) {
        place->last[0] = '.';
        place->last[1] = 0;
    }
    return 1;
}

static int is_of_proc(int directory)
{
    struct statfs there;
    return !syscall(SYS_fstatfs, directory, &there) && there.f_type == PROC_SUPER_MAGIC;
}

typedef long opener(int directory, const char *path, int flags, mode_t mode);

static long open_plainly(int directory, const char *path, int flags, mode_t mode)
{
    return syscall(SYS_openat, directory, path, flags, mode);
}

static long open_without_symlinks(int directory, const char *path, int flags, mode_t mode)
{
    struct open_how how = {.flags = (unsigned)flags, .resolve = RESOLVE_NO_SYMLINKS};
    if (flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)))
        how.mode = mode & 07777;
    return syscall(SYS_openat2, directory, path, &how, sizeof how);
}

/* With the rights of the process that has it; as root, if these do not do. */
static long open_as_holder(opener *how, int directory, const char *path, int flags, mode_t mode)
{
    if (!(flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) && become_holder()) {
        long number = how(directory, path, flags, mode);
        become_builder();
        if (number >= 0)
            return number;
    }
    return how(directory, path, flags, mode);
}

/* Mostly there is no symlink at all. Directories of /proc are CRIU's own, and not checked. */
int open_trusted(int directory, const char *path, int flags, mode_t mode)
{
    struct place place;
    int is_criu = is_of_proc(directory);
    opener *how = open_without_symlinks;
    long number = is_criu ? how(directory, path, flags, mode) : open_as_holder(how, directory, path, flags, mode);
    if (number >= 0 || (errno != ELOOP && errno != ENOSYS && errno != EINVAL))
        return number;
    if (is_criu)
        return open_plainly(directory, path, flags, mode);
    if (!find_place(directory, path, !(flags & O_NOFOLLOW), &place))
        return -1;
    return close_and_return(place.directory, open_as_holder(open_plainly, place.directory, place.last, flags | O_NOFOLLOW, mode));
}
