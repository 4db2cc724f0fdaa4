/*
 * CRIU's action script of a hold. CRIU runs it at each of its steps. At those that CRCKPT_HOLD_STEPS names (between
 * commas) it waits, in the directory of that name in CRCKPT_HOLDS, which may be relative to CRIU's work directory.
 * Status 0 lets CRIU go on; any other makes it undo its work.
 *
 * It is static, has no libc, and opens nothing else: CRIU may run it in the mount namespace of a tree, where every path
 * may lead to a file of another user.
 */
#define _GNU_SOURCE
#include <unistd.h>

/* As libc's, but for errno: a result below 0 is a failure. */
#define syscall(...) CALL(__VA_ARGS__, 0, 0, 0, 0, 0)
#define CALL(number, a, b, c, d, e, ...) call(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e))
static long call(long number, long a, long b, long c, long d, long e);

#include "hold.h"

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n hlt\n");

static long call(long number, long a, long b, long c, long d, long e)
{
    register long fourth __asm__("r10") = d, fifth __asm__("r8") = e;
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
__asm__(".globl _start\n_start:\n mov x29, #0\n mov x30, #0\n mov x0, sp\n bl begin\n brk #1\n");

static long call(long number, long a, long b, long c, long d, long e)
{
    register long eighth __asm__("x8") = number, first __asm__("x0") = a, second __asm__("x1") = b;
    register long third __asm__("x2") = c, fourth __asm__("x3") = d, fifth __asm__("x4") = e;

    __asm__ volatile("svc #0"
                     : "+r"(first)
                     : "r"(eighth), "r"(second), "r"(third), "r"(fourth), "r"(fifth)
                     : "memory");
    return first;
}
#else
#error "the hold's program knows the system calls of x86-64 and aarch64"
#endif

static void say(const char *text)
{
    const char *end = text;
    while (*end)
        end++;
    syscall(SYS_write, 2, text, end - text);
}

/* The value of `name`, which ends in =, in the environment; NULL if it is not there. */
static const char *variable(char **environment, const char *name)
{
    for (; *environment; environment++) {
        const char *text = *environment, *wanted = name;
        while (*wanted && *text == *wanted)
            text++, wanted++;
        if (!*wanted)
            return text;
    }
    return 0;
}

/* Whether `word` stands in `list`, between commas. */
static int is_among(const char *list, const char *word)
{
    while (*list) {
        const char *letter = word;
        while (*letter && *list == *letter)
            list++, letter++;
        if (!*letter && (!*list || *list == ','))
            return 1;
        while (*list && *list != ',')
            list++;
        if (*list)
            list++;
    }
    return 0;
}

static int status_of(char **environment)
{
    const char *step = variable(environment, "CRTOOLS_SCRIPT_ACTION=");
    const char *steps = variable(environment, "CRCKPT_HOLD_STEPS=");
    const char *directory = variable(environment, "CRCKPT_HOLDS=");

    if (!step || !steps || !directory) {
        say("crckpt's hold: it is not known where to wait\n");
        return 1;
    }
    if (!is_among(steps, step))
        return 0;
    long holds = syscall(SYS_openat, AT_FDCWD, directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    long hold = syscall(SYS_openat, holds, step, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    enum answer answer = wait_for_answer((int)hold);
    if (answer == UNANSWERED) {
        say("crckpt's hold: no answer while CRIU waited at ");
        say(step);
        say("\n");
    }
    return answer == COMMITTED ? 0 : 1;
}

__attribute__((used, noreturn)) void begin(long *stack)
{
    char **arguments = (char **)(stack + 1);

    syscall(SYS_exit_group, status_of(arguments + stack[0] + 1));
    __builtin_unreachable();
}
