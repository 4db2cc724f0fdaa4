/* Functions on text for a library without libc. */
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;

/* Write to stderr. */
static inline void say(const char *text)
{
    const char *end = text;
    while (*end)
        end++;
    syscall(SYS_write, 2, text, end - text);
}

static inline int starts_with(const char *text, const char *with)
{
    while (*with)
        if (*text++ != *with++)
            return 0;
    return 1;
}

static inline int is_equal(const char *one, const char *other)
{
    while (*one && *one == *other)
        one++, other++;
    return *one == *other;
}

/* The last part of a path. */
static inline const char *last_part(const char *path)
{
    const char *last = path;
    for (; *path; path++)
        if (*path == '/')
            last = path + 1;
    return last;
}

/* The value of `name`, which ends in =, in the environment; empty if it is not there. */
static inline const char *variable(const char *name)
{
    for (char **one = environ; one && *one; one++)
        if (starts_with(*one, name)) {
            const char *value = *one;
            while (*name++)
                value++;
            return value;
        }
    return "";
}
