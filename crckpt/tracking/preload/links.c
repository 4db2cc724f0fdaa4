/*
 * CRIU makes a link to a file that lost its name and has another one, in the directory where the file was, and removes
 * it again: link_remap.N, by a path (criu/files-reg.c). A user who owns a directory of the path could replace it by a
 * symlink in between, and have CRIU link their file into any directory of root's on the same mount. The path comes from
 * the kernel, so no part of it is a symlink: walk it part by part, and follow none.
 */
#include "library.h"

#define LONGEST 256

int is_of_criu(const char *name)
{
    const char *number = strstr(name, ".cr."), *end = strrchr(name, '.');
    return starts_with(name, "link_remap.") || (number && number < end && !strcmp(end, ".ghost"));
}

/* Open the directory `part` of `directory`, which is closed; -1 and errno if it is a symlink or no directory. */
static int open_part(int directory, int is_first, const char *part, size_t length)
{
    char name[LONGEST];
    int number = -1;
    if (length < LONGEST) {
        memcpy(name, part, length);
        name[length] = 0;
        number = syscall(SYS_openat, directory, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    } else
        errno = ENAMETOOLONG;
    return is_first ? number : close_and_return(directory, number);
}

int open_parent(int directory, const char *path, const char *last)
{
    int is_first = 1;
    if (*path == '/') {
        directory = open_part(AT_FDCWD, 1, "/", 1);
        is_first = 0;
    }
    while (path < last && (is_first || directory >= 0)) {
        const char *end = path;
        while (*end != '/')
            end++;
        if (end > path) {
            directory = open_part(directory, is_first, path, end - path);
            is_first = 0;
        }
        path = end + 1;
    }
    return is_first ? open_part(directory, 1, ".", 1) : directory;
}

/* At a dump the new name is CRIU's. At a restore the old name is, and the new one is that of a removed file. */
VISIBLE int linkat(int from, const char *path, int to, const char *name, int flags)
{
    const char *old = last_part(path), *last = last_part(name);
    if (!is_of_criu(last) && !is_of_criu(old))
        return syscall(SYS_linkat, from, path, to, name, flags);
    int directory = open_parent(to, name, last), source = from;
    if (directory < 0)
        return -1;
    if (*path && (source = open_parent(from, path, old)) < 0)
        return close_and_return(directory, -1);
    int result = close_and_return(directory, syscall(SYS_linkat, source, old, directory, last, flags));
    /*
     * A file of a lower layer of overlayfs that was removed has a link there, but cannot be linked (ENOENT). Then CRIU
     * tries the directories above; it copies the file if the last one gives the same answer (criu/files-reg.c), but
     * those outside the mount give another.
     */
    if (result < 0 && !*path && errno == EXDEV)
        errno = ENOENT;
    return *path ? close_and_return(source, result) : result;
}

int unlink_in_parent(int from, const char *name, int flags)
{
    const char *last = last_part(name);
    if (!is_of_criu(last) && (from == AT_FDCWD || last == name))
        return syscall(SYS_unlinkat, from, name, flags);
    int directory = open_parent(from, name, last);
    return directory < 0 ? -1 : close_and_return(directory, syscall(SYS_unlinkat, directory, last, flags));
}
