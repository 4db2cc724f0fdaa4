/*
 * A restore opens by path, with root's rights, what the tree had open. A user who owns a directory of the path can have
 * replaced a file or directory by a symlink since the dump, and the tree would get a file of root's, to read and to
 * write. The path of a file comes from the kernel, so it had no symlink. But root may have moved a directory since, and
 * a program may have given its socket a name with a symlink in it (/var/run). So follow a symlink only if root owns it
 * and all directories before it: only root can have put it there. In a directory like /tmp the owner of the symlink
 * counts.
 */
#include "restore_library.h"

#include <linux/openat2.h>

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

/* Move the next part of the path into `last`. Whether more parts follow; -1 if it is too long. */
static int next_part(struct walk *walk)
{
    size_t length = strcspn(walk->rest, "/"), next = length + strspn(walk->rest + length, "/");
    if (length >= sizeof walk->place->last)
        return -1;
    memcpy(walk->place->last, walk->rest, length);
    walk->place->last[length] = 0;
    memmove(walk->rest, walk->rest + next, strlen(walk->rest + next) + 1);
    return *walk->rest != 0;
}

/* Put the text of this open symlink before the rest of the path. */
static int follow_symlink(struct walk *walk, int symlink)
{
    char text[LONGEST_PATH], rest[sizeof walk->rest];
    long length = syscall(SYS_readlinkat, symlink, "", text, sizeof text - 1);
    syscall(SYS_close, symlink);
    if (length <= 0)
        return fail_walk(walk, ENOENT);
    text[length] = 0;
    strcpy(rest, walk->rest);
    length = snprintf(walk->rest, sizeof rest, "%s%s%s", text + strspn(text, "/"), *rest ? "/" : "", rest);
    if (++walk->links > MOST_LINKS || length >= (long)sizeof rest)
        return fail_walk(walk, ELOOP);
    return *text != '/' || enter_root(walk);
}

/* Never a magic link of /proc: it leads wherever a process has gone. */
static int may_follow(struct walk *walk, int symlink, const struct stat *status)
{
    return walk->is_trusted && is_roots(status->st_uid) && !is_of_proc(symlink);
}

static int begin_walk(struct walk *walk, int directory, const char *path)
{
    char here[LONGEST_PATH] = "";
    if (!*path || strlen(path) >= LONGEST_PATH)
        return fail_walk(walk, *path ? ENAMETOOLONG : ENOENT);
    /* The owners of the directories above the working directory count, too. */
    if (*path != '/' && directory == AT_FDCWD && (syscall(SYS_getcwd, here, sizeof here) <= 0 || *here != '/'))
        return fail_walk(walk, ENOENT);
    const char *slash = *here ? "/" : "", *above = here + strspn(here, "/");
    snprintf(walk->rest, sizeof walk->rest, "%s%s%s", above, slash, path + strspn(path, "/"));
    if (*path == '/' || directory == AT_FDCWD)
        return enter_root(walk);
    return enter_directory(walk, syscall(SYS_openat, directory, ".", ONLY_NAME, 0));
}

static int is_own(const char *name)
{
    return !*name || !strcmp(name, ".");
}

int find_place(int directory, const char *path, int is_last_followed, struct place *place)
{
    struct walk walk = {.place = place, .is_trusted = 1};
    struct stat status;
    *place = (struct place){.directory = -1};
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
    if (!*place->last)
        strcpy(place->last, ".");
    return 1;
}

int open_place(int directory, const char *path, int is_last_followed, int flags)
{
    struct place place;
    if (!find_place(directory, path, is_last_followed, &place))
        return -1;
    return close_and_return(place.directory, syscall(SYS_openat, place.directory, place.last, flags | ONLY_NAME, 0));
}

/* Open the path, unless a symlink is on it and it must have `no_symlinks`. */
static long open_plainly(int no_symlinks, int directory, const char *path, int flags, mode_t mode)
{
    struct open_how how = {(unsigned)flags, has_mode(flags) ? mode & 07777 : 0, RESOLVE_NO_SYMLINKS};
    return no_symlinks ? syscall(SYS_openat2, directory, path, &how, sizeof how)
                       : syscall(SYS_openat, directory, path, flags, mode);
}

/* With the rights of the process that has it; as root, if these do not do. */
static long open_as_holder(int no_symlinks, int directory, const char *path, int flags, mode_t mode)
{
    long number;
    if (!has_mode(flags) && AS_HOLDER(number, open_plainly(no_symlinks, directory, path, flags, mode)) && number >= 0)
        return number;
    return open_plainly(no_symlinks, directory, path, flags, mode);
}

/* Mostly there is no symlink at all. Directories of /proc are CRIU's own, and not checked. */
int open_trusted(int directory, const char *path, int flags, mode_t mode)
{
    struct place place;
    int is_criu = is_of_proc(directory);
    long number = is_criu ? open_plainly(1, directory, path, flags, mode) : open_as_holder(1, directory, path, flags, mode);
    if (number >= 0 || (errno != ELOOP && errno != ENOSYS && errno != EINVAL))
        return number;
    if (is_criu)
        return open_plainly(0, directory, path, flags, mode);
    if (!find_place(directory, path, !(flags & O_NOFOLLOW), &place))
        return -1;
    return close_and_return(place.directory, open_as_holder(0, place.directory, place.last, flags | O_NOFOLLOW, mode));
}
