/* All names of open(2) and openat(2): each calls `open_file(directory, path, flags, mode)` of the file that includes this. */
#pragma once

#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>

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
        MODE return open_file(AT_FDCWD, path, flags, mode);        \
    }
#define OPENAT(name)                                            \
    VISIBLE int name(int at, const char *path, int flags, ...)  \
    {                                                           \
        MODE return open_file(at, path, flags, mode);              \
    }
#define CHECKED_OPEN(name)                                      \
    VISIBLE int name(const char *path, int flags)               \
    {                                                           \
        return open_file(AT_FDCWD, path, flags, 0);                \
    }
#define CHECKED_OPENAT(name)                                    \
    VISIBLE int name(int at, const char *path, int flags)       \
    {                                                           \
        return open_file(at, path, flags, 0);                      \
    }
