/*
 * CRIU makes a link to a file that lost its name and has another one, in the directory where the file was, and removes
 * it again: link_remap.N, by a path (criu/files-reg.c). A user who owns a directory of the path could replace it by a
 * symlink in between, and have CRIU link their file into any directory of root's on the same mount. The path comes from
 * the kernel, so no part of it is a symlink: walk it part by part, and follow none.
 */
#include "library.h"

int is_of_criu(const char *name)
{
    const char *number = strstr(name, ".cr."), *end = strrchr(name, '.');
    return starts_with(name, "link_remap.") || (number && number < end && !strcmp(end, ".ghost"));
}

int open_parent(int directory, const char *path, const char *last)
{
    const int flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int number = syscall(SYS_openat, directory, *path == '/' ? "/" : ".", flags, 0);
    char part[256];
    for (size_t length; number >= 0 && path < last; path += length + 1) {
        length = strcspn(path, "/");
        if (length >= sizeof part) {
            errno = ENAMETOOLONG;
            return close_and_return(number, -1);
        }
        memcpy(part, path, length);
        part[length] = 0;
        if (length)
            number = close_and_return(number, syscall(SYS_openat, number, part, flags, 0));
    }
    return number;
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
