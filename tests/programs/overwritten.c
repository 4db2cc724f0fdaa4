/*
 * A program of nobody's that may not make directories, by a filter of system calls.
 * overwritten opens DIRECTORY: another process of nobody's, with the same filter, makes CRIU's code in it make DIRECTORY.
 * overwritten opens-early DIRECTORY: that one has opened the memory of the program before.
 * overwritten reads FILE: it counts in FILE how often its threads could open a file of theirs in /proc, how often not, and
 *   how often a sleep of another thread ended early. Only that one has the filter, by which it ends if it calls prctl(2).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOBODY 65534
#define REFUSE(call, how) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, how)

static const char *directory;
static volatile int is_done;
__attribute__((used)) static volatile long returns_to;

static long call(long number, long first, long second)
{
    long result;
    asm volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second) : "rcx", "r11", "memory");
    return result;
}

__attribute__((used, noinline)) void make(void)
{
    if (!__sync_lock_test_and_set(&is_done, 1))
        call(SYS_mkdir, (long)directory, 0700);
}

/* CRIU's code returns to here from its recvfrom(2), and goes on where it would have. */
extern void hook(void);
asm(".text\nhook: pushq returns_to(%rip)\n push %rax\n push %rcx\n push %rdx\n push %rsi\n push %rdi\n push %r8\n push %r9\n"
    " push %r10\n push %r11\n push %rbp\n mov %rsp, %rbp\n and $-16, %rsp\n call make\n mov %rbp, %rsp\n pop %rbp\n pop %r11\n"
    " pop %r10\n pop %r9\n pop %r8\n pop %rdi\n pop %rsi\n pop %rdx\n pop %rcx\n pop %rax\n ret\n");

static void filter(unsigned prctl_ends)
{
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        REFUSE(SYS_mkdir, SECCOMP_RET_ERRNO | EPERM),
        REFUSE(SYS_prctl, prctl_ends ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog all = {sizeof lines / sizeof *lines, lines};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all))
        _exit(1);
}

static void become_nobody(void)
{
    syscall(SYS_setgroups, 0, NULL);
    if (syscall(SYS_setresgid, NOBODY, NOBODY, NOBODY) || syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY))
        _exit(1);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

/* Wait until CRIU's code waits in the process, and change where it returns to. */
static void overwrite(int pid, int is_kept)
{
    char place[64], memory[64], text[256];
    unsigned long stack, before;
    long to = (long)hook;
    snprintf(place, sizeof place, "/proc/%d/syscall", pid);
    snprintf(memory, sizeof memory, "/proc/%d/mem", pid);
    int file = is_kept ? open(memory, O_RDWR) : -1;
    puts("ready");
    fflush(stdout);
    close(1);
    while (!kill(pid, 0)) {
        int calls = open(place, O_RDONLY), length = calls < 0 ? 0 : read(calls, text, sizeof text - 1);
        close(calls);
        if (length <= 0)
            continue;
        text[length] = 0;
        if (sscanf(text, "45 %*s %*s %*s %*s %*s %*s %lx", &stack) != 1)
            continue;
        if (file < 0)
            file = open(memory, O_RDWR);
        if (pread(file, &before, 8, stack) == 8 && pwrite(file, &before, 8, (long)&returns_to) == 8 &&
            pwrite(file, &to, 8, stack) == 8)
            break;
    }
    for (; !kill(pid, 0); usleep(10000))
        ;
    _exit(0);
}

static void *read_all(void *counts)
{
    for (volatile long *counted = counts;; counted[0]++) {
        int file = open("/proc/self/environ", O_RDONLY);
        if (file < 0)
            counted[1]++;
        close(file);
    }
}

static void *sleep_long(void *counts)
{
    filter(1);
    for (volatile long *counted = counts;; counted[2]++) {
        struct timespec all = {10000, 0};
        nanosleep(&all, NULL);
    }
}

int main(int count, char **words)
{
    int pid = getpid();
    pthread_t thread;
    if (count != 3)
        return 2;
    if (!strcmp(words[1], "reads")) {
        int file = open(words[2], O_RDWR | O_CREAT, 0600);
        void *counts = ftruncate(file, 4096) ? NULL : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        become_nobody();
        pthread_create(&thread, NULL, read_all, counts);
        pthread_create(&thread, NULL, sleep_long, counts);
        puts("ready");
        fflush(stdout);
    } else {
        directory = words[2];
        become_nobody();
        filter(0);
        if (!fork()) {
            if (fork())
                _exit(0);
            setsid();
            overwrite(pid, !strcmp(words[1], "opens-early"));
        }
        wait(NULL); /* it is no child of this program any more */
    }
    for (;;)
        pause();
}
