/*
 * Threads that write, map, unmap, move, drop and protect memory at random, let the kernel write it, and come and go;
 * and children that do the same, are replaced (exec), end, and come again under the PID of one that ended. Until killed.
 * argv[1] is a directory: the file "ready" appears in it.
 * argv[2] is the seed, argv[3] how many threads, argv[4] how many microseconds each waits between two steps. argv[5] is
 * there in a child that was replaced.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4 /* Linux 5.7 */
#endif
#define AREAS 12
#define MOST 96ul
#define RIGHTS(area) ((area)->is_open ? PROT_READ | PROT_WRITE : PROT_READ)

static useconds_t between;
static int below; /* a file of MOST pages */

struct thread {
    uint64_t state;
    int is_alone; /* in a child that libc does not know of: it must start no thread */
    struct area { unsigned char *place; unsigned long pages; int is_open; } areas[AREAS];
};

static uint64_t drawn(struct thread *self, uint64_t limit)
{
    self->state ^= self->state << 13;
    self->state ^= self->state >> 7;
    self->state ^= self->state << 17;
    return self->state % limit;
}

static void *mapped(void *at, unsigned long pages, int rights, int flags, int file)
{
    return mmap(at, pages * PAGE, rights, MAP_PRIVATE | flags | (file < 0 ? MAP_ANONYMOUS : 0), file, 0);
}

static void fresh(struct thread *self, struct area *area)
{
    /* Some are large enough for a huge page; some lie over a file. */
    area->pages = drawn(self, 16) ? 1 + drawn(self, MOST) : 1024 + drawn(self, MOST);
    area->place = mapped(NULL, area->pages, PROT_READ | PROT_WRITE, 0, area->pages <= MOST && !drawn(self, 3) ? below : -1);
    area->is_open = 1;
    if (area->place == MAP_FAILED)
        abort();
    if (drawn(self, 2) == 0)
        madvise(area->place, area->pages * PAGE, MADV_HUGEPAGE);
}

static unsigned char *somewhere(struct thread *self, struct area *area)
{
    return area->place + drawn(self, area->pages) * PAGE + drawn(self, 4000);
}

static void write_some(struct thread *self, struct area *area)
{
    for (uint64_t left = area->is_open ? 1 + drawn(self, 8) : 0; left; left--)
        memset(somewhere(self, area), (int)drawn(self, 256), 1 + drawn(self, 90));
}

static void move(struct thread *self, struct area *area)
{
    unsigned long pages = 1 + drawn(self, MOST);
    unsigned char *to = drawn(self, 2) ? mapped(NULL, pages, PROT_READ, 0, -1) : NULL;
    int flags = MREMAP_MAYMOVE | (to ? MREMAP_FIXED : 0);
    unsigned char *place;
    /* Older kernels drop the end of what they refuse to move, and another thread may map there before we unmap it. */
    if (pages < area->pages) {
        mremap(area->place, area->pages * PAGE, pages * PAGE, 0);
        area->pages = pages;
    }
    place = mremap(area->place, area->pages * PAGE, pages * PAGE, flags, to);
    if (place == MAP_FAILED) { /* it lies in several maps */
        munmap(area->place, area->pages * PAGE);
        fresh(self, area);
        return;
    }
    area->place = place;
    area->pages = pages;
}

/* What the kernel writes: by the thread's own page tables, and by looking its memory up as a debugger does. */
static void written_for(struct thread *self, struct area *area)
{
    struct iovec from = {self, 1 + drawn(self, sizeof *self)}, to = {somewhere(self, area), from.iov_len};
    uint32_t *word = (uint32_t *)(area->place + drawn(self, area->pages) * PAGE + 4 * drawn(self, 1000));
    int pipes[2], memory;
    if (to.iov_len > 90)
        from.iov_len = to.iov_len = 90;
    switch (drawn(self, 4)) {
    case 0:
        if (area->is_open && pipe(pipes) == 0) {
            if (write(pipes[1], self, from.iov_len) > 0 && read(pipes[0], to.iov_base, from.iov_len) < 0)
                abort();
            close(pipes[0]);
            close(pipes[1]);
        }
        break;
    case 1:
        process_vm_writev(getpid(), &from, 1, &to, 1, 0);
        break;
    case 2: /* also where the thread itself may only read */
        memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
        if (memory >= 0) {
            if (pwrite(memory, from.iov_base, from.iov_len, (off_t)(uintptr_t)to.iov_base) < 0)
                write_some(self, area);
            close(memory);
        }
        break;
    default:
        syscall(SYS_futex, word, FUTEX_WAKE_OP_PRIVATE, 0, NULL, word, FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0));
    }
}

/* Its end writes as well: the kernel clears a word, and libc drops its stack. */
static void *passing(void *of)
{
    struct thread *self = of;
    unsigned char local[2 * PAGE];
    memset(local, (int)drawn(self, 256), sizeof local);
    return local[drawn(self, sizeof local)] ? NULL : self;
}

