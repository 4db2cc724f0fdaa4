/*
 * A program of nobody's in which another process of nobody's misleads CRIU, when CRIU makes system calls in it. These are
 * made by code that both processes map.
 * misleading descriptor FILE: the call that makes a memory file returns a descriptor of FILE, which nobody may not open.
 * misleading map FILE: there are no memory files, and what is mapped instead is FILE, which nobody may only read.
 * misleading count: CRIU's code in it has described more maps than there is memory for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534
#define CODE ((unsigned char *)0x100000) /* CRIU takes the lowest code */
#define SIZE (1 << 20)
#define PROTECTED 0x6000000 /* a map that CRIU has to describe */
#define OTHER 9 /* the descriptor of FILE */

static volatile uint64_t *const code = (uint64_t *)CODE;

/* Whether CRIU has written: syscall; int3. */
static int is_due(void)
{
    return (*code & 0xffffff) == 0xcc050f;
}

/* In place of the next call that CRIU makes, execute this. */
static void replace_call(uint64_t instead)
{
    while (!is_due())
        ;
    *code = instead;
    while (*code == instead)
        ;
}

/* mov eax, NUMBER; int3 */
static void answer(int number)
{
    replace_call(0xb8 | (uint64_t)(uint32_t)number << 8 | 0xccull << 40);
}

/* jmp to a call of mmap(2) that maps OTHER, private and only to read, in as many bytes as CRIU wants to share. */
static void map_other(void)
{
    static const unsigned char map[] = {0xba, 1, 0, 0, 0, 0x41, 0xba, 2, 0, 0, 0, 0x41, 0xb8, OTHER, 0, 0, 0, 0x0f, 0x05, 0xcc};
    memcpy(CODE + 0x40, map, sizeof map);
    replace_call(0xe9 | (0x40ull - 5) << 8);
}

/* Find in this memory what CRIU describes to its code: the number of maps, 20 bytes, and the maps. Returns its offset. */
static long find_description(int memory, unsigned long start, unsigned long end)
{
    static unsigned char content[1 << 20];
    static long found;
    uint64_t wanted = PROTECTED, first = 0;
    long length = end - start < sizeof content ? end - start : sizeof content;
    if (found)
        return pread(memory, &first, sizeof first, start + found + 24) == sizeof first && first == wanted ? found : 0;
    if (pread(memory, content, length, start) != length)
        return 0;
    unsigned char *place = memmem(content + 24, length - 24, &wanted, sizeof wanted);
    found = place ? place - content - 24 : 0;
    return found;
}

/* As soon as CRIU has described the maps, make them many more. */
static void raise_count(int pid)
{
    char name[64], line[512];
    unsigned long start, end;
    const uint32_t many = 1 << 28;
    snprintf(name, sizeof name, "/proc/%d/mem", pid);
    int memory = open(name, O_RDWR);
    snprintf(name, sizeof name, "/proc/%d/maps", pid);
    FILE *maps = fopen(name, "r");
    if (!maps)
        _exit(0);
    while (fgets(line, sizeof line, maps)) {
        long found = 0;
        if (!strstr(line, " rw-s ") || !strstr(line, "/memfd:CRIUMFD") || sscanf(line, "%lx-%lx", &start, &end) != 2)
            continue;
        for (int i = 0; !found && i < 100000; i++)
            found = find_description(memory, start, end);
        while (found && pwrite(memory, &many, sizeof many, start + found) == sizeof many)
            ;
    }
    fclose(maps);
    close(memory);
}

static void mislead(const char *how, int pid)
{
    if (!strcmp(how, "descriptor"))
        answer(OTHER);
    if (!strcmp(how, "map")) {
        answer(-ENOSYS);
        map_other();
    }
    while (!strcmp(how, "count"))
        raise_count(pid);
}

int main(int count, char **words)
{
    if (count < 2)
        return 2;
    const char *how = words[1];
    syscall(SYS_setgroups, 0, NULL);
    if (syscall(SYS_setresgid, NOBODY, NOBODY, NOBODY) || syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY))
        return 1;
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    int file = memfd_create("code", 0), pid = getpid();
    if (ftruncate(file, SIZE) ||
        mmap(CODE, SIZE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
        return 1;
    close(file);
    mmap((void *)PROTECTED, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (count > 2)
        dup2(open(words[2], strcmp(how, "map") ? O_PATH : O_RDONLY), OTHER);
    if (!fork()) {
        if (fork())
            _exit(0);
        setsid();
        puts("ready");
        fflush(stdout);
        close(1);
        mislead(how, pid);
        _exit(0);
    }
    wait(NULL); /* it is no child of this program any more */
    for (;;)
        pause();
}
