/* System calls in stopped threads, for x86-64 and its 32-bit programs (thread_calls.c). */
#pragma once

#include "library.h"

#include <linux/ptrace.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/user.h>
#include <sys/wait.h>

#define SUSPEND_SECCOMP (1ul << 21) /* PTRACE_O_SUSPEND_SECCOMP */
#define GET_SYSCALL_INFO 0x420e     /* of Linux 5.3 (linux/ptrace.h) */
#define CODE_32 0x23                /* the code segment of 32-bit programs (__USER32_CS) */
#define INSTRUCTION 2               /* bytes of `syscall` and of `int $0x80` */

/* A system call; its number is another one in 32-bit programs. */
struct thread_call {
    uint64_t number, number_32, arguments[6];
};

/* Whether the kernel says what call a thread enters: without that none can be checked. */
int can_check_calls(int tid);

/*
 * Let the thread execute the instruction of a system call at `place`, where its registers lead, and stop when the call
 * returns. Filters of system calls (seccomp) are suspended for it only if the kernel says that it is this call: others
 * may have changed the code. Whether that was so. If not, the thread may be at the beginning of another call.
 */
int pass_call(int tid, uint64_t place, const struct thread_call *call);

/* The instruction of a system call for a thread with these registers. */
const char *instruction_of(const struct user_regs_struct *registers);

/*
 * Make the call, with that instruction, which is written to `place` for that time if it is not there, in a thread that is
 * otherwise unchanged afterwards: it is stopped where the kernel restarts an interrupted call. The 8 bytes at `place` are
 * read. Whether that worked; then `result` is the call's.
 */
int make_call(int tid, uint64_t place, const struct thread_call *call, long *result);

/* Find the call that the thread makes with its registers. Whether they could be read. */
int read_thread_call(int tid, struct thread_call *call);