static void step(struct thread *self)
{
    struct area *area = &self->areas[drawn(self, AREAS)];
    volatile unsigned char *place;
    unsigned long first, count;
    pthread_t thread;
    if (!area->place)
        fresh(self, area);
    first = drawn(self, area->pages);
    count = 1 + drawn(self, area->pages - first);
    place = area->place + first * PAGE;
    switch (drawn(self, 32)) {
    case 0:
        munmap(area->place, area->pages * PAGE);
        fresh(self, area);
        break;
    case 1:
        move(self, area);
        break;
    case 2:
    case 3:
        madvise((void *)place, count * PAGE, MADV_DONTNEED);
        break;
    case 4:
        area->is_open = !area->is_open;
        mprotect(area->place, area->pages * PAGE, RIGHTS(area));
        break;
    case 5: /* a hole in the middle, filled again */
        mapped((void *)place, count, RIGHTS(area), MAP_FIXED, -1);
        break;
    case 6:
        madvise(area->place, area->pages * PAGE, MADV_COLLAPSE);
        break;
    case 7:
        madvise((void *)place, count * PAGE, MADV_FREE);
        break;
    case 8:
        madvise((void *)place, count * PAGE, MADV_POPULATE_WRITE);
        break;
    case 9: /* reading alone brings the page of zeros */
        for (unsigned long i = 0; i < count; i++)
            self->state += place[i * PAGE] == 1;
        break;
    case 10: /* the pages go, the map stays */
        place = mremap(area->place, area->pages * PAGE, area->pages * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
        if (place != MAP_FAILED)
            munmap((void *)place, area->pages * PAGE);
        break;
    case 11:
        if (!self->is_alone && pthread_create(&thread, NULL, passing, self) == 0)
            pthread_join(thread, NULL);
        break;
    case 12:
    case 13:
    case 14:
        written_for(self, area);
        break;
    default:
        write_some(self, area);
    }
}

static void *churning(void *of)
{
    for (;;) {
        step(of);
        usleep(between);
    }
    return NULL;
}

static void run(uint64_t seed, int threads)
{
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        struct thread *self = calloc(1, sizeof *self);
        self->state = seed * 1000003 + i + 1;
        pthread_create(&thread, NULL, churning, self);
    }
}

static uint64_t milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

static void be_a_child(struct thread *self, char **argv)
{
    uint64_t until = milliseconds() + (argv[5] ? 2000 : 50) + drawn(self, 400);
    int is_replaced = !argv[5] && drawn(self, 6) == 0;
    char seed[32];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!self->is_alone)
        run(self->state, 1);
    while (milliseconds() < until) {
        step(self);
        usleep(between);
    }
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)self->state);
    if (is_replaced)
        execl("/proc/self/exe", argv[0], argv[1], seed, argv[3], argv[4], "replaced", NULL);
    _exit(0);
}

/* A child, under the PID of `ended` if there was one and we may. */
static void make_child(struct thread *self, pid_t ended, char **argv)
{
    struct clone_args asked = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&ended, .set_tid_size = 1};
    long child = -1;
    self->state++;
    if (ended) {
        self->is_alone = 1;
        child = syscall(SYS_clone3, &asked, sizeof asked);
    }
    if (child < 0) {
        self->is_alone = 0;
        child = fork();
    }
    if (child == 0)
        be_a_child(self, argv);
    self->is_alone = 0;
}

int main(int argc, char **argv)
{
    char name[512];
    if (argc < 5)
        return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that is killed leaves nothing behind */
    struct thread self = {.state = strtoull(argv[2], NULL, 10) + 77};
    int threads = atoi(argv[3]);
    between = atoi(argv[4]);
    snprintf(name, sizeof name, "%s/below", argv[1]);
    below = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (argc == 5)
        for (unsigned long i = 0; i < MOST * PAGE / sizeof self.state; i++, drawn(&self, 2))
            if (pwrite(below, &self.state, sizeof self.state, i * sizeof self.state) < 0)
                return 1;
    for (int i = 0; i < 300; i++)
        step(&self);
    if (argc > 5)
        be_a_child(&self, argv);
    run(self.state, threads);
    snprintf(name, sizeof name, "%s/ready", argv[1]);
    close(open(name, O_CREAT | O_WRONLY, 0600));
    for (int children = 0;;) {
        uint64_t until = milliseconds() + 40;
        pid_t ended = waitpid(-1, NULL, WNOHANG);
        children -= ended > 0;
        if (children < 3) {
            make_child(&self, ended > 0 && drawn(&self, 2) ? ended : 0, argv);
            children++;
        }
        while (milliseconds() < until) {
            step(&self);
            usleep(between);
        }
    }
}
