/*
 * CRIU numbers the files that it makes beside others (links.c): two dumps give two links the same name, of which only one
 * can be there, and a restore that was killed leaves a file whose name the next restore needs. So add a number to each
 * name that no other CRIU has. CRIU formats these names by snprintf(3) (criu/files-reg.c), and keeps what it gets.
 */
#include "library.h"

#define LONGEST 255

static char number[18];

__attribute__((constructor)) static void choose_number(void)
{
    uint64_t random = 0;
    if (syscall(SYS_getrandom, &random, sizeof random, 0l) != sizeof random)
        random = syscall(SYS_getpid);
    snprintf(number, sizeof number, ".%016llx", (unsigned long long)random);
}

static int print(char *into, size_t size, const char *format, va_list more)
{
    char longer[64];
    int is_link = !strcmp(format, "link_remap.%d");
    if (is_link || !strcmp(format, "%s.cr.%x.ghost")) {
        va_list again;
        va_copy(again, more);
        strcpy(longer, is_link ? "link_remap.%d" : "%s.cr.%x");
        strcat(strcat(longer, number), is_link ? "" : ".ghost");
        int length = vsnprintf(into, size, longer, again);
        va_end(again);
        if (strlen(last_part(into)) <= LONGEST)
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
