/*
 * Of a file that lost its name and has another, CRIU makes a link in the directory where it was, and removes it again:
 * link_remap.N, by a path (criu/files-reg.c). Whose directories those are can put a symlink in the place of one of them
 * meanwhile, and would have CRIU make a link to a file of theirs in any directory of root's on the same mount. The path
 * comes from the kernel, so that no part of it is a symlink: it is gone along part by part, and no symlink is followed.
 */
#define _GNU_SOURCE
#include "links.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))
#define LONGEST 256

int is_of_criu(const char *name)
{
    if (begins(name, "link_remap."))
        return 1;
    for (const char *part = name; *part; part++)
        if (begins(part, ".cr."))
            for (const char *end = part; *end; end++)
                if (begins(end, ".ghost") && !end[6])
                    return 1;
    return 0;
}

int with_closed(int number, int result)
{
    int before = errno;
    syscall(SYS_close, number);
    errno = before;
    return result;
}

/* The directory `part` of one, which is closed; -1 and errno if it is none, or a symlink. */
static int opened_part(int directory, int is_first, const char *part, size_t length)
{
    char name[LONGEST];
    int number = -1;
    if (length < LONGEST) {
        for (size_t i = 0; i < length; i++)
            name[i] = part[i];
        name[length] = 0;
        number = syscall(SYS_openat, directory, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    } else
        errno = ENAMETOOLONG;
    return is_first ? number : with_closed(directory, number);
}

int opened_parent(int directory, const char *path, const char *last)
{
    int is_first = 1;
    if (*path == '/') {
        directory = opened_part(AT_FDCWD, 1, "/", 1);
        is_first = 0;
    }
    while (path < last && (is_first || directory >= 0)) {
        const char *end = path;
        while (*end != '/')
            end++;
        if (end > path) {
            directory = opened_part(directory, is_first, path, end - path);
            is_first = 0;
        }
        path = end + 1;
    }
    return is_first ? opened_part(directory, 1, ".", 1) : directory;
}

/* At a restore the old name is CRIU's own, and the new one that of a removed file. */
VISIBLE int linkat(int from, const char *path, int to, const char *name, int flags)
{
    const char *old = begin_of_last(path), *last = begin_of_last(name);
    if (!is_of_criu(last) && !is_of_criu(old))
        return syscall(SYS_linkat, from, path, to, name, flags);
    int directory = opened_parent(to, name, last), source = from;
    if (directory < 0)
        return -1;
    if (*path && (source = opened_parent(from, path, old)) < 0)
        return with_closed(directory, -1);
    int result = with_closed(directory, syscall(SYS_linkat, source, old, directory, last, flags));
    return *path ? with_closed(source, result) : result;
}

/* Below a root directory that CRIU has open it removes only what it has made. */
VISIBLE int unlinkat(int from, const char *name, int flags)
{
    const char *last = begin_of_last(name);
    if (!is_of_criu(last) && from == AT_FDCWD)
        return unlinked_by_name(name, flags);
    if (!is_of_criu(last) && last == name)
        return syscall(SYS_unlinkat, from, name, flags);
    int directory = opened_parent(from, name, last);
    return directory < 0 ? -1 : with_closed(directory, syscall(SYS_unlinkat, directory, last, flags));
}
