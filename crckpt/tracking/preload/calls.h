/* The system call that a stopped thread is in, from its registers, for x86-64 and its 32-bit programs (calls.c). */
#pragma once

#include "library.h"

#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

/* struct user_regs_struct, and that of a 32-bit program. */
struct registers {
    uint64_t others[10], ax, after[4], orig_ax, ip, cs, flags, sp, ss, rest[6];
};

struct registers_32 {
    uint32_t bx, others[5], ax, segments[4], orig_ax, ip, cs, flags, sp, ss;
};

/* A system call: its number and result, and `first`, its first argument. */
struct call {
    int is_compat;
    long number, result, ip, sp, first;
};

/* Read the call from registers. Whether they are of a size that we know. */
int read_call(const struct iovec *registers, struct call *call);

/* Write to the registers that `call` ends with this result. */
void write_call(struct iovec *registers, const struct call *call, long ip, long result);

/* Whether the call was interrupted, and returns EINTR or is made again. */
int is_interrupted(const struct call *call);

/* Whether a call that returns EINTR has done nothing, and can be made again. */
int is_made_again(int tid, const struct call *call);
