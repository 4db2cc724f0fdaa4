/*
 * Threads that write, map, unmap, move, drop and protect memory at random, and children that do the same, until killed.
 * argv[1] is a directory (the file "ready" appears in it), argv[2] the seed, argv[3] how many threads, argv[4] how
 * many microseconds each waits between two steps.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif
#define AREAS 12
#define MOST 96ul

static useconds_t between;

struct thread {
    uint64_t state;
    struct area { unsigned char *place; unsigned long pages; int is_open; } areas[AREAS];
};

static uint64_t drawn(struct thread *self, uint64_t below)
{
    self->state ^= self->state << 13;
    self->state ^= self->state >> 7;
    self->state ^= self->state << 17;
    return self->state % below;
}

static void fresh(struct thread *self, struct area *area)
{
    /* Some are large enough for a huge page. */
    area->pages = drawn(self, 16) ? 1 + drawn(self, MOST) : 1024 + drawn(self, MOST);
    area->place = mmap(NULL, area->pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    area->is_open = 1;
    if (area->place == MAP_FAILED)
        abort();
    if (drawn(self, 2) == 0)
        madvise(area->place, area->pages * PAGE, MADV_HUGEPAGE);
}

static void write_some(struct thread *self, struct area *area)
{
    for (uint64_t left = area->is_open ? 1 + drawn(self, 8) : 0; left; left--)
        memset(area->place + drawn(self, area->pages) * PAGE + drawn(self, 4000), (int)drawn(self, 256), 1 + drawn(self, 90));
}

static void move(struct thread *self, struct area *area)
{
    unsigned long pages = 1 + drawn(self, MOST);
    unsigned char *to = drawn(self, 2) ? mmap(NULL, pages * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : NULL;
    int flags = MREMAP_MAYMOVE | (to ? MREMAP_FIXED : 0);
    unsigned char *place = mremap(area->place, area->pages * PAGE, pages * PAGE, flags, to);
    if (place == MAP_FAILED) { /* it lies in several maps; its end may have gone already */
        munmap(area->place, area->pages * PAGE);
        fresh(self, area);
        return;
    }
    area->place = place;
    area->pages = pages;
}

static void step(struct thread *self)
{
    struct area *area = &self->areas[drawn(self, AREAS)];
    unsigned long first, count;
    if (!area->place)
        fresh(self, area);
    first = drawn(self, area->pages);
    count = 1 + drawn(self, area->pages - first);
    switch (drawn(self, 24)) {
    case 0:
        munmap(area->place, area->pages * PAGE);
        fresh(self, area);
        break;
    case 1:
        move(self, area);
        break;
    case 2:
        madvise(area->place + first * PAGE, count * PAGE, MADV_DONTNEED);
        break;
    case 3:
        area->is_open = !area->is_open;
        mprotect(area->place, area->pages * PAGE, area->is_open ? PROT_READ | PROT_WRITE : PROT_READ);
        break;
    case 4: /* a hole in the middle, filled again */
        mmap(area->place + first * PAGE, count * PAGE, area->is_open ? PROT_READ | PROT_WRITE : PROT_READ,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        break;
    case 6:
        madvise(area->place, area->pages * PAGE, MADV_COLLAPSE);
        break;
    case 5: { /* what the kernel writes */
        int pipes[2];
        if (area->is_open && pipe(pipes) == 0) {
            if (write(pipes[1], area, sizeof *area) > 0 && read(pipes[0], area->place + first * PAGE, sizeof *area) < 0)
                abort();
            close(pipes[0]);
            close(pipes[1]);
        }
        break;
    }
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

int main(int argc, char **argv)
{
    char name[512];
    if (argc < 5)
        return 2;
    struct thread self = {.state = strtoull(argv[2], NULL, 10) + 77};
    int threads = atoi(argv[3]);
    between = atoi(argv[4]);
    for (int i = 0; i < 300; i++)
        step(&self);
    run(self.state, threads);
    snprintf(name, sizeof name, "%s/ready", argv[1]);
    close(open(name, O_CREAT | O_WRONLY, 0600));
    for (int children = 0;;) {
        for (int i = 0; i < 20; i++) {
            step(&self);
            usleep(between);
        }
        if (children < 3) {
            if (fork() == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                self.state += children + 1;
                run(self.state, 1);
                churning(&self);
            }
            children++;
        }
        if (drawn(&self, 3) == 0) {
            int ended = waitpid(-1, NULL, WNOHANG);
            children -= ended > 0;
        }
    }
}
