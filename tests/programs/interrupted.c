/*
 * Waits in many system calls at once, and writes what came of each. "threads": each in a thread of one process; else
 * each in the first thread of a process of its own. argv[2] is their timeout in milliseconds; with argv[3]
 * one waits for asynchronous I/O, too. Once there is a file "go"
 * in the working directory, what they wait for happens. Lines: "waits NAME TID NUMBER", then "NAME RESULT MILLISECONDS",
 * where RESULT may be minus an errno. "semaphore ID" and "queue ID" are for whoever removes them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct wait {
    const char *name;
    int number;
    void (*prepare)(struct wait *);
    long (*call)(struct wait *);
    void (*fire)(struct wait *);
    int fd, other;
    uint32_t word;
    volatile pid_t tid;
};

static long timeout_ms;
static const char event[8] = {1};

static struct timespec relative(void)
{
    return (struct timespec){timeout_ms / 1000, timeout_ms % 1000 * 1000000};
}

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static struct timespec absolute(void)
{
    long at = now_ms() + timeout_ms;
    return (struct timespec){at / 1000, at % 1000 * 1000000};
}

static void fd_event(struct wait *wait) { wait->fd = eventfd(0, 0); }
static void fire_event(struct wait *wait) { (void)!write(wait->fd, event, 8); }
static void nothing(struct wait *wait) { (void)wait; }

static void epoll_event(struct wait *wait)
{
    struct epoll_event wanted = {.events = EPOLLIN};
    fd_event(wait);
    wait->other = epoll_create1(0);
    epoll_ctl(wait->other, EPOLL_CTL_ADD, wait->fd, &wanted);
}

static long in_poll(struct wait *wait)
{
    struct pollfd one = {wait->fd, POLLIN, 0};
    return syscall(SYS_poll, &one, 1, timeout_ms);
}

static long in_ppoll(struct wait *wait)
{
    struct pollfd one = {wait->fd, POLLIN, 0};
    struct timespec time = relative();
    return syscall(SYS_ppoll, &one, 1, &time, NULL, 0);
}

static long in_select(struct wait *wait)
{
    struct timeval time = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(wait->fd, &set);
    return syscall(SYS_select, wait->fd + 1, &set, NULL, NULL, &time);
}

static long in_epoll_wait(struct wait *wait)
{
    struct epoll_event found;
    return syscall(SYS_epoll_wait, wait->other, &found, 1, timeout_ms);
}

static long in_epoll_pwait(struct wait *wait)
{
    struct epoll_event found;
    uint64_t mask = 0;
    return syscall(SYS_epoll_pwait, wait->other, &found, 1, timeout_ms, &mask, sizeof mask);
}

static long in_epoll_pwait2(struct wait *wait)
{
    struct epoll_event found;
    struct timespec time = relative();
    return syscall(SYS_epoll_pwait2, wait->other, &found, 1, &time, NULL, 0);
}

static long in_nanosleep(struct wait *wait)
{
    struct timespec time = relative();
    (void)wait;
    return syscall(SYS_nanosleep, &time, NULL);
}

static long in_clock_nanosleep(struct wait *wait)
{
    struct timespec time = relative();
    (void)wait;
    return syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &time, NULL);
}

static long in_sleep_until(struct wait *wait)
{
    struct timespec time = absolute();
    (void)wait;
    return syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}

static long in_futex(struct wait *wait)
{
    struct timespec time = relative();
    return syscall(SYS_futex, &wait->word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0, &time, NULL, 0);
}

static long in_futex_until(struct wait *wait)
{
    struct timespec time = absolute();
    return syscall(SYS_futex, &wait->word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 0, &time, NULL, ~0);
}

static long in_futex_waitv(struct wait *wait)
{
    struct futex_waitv one = {.uaddr = (uintptr_t)&wait->word, .flags = FUTEX_32 | FUTEX_PRIVATE_FLAG};
    struct timespec time = absolute();
    return syscall(SYS_futex_waitv, &one, 1, 0, &time, CLOCK_MONOTONIC);
}

static void fire_futex(struct wait *wait)
{
    wait->word = 1;
    syscall(SYS_futex, &wait->word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
}

static void semaphore(struct wait *wait)
{
    wait->fd = semget(IPC_PRIVATE, 1, 0600);
    dprintf(1, "semaphore %d\n", wait->fd);
}

static long in_semtimedop(struct wait *wait)
{
    struct sembuf take = {0, -1, 0};
    struct timespec time = relative();
    return syscall(SYS_semtimedop, wait->fd, &take, 1, &time);
}

static long in_semop(struct wait *wait)
{
    struct sembuf take = {0, -1, 0};
    return syscall(SYS_semop, wait->fd, &take, 1);
}

static void fire_semaphore(struct wait *wait)
{
    struct sembuf give = {0, 1, 0};
    semop(wait->fd, &give, 1);
}

static long in_sigtimedwait(struct wait *wait)
{
    struct timespec time = relative();
    uint64_t mask = 1ull << (SIGRTMIN + 1 - 1);
    (void)wait;
    return syscall(SYS_rt_sigtimedwait, &mask, NULL, &time, sizeof mask);
}

static void fire_signal(struct wait *wait) { syscall(SYS_tgkill, getpid(), wait->tid, SIGRTMIN + 1); }

static void ring(struct wait *wait)
{
    static aio_context_t context;
    (void)wait;
    syscall(SYS_io_setup, 8, &context);
    memcpy(&wait->fd, &context, sizeof wait->fd + sizeof wait->other);
}

static long in_io_getevents(struct wait *wait)
{
    struct timespec time = relative();
    struct io_event found;
    aio_context_t context;
    memcpy(&context, &wait->fd, sizeof context);
    return syscall(SYS_io_getevents, context, 1, 1, &found, &time);
}

static void sockets(struct wait *wait)
{
    struct timeval time = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    wait->fd = pair[0];
    wait->other = pair[1];
}

static void full(struct wait *wait)
{
    static char much[1 << 16];
    sockets(wait);
    while (send(wait->fd, much, sizeof much, MSG_DONTWAIT) > 0)
        ;
}

static void fire_socket(struct wait *wait) { (void)!write(wait->other, event, 8); }

static void drain(struct wait *wait)
{
    static char much[1 << 20];
    while (recv(wait->other, much, sizeof much, MSG_DONTWAIT) > 0)
        ;
}

static long in_read(struct wait *wait)
{
    char found[8];
    return syscall(SYS_read, wait->fd, found, sizeof found);
}

static long in_recvfrom(struct wait *wait)
{
    char found[8];
    return syscall(SYS_recvfrom, wait->fd, found, sizeof found, 0, NULL, NULL);
}

static long in_recvmsg(struct wait *wait)
{
    char found[8];
    struct iovec into = {found, sizeof found};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1};
    return syscall(SYS_recvmsg, wait->fd, &message, 0);
}

static long in_sendto(struct wait *wait) { return syscall(SYS_sendto, wait->fd, event, 8, 0, NULL, 0); }
static long in_write(struct wait *wait) { return syscall(SYS_write, wait->fd, event, 8); }

static struct sockaddr_un address_of(struct wait *wait)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "interrupted-%s-%d", wait->name, wait->word);
    return address;
}

static void listening(struct wait *wait)
{
    struct timeval time = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    wait->word = getpid();
    struct sockaddr_un address = address_of(wait);
    wait->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    setsockopt(wait->fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    bind(wait->fd, (struct sockaddr *)&address, sizeof address);
    listen(wait->fd, 0);
}

static long in_accept(struct wait *wait) { return syscall(SYS_accept, wait->fd, NULL, NULL) < 0 ? -1 : 0; }

static void fire_connection(struct wait *wait)
{
    struct sockaddr_un address = address_of(wait);
    int number = socket(AF_UNIX, SOCK_STREAM, 0);
    connect(number, (struct sockaddr *)&address, sizeof address);
}

static void full_queue(struct wait *wait)
{
    struct timeval time = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    listening(wait);
    fire_connection(wait);
    wait->other = socket(AF_UNIX, SOCK_STREAM, 0);
    setsockopt(wait->other, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

static long in_connect(struct wait *wait)
{
    struct sockaddr_un address = address_of(wait);
    return syscall(SYS_connect, wait->other, &address, sizeof address);
}

static void take_connection(struct wait *wait) { accept(wait->fd, NULL, NULL); }

static void queue(struct wait *wait)
{
    wait->fd = msgget(IPC_PRIVATE, 0600);
    dprintf(1, "queue %d\n", wait->fd);
}

static long in_msgrcv(struct wait *wait)
{
    struct { long kind; char text[8]; } found;
    return syscall(SYS_msgrcv, wait->fd, &found, 8, 0, 0);
}

static void fire_message(struct wait *wait)
{
    struct { long kind; char text[8]; } sent = {1, "event"};
    msgsnd(wait->fd, &sent, 8, 0);
}

static void watched(struct wait *wait)
{
    wait->fd = inotify_init1(0);
    inotify_add_watch(wait->fd, ".", IN_CREATE);
}

static long in_inotify(struct wait *wait)
{
    char found[4096];
    return syscall(SYS_read, wait->fd, found, sizeof found) > 0 ? 8 : -1;
}

static struct wait waits[] = {
    {"poll", SYS_poll, fd_event, in_poll, fire_event, 0, 0, 0, 0},
    {"ppoll", SYS_ppoll, fd_event, in_ppoll, fire_event, 0, 0, 0, 0},
    {"select", SYS_select, fd_event, in_select, fire_event, 0, 0, 0, 0},
    {"epoll_wait", SYS_epoll_wait, epoll_event, in_epoll_wait, fire_event, 0, 0, 0, 0},
    {"epoll_pwait", SYS_epoll_pwait, epoll_event, in_epoll_pwait, fire_event, 0, 0, 0, 0},
    {"epoll_pwait2", SYS_epoll_pwait2, epoll_event, in_epoll_pwait2, fire_event, 0, 0, 0, 0},
    {"nanosleep", SYS_nanosleep, nothing, in_nanosleep, NULL, 0, 0, 0, 0},
    {"clock_nanosleep", SYS_clock_nanosleep, nothing, in_clock_nanosleep, NULL, 0, 0, 0, 0},
    {"sleep-until", SYS_clock_nanosleep, nothing, in_sleep_until, NULL, 0, 0, 0, 0},
    {"futex", SYS_futex, nothing, in_futex, fire_futex, 0, 0, 0, 0},
    {"futex-until", SYS_futex, nothing, in_futex_until, fire_futex, 0, 0, 0, 0},
    {"futex_waitv", SYS_futex_waitv, nothing, in_futex_waitv, fire_futex, 0, 0, 0, 0},
    {"semop", SYS_semop, semaphore, in_semop, fire_semaphore, 0, 0, 0, 0},
    {"semtimedop", SYS_semtimedop, semaphore, in_semtimedop, fire_semaphore, 0, 0, 0, 0},
    {"sigtimedwait", SYS_rt_sigtimedwait, nothing, in_sigtimedwait, fire_signal, 0, 0, 0, 0},
    {"io_getevents", SYS_io_getevents, ring, in_io_getevents, NULL, 0, 0, 0, 0},
    {"read", SYS_read, sockets, in_read, fire_socket, 0, 0, 0, 0},
    {"recvfrom", SYS_recvfrom, sockets, in_recvfrom, fire_socket, 0, 0, 0, 0},
    {"recvmsg", SYS_recvmsg, sockets, in_recvmsg, fire_socket, 0, 0, 0, 0},
    {"sendto", SYS_sendto, full, in_sendto, drain, 0, 0, 0, 0},
    {"write", SYS_write, full, in_write, drain, 0, 0, 0, 0},
    {"accept", SYS_accept, listening, in_accept, fire_connection, 0, 0, 0, 0},
    {"connect", SYS_connect, full_queue, in_connect, take_connection, 0, 0, 0, 0},
    {"msgrcv", SYS_msgrcv, queue, in_msgrcv, fire_message, 0, 0, 0, 0},
    {"inotify", SYS_read, watched, in_inotify, nothing, 0, 0, 0, 0},
};
#define COUNT (sizeof waits / sizeof *waits)

static void *waiting(void *of)
{
    struct wait *wait = of;
    wait->tid = gettid();
    dprintf(1, "waits %s %d %d\n", wait->name, wait->tid, wait->number);
    long began = now_ms(), result = wait->call(wait);
    dprintf(1, "%s %ld %ld\n", wait->name, result < 0 ? -errno : result, now_ms() - began);
    return NULL;
}

static void *firing(void *of)
{
    struct wait *wait = of;
    while (access("go", F_OK) != 0)
        usleep(10000);
    for (size_t i = 0; i < (wait ? 1 : COUNT); i++) {
        struct wait *one = wait ? wait : &waits[i];
        if (one->fire)
            one->fire(one);
    }
    return NULL;
}

int main(int count, char **words)
{
    pthread_t threads[COUNT] = {0};
    sigset_t mask;
    if (count < 3)
        return 2;
    timeout_ms = atol(words[2]);
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN + 1);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    for (size_t i = 0; i < COUNT; i++) {
        if (waits[i].prepare == ring && count < 4)
            continue;
        if (!strcmp(words[1], "threads")) {
            waits[i].prepare(&waits[i]);
            pthread_create(&threads[i], NULL, waiting, &waits[i]);
        } else if (fork() == 0) {
            waits[i].prepare(&waits[i]);
            pthread_create(&threads[i], NULL, firing, &waits[i]);
            waiting(&waits[i]);
            return 0;
        }
    }
    if (!strcmp(words[1], "threads")) {
        firing(NULL);
        for (size_t i = 0; i < COUNT; i++)
            if (threads[i])
                pthread_join(threads[i], NULL);
    }
    while (wait(NULL) > 0 || errno == EINTR)
        ;
    return 0;
}
