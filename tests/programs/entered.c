/* A process for others to enter: argv[1] says in what state it is to be found. Says "ready", then what came of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile long count;

static void said(const char *what, long number)
{
    printf("%s %ld\n", what, number);
    fflush(stdout);
}

static void *pausing(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static void counted(int number)
{
    (void)number;
    count++;
}

static long waited(const char *in)
{
    struct timespec seconds = {3, 0};
    char byte;
    if (!strcmp(in, "nanosleep"))
        return nanosleep(&seconds, NULL) ? -errno : 0;
    if (!strcmp(in, "poll"))
        return poll(NULL, 0, 3000) < 0 ? -errno : 0;
    if (!strcmp(in, "read"))
        return read(0, &byte, 1) < 0 ? -errno : byte;
    if (!strcmp(in, "futex")) {
        static uint32_t word;
        syscall(SYS_futex, &word, FUTEX_WAIT, 0, &seconds, NULL, 0);
        return -errno;
    }
    if (!strcmp(in, "epoll")) {
        struct epoll_event event;
        return epoll_wait(epoll_create1(0), &event, 1, 3000) < 0 ? -errno : 0;
    }
    sigset_t none;
    sigemptyset(&none);
    return sigtimedwait(&none, NULL, &seconds) < 0 ? -errno : 0;
}

/* Leaves the sequence only by being aborted: if the kernel forgets that it is in one, it stays for ever. */
static void sequences(void)
{
    struct area { uint32_t cpu, cpu_start; uint64_t sequence; } *area;
    extern const ptrdiff_t __rseq_offset;
    static struct { uint32_t version, flags; uint64_t start, length, abort; } __attribute__((aligned(32))) sequence;
    area = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);
    for (;;) {
        __asm__ volatile(
            "leaq 1f(%%rip), %%rax\n movq %%rax, %0\n"
            "leaq 3f(%%rip), %%rax\n movq %%rax, %1\n"
            "movq $(2f - 1f), %4\n"
            "leaq %2, %%rax\n movq %%rax, %3\n"
            "1: pause\n jmp 1b\n"
            "2: .byte 0x0f, 0xb9, 0x3d\n .long 0x53053053\n"
            "3:\n"
            : "=m"(sequence.start), "=m"(sequence.abort)
            : "m"(sequence), "m"(area->sequence), "m"(sequence.length)
            : "rax", "memory");
        count++;
        if (count % 16 == 0)
            said("aborted", count);
    }
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "nanosleep";
    pthread_t thread;
    if (!strcmp(how, "dispatch")) {
        static char allowed = 0;
        prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, 0, 0, &allowed);
    }
    if (!strcmp(how, "leaderless")) {
        pthread_create(&thread, NULL, pausing, NULL);
        said("ready", getpid());
        pthread_exit(NULL);
    }
    if (!strcmp(how, "partly uninterruptible"))
        pthread_create(&thread, NULL, pausing, NULL);
    if (strstr(how, "uninterruptible")) {
        if (vfork() == 0) {
            said("ready", getpid());
            pause();
            _exit(0);
        }
        return 0;
    }
    if (!strcmp(how, "signals")) {
        struct sigaction action = {.sa_handler = counted};
        sigaction(SIGRTMIN, &action, NULL);
        said("ready", getpid());
        while (count < 200)
            usleep(1000);
        said("counted", count);
        return 0;
    }
    said("ready", getpid());
    if (!strcmp(how, "sequences")) {
#ifdef __x86_64__
        sequences();
#endif
    }
    if (!strcmp(how, "dispatch"))
        pausing(NULL);
    said(how, waited(how));
    return 0;
}
