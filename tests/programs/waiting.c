/* Two threads, each waiting in a function of its own name. argv[1] is a descriptor that is closed once both are there. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct known {
    int number;
    char text[16];
};

struct known in_data = {4711, "swordfish"};
struct known in_zeros;
struct known *on_heap;
char *behind_guard;
_Thread_local int own = 1;

static pthread_barrier_t both;
static int ready;

/* Linux 6.13 on; elsewhere there is no guard before the text. */
#define GUARD_INSTALL 102

static void guard(void)
{
    long page = sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(pages + page, page, GUARD_INSTALL);
    behind_guard = strcpy(pages + 2 * page, "behind the guard");
}

static void arrive(void)
{
    if (pthread_barrier_wait(&both) == PTHREAD_BARRIER_SERIAL_THREAD)
        close(ready);
}

__attribute__((noinline)) void waits_in_thread(long marker)
{
    own = 2;
    arrive();
    while (marker)
        pause();
}

void *second(void *unused)
{
    (void)unused;
    waits_in_thread(31337);
    return NULL;
}

__attribute__((noinline)) void waits_in_main(const char *word)
{
    arrive();
    while (word)
        pause();
}

int main(int count, char **words)
{
    pthread_t thread;
    if (count != 3)
        return 2;
    ready = atoi(words[1]);
    guard();
    in_data.number += 1;
    on_heap = malloc(sizeof *on_heap);
    *on_heap = (struct known){815, "in the heap"};
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&thread, NULL, second, NULL);
    waits_in_main(words[2]);
}
