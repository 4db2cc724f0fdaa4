/*
 * A process that has given pages away to be written, and its parent, which writes them as a device does: past the
 * process's page tables, through a ring of io_uring with fixed buffers that the process itself no longer has.
 * Says "PID ADDRESS"; then for each piece of stdin, which goes to ADDRESS, its length.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define LENGTH (16 * 4096ul)

struct given {
    int pid, ring;
    unsigned char *place;
    struct io_uring_params params;
};

static void must(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(77);
    }
}

static void target(int to)
{
    struct given given = {.pid = getpid()};
    struct iovec buffer = {NULL, LENGTH};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    buffer.iov_base = given.place = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(given.place, 1, LENGTH);
    given.ring = syscall(SYS_io_uring_setup, 4, &given.params);
    must(given.ring >= 0, "io_uring_setup");
    must(syscall(SYS_io_uring_register, given.ring, IORING_REGISTER_BUFFERS, &buffer, 1) == 0, "registering buffers");
    /* Until here they are the parent's as well, which goes on with them. */
    must(unshare(CLONE_FILES) == 0, "unshare");
    must(write(to, &given, sizeof given) == sizeof given, "write");
    close_range(0, ~0u, 0);
    for (int number = 0; number < 3; number++)
        open("/dev/null", O_RDWR);
    for (;;)
        pause();
}

static void *ring_of(const struct given *given, unsigned long length, off_t which)
{
    void *place = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, given->ring, which);
    must(place != MAP_FAILED, "mapping the ring");
    return place;
}

int main(void)
{
    int ends[2];
    struct given given;
    must(pipe(ends) == 0, "pipe");
    if (syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL) == 0)
        target(ends[1]);
    must(read(ends[0], &given, sizeof given) == sizeof given, "read");
    const struct io_sqring_offsets *sent = &given.params.sq_off;
    const struct io_cqring_offsets *done = &given.params.cq_off;
    char *submit = ring_of(&given, sent->array + given.params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *complete = ring_of(&given, done->cqes + given.params.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    struct io_uring_sqe *entries = ring_of(&given, given.params.sq_entries * sizeof *entries, IORING_OFF_SQES);
    unsigned *tail = (unsigned *)(submit + sent->tail), *head = (unsigned *)(complete + done->head);
    printf("%d %lu\n", given.pid, (unsigned long)given.place);
    fflush(stdout);
    for (;;) {
        entries[0] = (struct io_uring_sqe){.opcode = IORING_OP_READ_FIXED, .addr = (uintptr_t)given.place, .len = LENGTH};
        entries[0].off = -1;
        ((unsigned *)(submit + sent->array))[*tail % given.params.sq_entries] = 0;
        __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
        must(syscall(SYS_io_uring_enter, given.ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1, "io_uring_enter");
        struct io_uring_cqe *event = (struct io_uring_cqe *)(complete + done->cqes) + *head % given.params.cq_entries;
        int result = event->res;
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        printf("%d\n", result);
        fflush(stdout);
        if (result <= 0)
            return 0;
    }
}
