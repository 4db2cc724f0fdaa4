/* A program with a restartable sequence (rseq(2)) that covers all code that others may run in it: while it waits in the
 * kernel, whoever lets its thread run anything else has the kernel send it to ours. That counts, and answers as if the
 * system call that was asked for had returned its own number. argv[1]: where a file with the count is made. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define BELOW_STACK (64ul << 20) /* above all that the kernel chooses an address for: what is injected lies below */

static const unsigned char waiting[] = {
    0x49, 0x89, 0xf8, 0x49, 0x89, 0xf1, /* mov %rdi, %r8; mov %rsi, %r9 */
    0x4d, 0x89, 0x08,                   /* mov %r9, (%r8): the kernel drops the sequence where it does not apply */
    0xb8, 0x07, 0x00, 0x00, 0x00,       /* mov $SYS_poll, %eax: for nothing, 10 ms */
    0x31, 0xff, 0x31, 0xf6,             /* xor %edi, %edi; xor %esi, %esi */
    0xba, 0x0a, 0x00, 0x00, 0x00,       /* mov $10, %edx */
    0x0f, 0x05,                         /* syscall */
    0xeb, 0xeb,                         /* jmp to the third */
};
static const unsigned char caught[] = {
    0x53, 0x30, 0x05, 0x53,                   /* RSEQ_SIG */
    0xf0, 0xff, 0x05, 0xb9, 0x0f, 0x00, 0x00, /* lock incl of the page after this one */
    0xcc,                                     /* int3 */
};

int main(int argc, char **argv)
{
    static struct { uint32_t version, flags; uint64_t start, length, abort; } __attribute__((aligned(32))) sequence;
    extern const ptrdiff_t __rseq_offset;
    char *area = (char *)__builtin_thread_pointer() + __rseq_offset;
    char *place = (char *)(((uintptr_t)&argc - BELOW_STACK) & ~(uintptr_t)(PAGE - 1));
    int file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, PAGE)
        || mmap(place, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != place
        || mmap(place + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0) != place + PAGE)
        return 1;
    close(file);
    memcpy(place, waiting, sizeof waiting);
    memcpy(place + 60, caught, sizeof caught);
    sequence.start = PAGE;
    sequence.length = (uintptr_t)place - PAGE;
    sequence.abort = (uintptr_t)place + 64;
    printf("ready %d\n", getpid());
    fflush(stdout);
    ((void (*)(void *, void *))place)(area + 8, &sequence);
}
