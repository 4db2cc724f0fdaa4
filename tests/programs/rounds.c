/*
 * 32 MiB of which each SIGUSR1 writes one page in a hundred; beside it memory that is mapped, moved and dropped between.
 * argv[1] is a directory. After each signal N (SIGUSR2 writes nothing) the checksum of all lies in argv[1]/sum-N.
 * SIGHUP starts it afresh, by exec; SIGWINCH makes a child, with its own page 5, that does nothing and ends with it;
 * SIGURG opens argv[1]/file past the page cache, or closes it again; SIGIO shuts the 32 MiB, so that they cannot be read
 * or written, or opens them again.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES 8192ul
#define SIDE 64ul

static unsigned char *area, *sparse, *file, *extra;
static int is_shut;
static const char *work;

static unsigned char *mapped(unsigned long pages)
{
    unsigned char *place = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED)
        exit(1);
    /* Pages one by one: a huge page would be written as a whole. */
    madvise(place, pages * PAGE, MADV_NOHUGEPAGE);
    return place;
}

static void summed(uint64_t *sum, const unsigned char *place, unsigned long pages)
{
    const uint64_t *words = (const uint64_t *)place;
    for (unsigned long i = 0; place && i < pages * PAGE / 8; i++)
        *sum = (*sum ^ words[i]) * 0x100000001b3ull;
}

static void say(int number)
{
    char name[512], beside[512];
    uint64_t sum = 0xcbf29ce484222325ull;
    /* Not the pages of `sparse` that hold nothing: reading would fill them. */
    for (unsigned long i = 0; i < SIDE; i += 7)
        summed(&sum, sparse + i * PAGE, 1);
    summed(&sum, is_shut ? NULL : area, PAGES);
    summed(&sum, file, SIDE);
    summed(&sum, extra, SIDE);
    snprintf(name, sizeof name, "%s/sum-%d", work, number);
    snprintf(beside, sizeof beside, "%s/beside", work);
    FILE *out = fopen(beside, "w");
    fprintf(out, "%016llx %lu %lu\n", (unsigned long long)sum, (unsigned long)area, (unsigned long)sparse);
    fclose(out);
    rename(beside, name);
}

/* What happens to the rest in round `number`. */
static void aside(int number)
{
    for (unsigned long i = 0; i < SIDE; i += 7)
        sparse[i * PAGE] = number;
    if (number == 1)
        extra = mapped(SIDE);
    if (number == 2)
        madvise(file, SIDE * PAGE, MADV_DONTNEED); /* what was written over the file is gone again */
    if (number == 2 && extra)
        madvise(extra, SIDE * PAGE, MADV_DONTFORK);
    if (number == 3) {
        unsigned char *to = mapped(SIDE);
        memset(to, 0x55, SIDE * PAGE);
        extra = mremap(extra, SIDE * PAGE, SIDE * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    }
    if (number == 4)
        madvise(extra, SIDE / 2 * PAGE, MADV_DONTNEED);
    if (extra)
        for (unsigned long i = number % 5; i < SIDE; i += 5)
            extra[i * PAGE] = number;
}

int main(int argc, char **argv)
{
    char name[512];
    sigset_t signals;
    int number = 0, direct = -1;
    if (argc < 2)
        return 2;
    work = argv[1];
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGUSR2);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGWINCH);
    sigaddset(&signals, SIGURG);
    sigaddset(&signals, SIGIO);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    area = mapped(PAGES);
    sparse = mapped(SIDE);
    for (unsigned long i = 0; i < PAGES; i++)
        *(unsigned long *)(area + i * PAGE) = i;
    snprintf(name, sizeof name, "%s/file", work);
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    for (unsigned long i = 0; i < SIDE; i++)
        if (write(fd, area + i * PAGE, PAGE) != (ssize_t)PAGE)
            return 1;
    file = mmap(NULL, SIDE * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    close(fd);
    memset(file, 0x77, SIDE * PAGE);
    aside(0);
    say(number);
    for (;;) {
        int got = sigwaitinfo(&signals, NULL);
        if (got < 0 && errno == EINTR)
            continue;
        if (got == SIGHUP)
            execv(argv[0], argv);
        if (got == SIGWINCH && fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            area[5 * PAGE] = 0xc5;
            for (;;)
                pause();
        }
        if (got == SIGURG)
            direct = direct < 0 ? open(name, O_RDWR | O_DIRECT) : close(direct) - 1;
        if (got == SIGIO) {
            is_shut = !is_shut;
            mprotect(area, PAGES * PAGE, is_shut ? PROT_NONE : PROT_READ | PROT_WRITE);
        }
        number++;
        if (got == SIGUSR1) {
            for (unsigned long i = number % 100; i < PAGES; i += 100)
                area[i * PAGE + 8] = number;
            aside(number);
        }
        say(number);
    }
}
