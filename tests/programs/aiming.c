/* A program whose restartable sequence (rseq(2)) is in shared memory, and what aims it at code that CRIU runs in a restore.
 * aiming program FILE: waits. If the kernel leaves other code for `caught`, that writes to FILE whose rights it has.
 * aiming aim FILE: names that sequence all the time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIGNATURE 0x53053053
#define PLACE ((char *)0x200000000000)
#define CODE_OF_CRIU 0x10000, 0x10000000

static struct shared {
    struct area { uint32_t cpu_start, cpu; volatile uint64_t sequence; uint32_t more[4]; } __attribute__((aligned(32))) area;
    struct { uint32_t version, flags; uint64_t start, length, abort; } __attribute__((aligned(32))) sequence;
    volatile int as_root, as_user; /* as_root at 64 */
} *const shared = (void *)PLACE;

static long call(long number, long one, long two)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(one), "S"(two) : "rcx", "r11", "memory");
    return result;
}

void caught(void);
__attribute__((used, noinline)) static void count(void)
{
    *(call(SYS_geteuid, 0, 0) ? &shared->as_user : &shared->as_root) = 1;
    call(SYS_exit_group, 0, 0);
}
__asm__(".text\n.long 0x53053053\n.globl caught\ncaught: andq $-16, %rsp\n call count\n");

int main(int argc, char **argv)
{
    int file = argc == 3 ? open(argv[2], O_RDWR) : -1;
    if (file < 0 || mmap(PLACE, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0) != PLACE)
        return 1;
    close(file);
    if (!strcmp(argv[1], "aim")) {
        printf("ready\n");
        fflush(stdout);
        for (;;)
            shared->area.sequence = (uintptr_t)&shared->sequence;
    } else {
        const uint64_t covered[] = {CODE_OF_CRIU};
        struct sched_param none = {0};
        shared->sequence.start = covered[0];
        shared->sequence.length = covered[1];
        shared->sequence.abort = (uintptr_t)caught;
        if (syscall(SYS_rseq, &shared->area, sizeof shared->area, 0, SIGNATURE))
            return 2;
        sched_setscheduler(0, SCHED_IDLE, &none); /* often interrupted */
        printf("ready %d\n", getpid());
        fflush(stdout);
        for (;;)
            pause();
    }
    return 0;
}
