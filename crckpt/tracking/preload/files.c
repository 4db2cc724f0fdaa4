/* The files that CRIU opens and that the library watches, and what /proc tells of their processes. */
#include "dump_library.h"

static struct file files[64];

static int read_identity(int number, struct stat *status)
{
    return syscall(SYS_fstat, number, status) == 0;
}

/* A number may have come to name another file unseen: the inode tells. */
struct file *find_file(int number)
{
    struct stat status;
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i].kind != NONE && files[i].number == number) {
            int before = errno;
            if (read_identity(number, &status) && status.st_dev == files[i].device && status.st_ino == files[i].inode)
                return &files[i];
            errno = before;
            files[i].kind = NONE;
        }
    return NULL;
}

int watch_file(int number, int kind, int pid)
{
    struct stat status;
    if (number < 0)
        return number;
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i].kind == NONE && read_identity(number, &status)) {
            release(&files[i].unchanged);
            release(&files[i].vdso);
            files[i] = (struct file){number, kind, status.st_dev, status.st_ino, pid, {0}, {0}};
            return number;
        }
    syscall(SYS_close, number);
    return refuse("more than 64 page maps and images of pages at once");
}

void forget_file(int number)
{
    struct file *file = find_file(number);
    if (file)
        file->kind = NONE;
}

int sibling(char into[4096], const char *path, const char *last, const char *name)
{
    return snprintf(into, 4096, "%.*s%s", (int)(last - path), path, name) < 4096;
}

/* The PID is the first word of stat. */
int pid_in(int directory, const char *stat)
{
    char digit;
    int pid = 0, number = open_to_read(directory, stat);
    while (syscall(SYS_read, number, &digit, 1) == 1 && digit >= '0' && digit <= '9')
        pid = 10 * pid + digit - '0';
    syscall(SYS_close, number);
    return pid;
}

int pid_beside(int directory, const char *path, const char *last)
{
    char name[4096], own[4096];
    if (!sibling(name, path, last, "stat") || !sibling(own, path, last, "../self/stat"))
        return -1;
    int pid = pid_in(directory, name);
    return !pid ? -1 : pid == pid_in(directory, own) ? 0 : pid;
}
