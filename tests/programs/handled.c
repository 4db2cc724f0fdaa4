/*
 * Waits again and again in the system call that argv[1] names, and has a handler for SIGUSR1. Where the call sets a mask,
 * the signal comes in the call only. Says "waits NAME TID NUMBER", "interrupted HANDLED" whenever the call returns EINTR
 * and a handler has run since the last time, "spurious" if none has, and once there is a file "go" "ended HANDLED SEEN".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t handled;
static uint32_t word;
static int event, set;

static void handler(int number)
{
    (void)number;
    handled++;
}

static long in_poll(void)
{
    struct pollfd one = {event, POLLIN, 0};
    return syscall(SYS_poll, &one, 1, -1);
}

static long in_ppoll(void)
{
    struct pollfd one = {event, POLLIN, 0};
    uint64_t none = 0;
    return syscall(SYS_ppoll, &one, 1, NULL, &none, sizeof none);
}

static long in_epoll_wait(void)
{
    struct epoll_event found;
    return syscall(SYS_epoll_wait, set, &found, 1, -1);
}

static long in_epoll_pwait(void)
{
    struct epoll_event found;
    uint64_t none = 0;
    return syscall(SYS_epoll_pwait, set, &found, 1, -1, &none, sizeof none);
}

static long in_futex(void)
{
    struct timespec time = {1000, 0};
    return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &time, NULL, 0);
}

static long in_read(void)
{
    uint64_t found;
    return syscall(SYS_read, event, &found, sizeof found);
}

static const struct {
    const char *name;
    long number;
    long (*call)(void);
    int is_masked;
} calls[] = {
    {"poll", SYS_poll, in_poll, 0},
    {"ppoll", SYS_ppoll, in_ppoll, 1},
    {"epoll_wait", SYS_epoll_wait, in_epoll_wait, 0},
    {"epoll_pwait", SYS_epoll_pwait, in_epoll_pwait, 1},
    {"futex", SYS_futex, in_futex, 0},
    {"read", SYS_read, in_read, 0},
};

static void *ending(void *unused)
{
    uint64_t one = 1;
    while (access("go", F_OK) != 0)
        usleep(10000);
    word = 1;
    syscall(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0);
    (void)!write(event, &one, sizeof one);
    return unused;
}

int main(int count, char **words)
{
    struct sigaction action = {.sa_handler = handler};
    struct epoll_event wanted = {.events = EPOLLIN};
    unsigned i = 0;
    long result, seen = 0;
    sigset_t mask;
    pthread_t thread;
    while (count == 2 && i < sizeof calls / sizeof *calls && strcmp(words[1], calls[i].name))
        i++;
    if (count != 2 || i == sizeof calls / sizeof *calls)
        return 2;
    event = eventfd(0, 0);
    set = epoll_create1(0);
    epoll_ctl(set, EPOLL_CTL_ADD, event, &wanted);
    sigaction(SIGUSR1, &action, NULL);
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    pthread_create(&thread, NULL, ending, NULL);
    if (!calls[i].is_masked)
        sigprocmask(SIG_UNBLOCK, &mask, NULL);
    dprintf(1, "waits %s %d %ld\n", calls[i].name, gettid(), calls[i].number);
    while ((result = calls[i].call()) < 0 && errno == EINTR) {
        long now = handled;
        dprintf(1, now > seen ? "interrupted %ld\n" : "spurious %ld\n", now);
        seen = now;
    }
    dprintf(1, "ended %d %ld\n", (int)handled, seen);
    return result < 0 && errno != EAGAIN;
}
