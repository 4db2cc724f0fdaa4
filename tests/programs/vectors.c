/* Waits with known values in its vector registers. argv[1] is a descriptor that is closed once they are there; exits
   with 77 where the CPU has no AVX. */
#include <errno.h>
#include <stdlib.h>

#define CLOSE "mov $3, %%eax\n syscall\n"
#define PAUSE_FOR_EVER "1: mov $34, %%eax\n syscall\n jmp 1b\n"

unsigned char values[64];

__attribute__((noinline)) void waits_with_avx(int ready)
{
    __asm__ volatile("vmovdqu values(%%rip), %%ymm0\n" CLOSE PAUSE_FOR_EVER : : "D"(ready) : "rax", "rcx", "r11");
}

__attribute__((noinline)) void waits_with_avx512(int ready)
{
    __asm__ volatile("vmovdqu values(%%rip), %%ymm0\n"
                     "vmovdqu64 values(%%rip), %%zmm1\n"
                     "vmovdqu64 values(%%rip), %%zmm17\n"
                     "mov $0x1234, %%eax\n kmovw %%eax, %%k1\n" CLOSE PAUSE_FOR_EVER
                     :
                     : "D"(ready)
                     : "rax", "rcx", "r11");
}

int main(int count, char **words)
{
    if (count != 2)
        return 2;
    for (unsigned char at = 0; at < sizeof values; at++)
        values[at] = at + 1;
    errno = EREMOTE;
    if (__builtin_cpu_supports("avx512f"))
        waits_with_avx512(atoi(words[1]));
    if (!__builtin_cpu_supports("avx"))
        return 77;
    waits_with_avx(atoi(words[1]));
}
