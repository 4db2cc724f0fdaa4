/*
 * Linked with rounds.c: before that begins, the process comes to be as the variable ODD says. What it holds then beside
 * is at the address that the file "odd" in argv[1] tells.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LENGTH (2ul << 20)

static unsigned char *held;
static char file[512];

static void lacking(const char *what)
{
    perror(what);
    exit(77);
}

static unsigned char *mapped(int flags)
{
    unsigned char *place = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (place == MAP_FAILED)
        lacking("mmap");
    return place;
}

/* A call that it does not make kills it. */
static void filtered(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        lacking("seccomp");
}

static void managed(void)
{
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register asked = {.mode = UFFDIO_REGISTER_MODE_MISSING};
    int number = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    held = mapped(0);
    memset(held, 1, LENGTH / 2);
    asked.range = (struct uffdio_range){(uintptr_t)held, LENGTH};
    if (number < 0 || ioctl(number, UFFDIO_API, &api) || ioctl(number, UFFDIO_REGISTER, &asked))
        lacking("userfaultfd");
}

/* Past the page cache, all the time. */
static void *reading(void *unused)
{
    int number = open(file, O_RDONLY | O_DIRECT);
    if (number < 0)
        lacking("O_DIRECT");
    while (pread(number, held, LENGTH, 0) > 0)
        continue;
    return unused;
}

static void read_directly(const char *work)
{
    pthread_t thread;
    snprintf(file, sizeof file, "%s/read", work);
    held = mapped(0);
    memset(held, 0x33, LENGTH);
    int number = open(file, O_CREAT | O_WRONLY, 0600);
    if (number < 0 || write(number, held, LENGTH) != (ssize_t)LENGTH)
        lacking("write");
    close(number);
    pthread_create(&thread, NULL, reading, NULL);
}

__attribute__((constructor)) static void be_odd(int argc, char **argv)
{
    const char *how = getenv("ODD");
    char name[512];
    if (argc < 2 || !how)
        return;
    if (!strcmp(how, "seccomp"))
        filtered();
    if (!strcmp(how, "userfaultfd"))
        managed();
    if (!strcmp(how, "direct"))
        read_directly(argv[1]);
    if (!strcmp(how, "hugetlb"))
        memset(held = mapped(MAP_HUGETLB), 0x44, LENGTH);
    snprintf(name, sizeof name, "%s/odd", argv[1]);
    FILE *out = fopen(name, "w");
    fprintf(out, "%lu\n", (unsigned long)held);
    fclose(out);
}
