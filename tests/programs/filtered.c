/*
 * A program that may not make directories, by a filter of system calls, and makes PATH as soon as it can.
 * filtered spins PATH: one thread tries it all the time.
 * filtered changes PATH: while the first thread is stopped by a tracer, the other one changes what its vdso does.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN 10000

static char *path;
static volatile unsigned short *instruction;
static unsigned short ours, changed;

static int is_traced(void)
{
    char name[64], said[256] = {0};
    snprintf(name, sizeof name, "/proc/self/task/%d/stat", getpid());
    int file = open(name, O_RDONLY);
    int length = read(file, said, sizeof said - 1);
    close(file);
    return length > 0 && strrchr(said, ')')[2] == 't';
}

static void *change(void *nothing)
{
    for (;;) {
        while (!is_traced())
            ;
        while (is_traced())
            for (int turn = 0; turn < 20; turn++) {
                *instruction = turn % 2 ? ours : changed;
                for (volatile int i = 0; i < SPIN; i++)
                    ;
            }
        *instruction = ours;
    }
    return nothing;
}

static int prepared(void)
{
    char line[512], *vdso = NULL;
    size_t length = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    /* It can be protected as a whole only. */
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "[vdso]")) {
            char *end;
            vdso = (char *)strtoul(line, &end, 16);
            length = strtoul(end + 1, NULL, 16) - (size_t)vdso;
        }
    fclose(maps);
    if (!vdso || mprotect(vdso, length, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        return 0;
    char *found = memmem(vdso, length, "\x0f\x05", 2), *code = found + 16;
    if (!found)
        return 0;
    instruction = (unsigned short *)found;
    ours = *instruction;
    changed = 0x0eeb; /* a jump to 16 bytes from here */
    *code++ = 0xb8; /* mov eax, the call's number */
    *(int *)code = SYS_mkdir, code += 4;
    *code++ = 0x48, *code++ = 0xbf; /* mov rdi, path */
    *(char **)code = path, code += 8;
    *code++ = 0xbe; /* mov esi, mode */
    *(int *)code = 0700, code += 4;
    memcpy(code, "\x0f\x05\xeb\xfe", 4); /* syscall, and again and again */
    return 1;
}

int main(int count, char **words)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mkdir, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, filter};
    pthread_t other;
    path = words[count - 1];
    int changes = strcmp(words[1], "changes") == 0;
    if (changes && !prepared())
        return puts("skip") < 0;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return 1;
    if (changes)
        pthread_create(&other, NULL, change, NULL);
    puts("ready");
    fflush(stdout);
    while (!changes)
        syscall(SYS_mkdir, path, 0700);
    for (;;)
        pause();
}
