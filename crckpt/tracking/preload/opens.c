/* All names of open(2) and openat(2). */
#include "library.h"

/* With musl these are other names of the same functions; CRIU may use either. */
#undef open64
#undef openat64

VISIBLE int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    mode_t mode = has_mode(flags) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open_file(AT_FDCWD, path, flags, mode);
}

VISIBLE int openat(int at, const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    mode_t mode = has_mode(flags) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open_file(at, path, flags, mode);
}

ALIAS(open64, open);
ALIAS(openat64, openat);
/* glibc's for callers that pass no mode. */
ALIAS(__open_2, open);
ALIAS(__open64_2, open);
ALIAS(__openat_2, openat);
ALIAS(__openat64_2, openat);
