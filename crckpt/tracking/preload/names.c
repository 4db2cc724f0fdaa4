/*
 * CRIU numbers the files that it makes beside others (links.h): two dumps give two links the same name, of which only one
 * can be there, and a restore that was killed leaves a file whose name the next restore needs. So add a number to each
 * name that no other CRIU has. CRIU formats these names by snprintf(3) (criu/files-reg.c), and keeps what it gets.
 */
#define _GNU_SOURCE
#include "text.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

#define VISIBLE __attribute__((visibility("default")))
#define LONGEST 255

/* The C library's. */
int vsnprintf(char *into, size_t size, const char *format, va_list more);

static char number[] = ".0123456789abcdef";

__attribute__((constructor)) static void choose_number(void)
{
    uint64_t random = 0;
    if (syscall(SYS_getrandom, &random, sizeof random, 0l) != sizeof random)
        random = syscall(SYS_getpid);
    for (unsigned i = 1; i < sizeof number - 1; i++, random >>= 4)
        number[i] = "0123456789abcdef"[random & 15];
}

/* Copy the format with the number before its last `kept` characters. */
static const char *add_number(const char *format, size_t kept, char copy[64])
{
    const char *end = format;
    char *at = copy;
    while (*end)
        end++;
    while (format < end - kept)
        *at++ = *format++;
    for (const char *digit = number; *digit;)
        *at++ = *digit++;
    while ((*at++ = *format++))
        ;
    return copy;
}

static int is_short(const char *name)
{
    int length = 0;
    while (name[length] && length <= LONGEST)
        length++;
    return length <= LONGEST;
}

static int print(char *into, size_t size, const char *format, va_list more)
{
    char copy[64];
    int is_link = is_equal(format, "link_remap.%d");
    if (is_link || is_equal(format, "%s.cr.%x.ghost")) {
        va_list again;
        va_copy(again, more);
        int length = vsnprintf(into, size, add_number(format, is_link ? 0 : sizeof ".ghost" - 1, copy), again);
        va_end(again);
        if (is_short(last_part(into)))
            return length;
    }
    return vsnprintf(into, size, format, more);
}

VISIBLE int snprintf(char *into, size_t size, const char *format, ...)
{
    va_list more;
    va_start(more, format);
    int length = print(into, size, format, more);
    va_end(more);
    return length;
}

VISIBLE int __snprintf_chk(char *into, size_t size, int flag __attribute__((unused)),
                           size_t room __attribute__((unused)), const char *format, ...)
{
    va_list more;
    va_start(more, format);
    int length = print(into, size, format, more);
    va_end(more);
    return length;
}
