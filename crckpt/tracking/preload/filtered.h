/* Threads with filters of system calls (seccomp), while CRIU's code is in their processes (filtered.c). */
#pragma once

#include "library.h"

#ifdef __x86_64__
/* What is known of a thread: its process if it has filters, else 0; and where its registers lead that CRIU has set. */
struct filtered {
    int pid;
    uint64_t ip;
};

/* PTRACE_SETOPTIONS, as CRIU wants it when it has stopped the thread. */
long set_options_of(int tid, struct filtered *thread, unsigned long options);

/* PTRACE_POKEDATA: with the first one CRIU begins to use the thread's process, with the last one its code has left it. */
long write_word(int tid, const void *place, void *word);

/* Note what CRIU sets a thread's registers to, before it does. */
void note_registers(int tid, struct filtered *thread, const struct iovec *registers);

/* CRIU lets a thread run its code: before that, make its call, or suspend its filters. Whether that worked. */
int prepare_to_run(int tid, const struct filtered *thread);

/* CRIU is about to detach from a thread: make sure that its process is as before. */
void leave(int tid, const struct filtered *thread);

/* memory_holders.c: a process of this user that has the memory of process `pid` open, or -1. */
int find_memory_holder(int pid, int inner, unsigned user);

/* restart.c: whether CRIU traces this thread. */
int is_seized(int tid);

/* CRIU has opened this image: note which process it is of. */
void note_image(int number, const char *name);

/* CRIU closes an image: correct it. */
void correct_image(int number);
#else
static inline void note_image(int, const char *)
{
}
static inline void correct_image(int)
{
}
#endif
