/*
 * Memory that is written, moved, dropped or replaced in unusual ways between two dumps. argv[1] is a directory. SIGUSR1
 * makes the next step of each trick; SIGUSR2 makes none. After each signal N there is a file argv[1]/sum-N with a line for
 * each trick: its name, and the checksum of its memory, or "-" if the host lacks what it needs. What argv[2] names is left
 * out.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES 64ul
#define LENGTH (PAGES * PAGE)
#define HUGE (2ul << 20)
/* Where nothing else is mapped. */
#define ALONE ((unsigned char *)0x100000000000ul)
/* What a libc may not know yet. */
#define MADV_COLLAPSE_ 25
#define MADV_POPULATE_WRITE_ 23
#define MADV_GUARD_INSTALL_ 102
#define MADV_GUARD_REMOVE_ 103
#define SYS_mseal_ 462

/* `looked_after` is what counts for the checksum. */
struct trick {
    const char *name;
    void (*does)(int step);
    unsigned char *first, *second, *third;
    struct { unsigned char *place; unsigned long length; } looked_after[8];
    int count, lacks, to_child[2], from_child[2];
};

static struct trick *now;
static const char *work;
static int number = -1;

#define first (now->first)
#define second (now->second)
#define third (now->third)
#define looked_after (now->looked_after)

static unsigned char *mapped(void *at, unsigned long length, int flags)
{
    unsigned char *place = mmap(at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (place == MAP_FAILED)
        now->lacks = 1;
    return place;
}

static void filled(unsigned char *place, unsigned long length, int with)
{
    for (unsigned long i = 0; i < length / PAGE; i++) {
        memset(place + i * PAGE, with, PAGE);
        *(unsigned long *)(place + i * PAGE) = i;
    }
}

/* One page in `every`. */
static void written(unsigned char *place, unsigned long length, int with, unsigned long every)
{
    for (unsigned long i = with % every; i < length / PAGE; i += every)
        memset(place + i * PAGE + 16, with, 100);
}

static unsigned char *looks_after(unsigned char *place, unsigned long length)
{
    looked_after[now->count].place = place;
    looked_after[now->count++].length = length;
    return place;
}

static unsigned char *area(unsigned long length, int with)
{
    unsigned char *place = mapped(NULL, length, 0);
    madvise(place, length, MADV_NOHUGEPAGE);
    filled(place, length, with);
    return looks_after(place, length);
}

static void needs(int is_there)
{
    now->lacks |= !is_there;
}

static void dont_unmapped(int step)
{
    if (step == 0)
        first = area(LENGTH, 1), second = area(LENGTH, 2);
    else {
        needs(mremap(first, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED | 4, second) != MAP_FAILED);
        written(first, LENGTH, step, 7);
    }
}

static void exchanged(int step)
{
    if (step == 0) {
        first = area(LENGTH, 1), second = area(LENGTH, 2), third = mapped(NULL, LENGTH, 0);
        return;
    }
    needs(mremap(first, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, third) != MAP_FAILED);
    needs(mremap(second, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, first) != MAP_FAILED);
    needs(mremap(third, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, second) != MAP_FAILED);
}

/* Parts of one map, so that what is moved may join what is registered. */
static void shifted(int step)
{
    if (step == 0) {
        first = area(LENGTH, 1);
        return;
    }
    unsigned char *aside = mapped(NULL, PAGE * 8, 0);
    needs(mremap(first + 8 * PAGE, PAGE * 8, PAGE * 8, MREMAP_MAYMOVE | MREMAP_FIXED, aside) != MAP_FAILED);
    needs(mremap(first + 24 * PAGE, PAGE * 8, PAGE * 8, MREMAP_MAYMOVE | MREMAP_FIXED, first + 8 * PAGE) != MAP_FAILED);
    needs(mremap(aside, PAGE * 8, PAGE * 8, MREMAP_MAYMOVE | MREMAP_FIXED, first + 24 * PAGE) != MAP_FAILED);
}

static void replaced(int step)
{
    if (step == 0) {
        first = area(LENGTH, 1);
        return;
    }
    munmap(first, LENGTH);
    mapped(first, LENGTH, MAP_FIXED);
    written(first, LENGTH, step, 5);
}

static void dropped(int step)
{
    volatile unsigned char sink;
    if (step == 0) {
        first = area(LENGTH, 1);
        return;
    }
    madvise(first + step * 8 * PAGE, 8 * PAGE, MADV_DONTNEED);
    sink = first[step * 8 * PAGE];
    (void)sink;
    first[(step * 8 + 1) * PAGE] = step;
    needs(madvise(first + (step * 8 + 2) * PAGE, PAGE, MADV_POPULATE_WRITE_) == 0);
    madvise(first + 40 * PAGE, 8 * PAGE, MADV_FREE);
    written(first + 40 * PAGE, 8 * PAGE, step, 1);
}

static void huge(int step)
{
    volatile unsigned char sink = 0;
    if (step == 0) {
        unsigned char *place = mapped(NULL, 5 * HUGE, 0);
        first = (unsigned char *)(((uintptr_t)place + HUGE) & -HUGE);
        madvise(first, 3 * HUGE, MADV_HUGEPAGE);
        filled(first, 3 * HUGE, 1);
        looks_after(first, 3 * HUGE);
    }
    if (step == 1) {
        first[HUGE + 5000] = 9;
        madvise(first, HUGE, MADV_DONTNEED);
        sink += first[77]; /* the huge page of zeros */
    }
    if (step == 2) {
        first[99 * PAGE] = 3;
        madvise(first + 2 * HUGE, 64 * PAGE, MADV_DONTNEED);
        madvise(first, 3 * HUGE, MADV_COLLAPSE_);
        first[2 * HUGE + 70 * PAGE] = 4;
    }
    (void)sink;
}

static void in_memfd(int step)
{
    static int memfd;
    if (step == 0) {
        memfd = memfd_create("tricks", MFD_ALLOW_SEALING);
        needs(ftruncate(memfd, LENGTH) == 0);
        first = looks_after(mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0), LENGTH);
        second = looks_after(mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE, memfd, 0), LENGTH);
        filled(first, LENGTH, 1);
        filled(second, LENGTH / 2, 2);
    }
    if (step == 1) {
        unsigned char *other = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
        written(other, LENGTH, 1, 6);
        munmap(other, LENGTH);
        needs(pwrite(memfd, "written", 7, 50 * PAGE) == 7);
        needs(fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 10 * PAGE, 4 * PAGE) == 0);
    }
    if (step == 2) {
        madvise(first + 20 * PAGE, 4 * PAGE, MADV_REMOVE);
        needs(pwrite(memfd, "again", 5, 22 * PAGE) == 5);
        munmap(first, LENGTH);
        needs(pwrite(memfd, "unmapped", 8, 30 * PAGE) == 8);
        needs(mmap(first, LENGTH, PROT_READ, MAP_SHARED | MAP_FIXED, memfd, 0) == first);
        madvise(second, 8 * PAGE, MADV_DONTNEED);
    }
}

static void childs(void (*does)(int))
{
    needs(pipe(now->to_child) == 0 && pipe(now->from_child) == 0);
    if (fork() == 0) {
        int step;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (read(now->to_child[0], &step, sizeof step) == sizeof step) {
            does(step);
            if (write(now->from_child[1], &step, sizeof step) < 0)
                break;
        }
        _exit(0);
    }
}

static void child_does(int step)
{
    needs(write(now->to_child[1], &step, sizeof step) == sizeof step && read(now->from_child[0], &step, sizeof step) == sizeof step);
}

static void child_writes_shared(int step)
{
    written(first, LENGTH, step, 3);
    madvise(first, 8 * PAGE, MADV_REMOVE);
    written(second, LENGTH, step, 3);
    madvise(first + 30 * PAGE, 8 * PAGE, MADV_PAGEOUT);
}

static void shared(int step)
{
    if (step == 0) {
        int id = shmget(IPC_PRIVATE, LENGTH, IPC_CREAT | 0600);
        first = looks_after(mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), LENGTH);
        second = looks_after(shmat(id, NULL, 0), LENGTH);
        shmctl(id, IPC_RMID, NULL);
        filled(first, LENGTH, 1);
        filled(second, LENGTH, 2);
        childs(child_writes_shared);
    } else
        child_does(step);
}

static void child_writes_parent(int step)
{
    unsigned char bytes[100];
    struct iovec from = {bytes, sizeof bytes}, to = {first + step * PAGE * 3 + 4000, sizeof bytes};
    char name[64];
    memset(bytes, 0x60 + step, sizeof bytes);
    process_vm_writev(getppid(), &from, 1, &to, 1, 0);
    snprintf(name, sizeof name, "/proc/%d/mem", getppid());
    int memory = open(name, O_RDWR);
    if (pwrite(memory, bytes, sizeof bytes, (off_t)(uintptr_t)(first + (20 + step) * PAGE)) < 0)
        _exit(1);
    close(memory);
    if (ptrace(PTRACE_SEIZE, getppid(), 0, 0) == 0 && ptrace(PTRACE_INTERRUPT, getppid(), 0, 0) == 0) {
        waitpid(getppid(), NULL, __WALL);
        ptrace(PTRACE_POKEDATA, getppid(), first + (30 + step) * PAGE, (void *)0x1234567890ul);
        ptrace(PTRACE_DETACH, getppid(), 0, 0);
    }
}

static void from_outside(int step)
{
    if (step == 0) {
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
        first = area(LENGTH, 1);
        mprotect(first + 30 * PAGE, 8 * PAGE, PROT_READ); /* is written by force */
        childs(child_writes_parent);
        return;
    }
    int memory = open("/proc/self/mem", O_RDWR);
    needs(pwrite(memory, "self", 4, (off_t)(uintptr_t)(first + (40 + step) * PAGE)) == 4);
    needs(pwrite(memory, "over a wall", 11, (off_t)(uintptr_t)(first + (33 + step) * PAGE)) == 11);
    close(memory);
    child_does(step);
}

static void over_a_file(int step)
{
    static int file;
    char name[512];
    if (step == 0) {
        snprintf(name, sizeof name, "%s/below", work);
        file = open(name, O_RDWR | O_CREAT, 0600);
        needs(ftruncate(file, LENGTH) == 0);
        first = looks_after(mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0), LENGTH);
        written(first, LENGTH, 1, 2);
    } else {
        needs(step > 1 || (pwrite(file, "below", 5, 10 * PAGE) == 5 && pwrite(file, "below", 5, 11 * PAGE) == 5));
        madvise(first + 8 * step * PAGE, PAGE * 4, MADV_DONTNEED);
        madvise(first + 40 * PAGE, PAGE * 8, MADV_PAGEOUT);
        first[(8 * step + 1) * PAGE + 9] = step;
    }
}

static void shut(int step)
{
    if (step == 0) {
        first = area(LENGTH, 1);
    }
    if (step == 1) {
        written(first, LENGTH, 3, 4);
        mprotect(first, LENGTH, PROT_NONE);
        mprotect(first + 10 * PAGE, PAGE, PROT_READ | PROT_WRITE);
        first[10 * PAGE + 99] = 2;
        mprotect(first + 10 * PAGE, PAGE, PROT_NONE);
        looked_after[0].length = 0;
    }
    if (step == 2) {
        mprotect(first, LENGTH, PROT_READ | PROT_WRITE);
        looked_after[0].length = LENGTH;
    }
}

static void guarded(int step)
{
    if (step == 0) {
        first = area(LENGTH, 1);
        needs(madvise(first, 4 * PAGE, MADV_GUARD_INSTALL_) == 0);
        looked_after[0].place = first + 16 * PAGE, looked_after[0].length = LENGTH - 16 * PAGE;
    }
    if (step == 1) {
        needs(madvise(first + 4 * PAGE, 4 * PAGE, MADV_GUARD_INSTALL_) == 0); /* over what was dumped */
        needs(madvise(first + 40 * PAGE, 4 * PAGE, MADV_GUARD_INSTALL_) == 0);
        needs(madvise(first + 40 * PAGE, 4 * PAGE, MADV_GUARD_REMOVE_) == 0);
        first[41 * PAGE] = 2;
    }
    if (step == 2) {
        needs(madvise(first, 8 * PAGE, MADV_GUARD_REMOVE_) == 0);
        first[3 * PAGE] = 3, first[7 * PAGE] = 4;
        looked_after[0].place = first, looked_after[0].length = LENGTH;
    }
}

static int deep(int depth)
{
    unsigned char here[3 * PAGE];
    memset(here, depth, sizeof here);
    return depth ? deep(depth - 1) + here[5] : here[7];
}

static void grown(int step)
{
    static unsigned char *heap;
    if (step == 0) {
        first = mapped(ALONE, PAGE * 4, MAP_GROWSDOWN | MAP_FIXED_NOREPLACE);
        looks_after(first, 4 * PAGE);
        filled(first, 4 * PAGE, 1);
        heap = sbrk(LENGTH);
        heap = (unsigned char *)(((uintptr_t)heap + PAGE - 1) & -PAGE);
        looks_after(heap, LENGTH / 2);
        filled(heap, LENGTH / 2, 3);
    } else {
        for (int i = 0; i < 8; i++) {
            first -= PAGE;
            memset(first, step, 50);
        }
        looked_after[0].place = first, looked_after[0].length += 8 * PAGE;
        deep(20 * step);
        unsigned char *more = sbrk(LENGTH);
        memset(more, step, 3 * PAGE);
        heap[step * PAGE] = step;
    }
}

static void enlarged(int step)
{
    if (step == 0) {
        first = mapped(ALONE + HUGE, LENGTH, MAP_FIXED_NOREPLACE);
        filled(first, LENGTH, 1);
        looks_after(first, LENGTH);
    } else {
        needs(mremap(first, step * LENGTH, (step + 1) * LENGTH, 0) == first);
        written(first + step * LENGTH, LENGTH, step, 5);
        looked_after[0].length = (step + 1) * LENGTH;
    }
}

/* New memory beside registered memory, in one map with it where nobody tracks. */
static void joined(int step)
{
    if (step == 0) {
        first = mapped(ALONE + 2 * HUGE, LENGTH, MAP_FIXED_NOREPLACE);
        filled(first, LENGTH, 1);
        looks_after(first, LENGTH);
    } else {
        needs(mapped(first + step * LENGTH, LENGTH, MAP_FIXED_NOREPLACE) == first + step * LENGTH);
        written(first + step * LENGTH, LENGTH, step, 5);
        mprotect(first + step * LENGTH - 4 * PAGE, 8 * PAGE, PROT_READ);
        mprotect(first + step * LENGTH - 4 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE);
        first[step * LENGTH - PAGE + 7] = 0x99;
        looked_after[0].length = (step + 1) * LENGTH;
    }
}

static void odd_kinds(int step)
{
    static unsigned char *zero, *wiped, *locked, *sealed, *named;
    if (step == 0) {
        int file = open("/dev/zero", O_RDWR);
        zero = looks_after(mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0), LENGTH);
        close(file);
        filled(zero, LENGTH, 1);
        wiped = area(LENGTH, 2);
        madvise(wiped, LENGTH, MADV_WIPEONFORK);
        madvise(wiped, LENGTH, MADV_DONTDUMP);
        locked = area(LENGTH, 3);
        mlock(locked, LENGTH / 2);
        mlock2(locked + LENGTH / 2, LENGTH / 2, MLOCK_ONFAULT);
        sealed = area(LENGTH, 4);
        named = area(LENGTH, 5);
    }
    if (step == 1)
        prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, named + PAGE, PAGE * 4, "heap stack");
    if (step == 1)
        syscall(SYS_mseal_, sealed, LENGTH, 0);
    written(zero, LENGTH, step, 5);
    written(wiped, LENGTH, step, 5);
    written(locked, LENGTH, step, 5);
    written(sealed, LENGTH, step, 5);
    written(named, LENGTH, step, 5);
}

static void spliced(int step)
{
    static int pipes[2];
    struct iovec given;
    if (step == 0) {
        first = area(LENGTH, 1), second = area(LENGTH, 2);
        needs(pipe(pipes) == 0);
        return;
    }
    given = (struct iovec){first + step * 4 * PAGE, 4 * PAGE};
    needs(vmsplice(pipes[1], &given, 1, SPLICE_F_GIFT) == (ssize_t)given.iov_len);
    first[step * 4 * PAGE + 5] = 0x77;
    given.iov_base = second + step * 8 * PAGE;
    needs(vmsplice(pipes[0], &given, 1, 0) == (ssize_t)given.iov_len);
}

static void child_writes_own(int step)
{
    written(first, LENGTH, step + 1, 2);
}

static void forked(int step)
{
    if (step == 0)
        first = area(LENGTH, 1);
    if (step == 1) {
        written(first, LENGTH, 1, 4);
        childs(child_writes_own);
        written(first, LENGTH, 2, 4);
    }
    if (step == 2) {
        child_does(step);
        written(first, LENGTH, 3, 4);
        if (vfork() == 0) {
            first[60 * PAGE] = 0x42;
            _exit(0);
        }
        wait(NULL);
    }
}

/* Memory that it manages itself for a moment, with pages that are brought, moved and protected so. */
static void managed(int step)
{
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register asked = {.mode = UFFDIO_REGISTER_MODE_MISSING};
    if (step == 0) {
        first = area(LENGTH, 1), second = area(LENGTH, 2);
        return;
    }
    int own = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    needs(own >= 0 && ioctl(own, UFFDIO_API, &api) == 0);
    munmap(second, LENGTH);
    mapped(second, LENGTH, MAP_FIXED);
    asked.range = (struct uffdio_range){(uintptr_t)second, LENGTH};
    needs(ioctl(own, UFFDIO_REGISTER, &asked) == 0);
    struct uffdio_copy copy = {(uintptr_t)second, (uintptr_t)first, 8 * PAGE, 0, 0};
    needs(ioctl(own, UFFDIO_COPY, &copy) == 0);
    struct uffdio_zeropage zeros = {{(uintptr_t)second + 8 * PAGE, 8 * PAGE}, 0, 0};
    needs(ioctl(own, UFFDIO_ZEROPAGE, &zeros) == 0);
    struct { uint64_t to, from, length, mode; int64_t moved; } move = {
        (uintptr_t)second + 16 * PAGE, (uintptr_t)first + 16 * PAGE, 8 * PAGE, 0, 0};
    ioctl(own, _IOWR(UFFDIO, 0x05, move), &move);
    close(own);
}

static void in_pieces(int step)
{
    /* As many maps as pages, which come and go, some with their rights changed and changed back. */
    if (step == 0)
        first = area(8 * LENGTH, 1);
    for (unsigned long i = step; i < 8 * PAGES; i += 2) {
        mprotect(first + i * PAGE, PAGE, PROT_READ);
        if (i % 3 == 0) {
            mprotect(first + i * PAGE, PAGE, PROT_READ | PROT_WRITE);
            first[i * PAGE + 3] = step;
        }
        if (i % 5 == 0) {
            mapped(first + i * PAGE, PAGE, MAP_FIXED);
            first[i * PAGE + 30] = step;
        }
    }
}

/* Where there was other memory at the dump before. */
static void vdso_moved(int step)
{
    char line[512];
    unsigned long start[8], end[8], total = 0;
    int found = 0;
    if (step == 0) {
        first = mapped(NULL, LENGTH, 0);
        filled(first, LENGTH, 1);
        second = mapped(NULL, LENGTH, 0);
        filled(second, LENGTH, 2);
        looks_after(second + LENGTH / 2, LENGTH / 2);
        return;
    }
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "[vdso]") || strstr(line, "[vvar"))
            needs(sscanf(line, "%lx-%lx", &start[found], &end[found]) == 2), found++;
    fclose(maps);
    unsigned char *to = step == 1 ? first : second;
    for (int i = 0; i < found; i++) {
        needs(mremap((void *)start[i], end[i] - start[i], end[i] - start[i], MREMAP_MAYMOVE | MREMAP_FIXED, to + total) !=
              MAP_FAILED);
        total += end[i] - start[i];
    }
}

static void limited(int step)
{
    struct rlimit none = {0, 0};
    if (step == 0) {
        first = area(LENGTH, 1);
        close_range(0, ~0u, 0);
        setrlimit(RLIMIT_MEMLOCK, &none);
        setrlimit(RLIMIT_SIGPENDING, &none);
        prctl(PR_SET_DUMPABLE, 0);
    }
    written(first, LENGTH, step + 1, 5);
}

/* Tables full of marks and zeros. */
static void marked(int step)
{
    volatile unsigned char sink = 0;
    if (step == 0)
        first = looks_after(mapped(NULL, 4 * HUGE, 0), 4 * HUGE);
    for (unsigned long i = 0; i < 4 * HUGE / PAGE; i++)
        if (i % 4 == (unsigned)step)
            first[i * PAGE] = i;
        else if (i % 8 == 1)
            sink += first[i * PAGE];
        else if (i % 8 == 5)
            madvise(first + i * PAGE, PAGE, MADV_DONTNEED);
    (void)sink;
}

/* The first closes all descriptors. */
static struct trick tricks[] = {
    {.name = "limited", .does = limited},
    {.name = "dont_unmapped", .does = dont_unmapped},
    {.name = "exchanged", .does = exchanged},
    {.name = "shifted", .does = shifted},
    {.name = "replaced", .does = replaced},
    {.name = "dropped", .does = dropped},
    {.name = "huge", .does = huge},
    {.name = "in_memfd", .does = in_memfd},
    {.name = "shared", .does = shared},
    {.name = "from_outside", .does = from_outside},
    {.name = "over_a_file", .does = over_a_file},
    {.name = "shut", .does = shut},
    {.name = "guarded", .does = guarded},
    {.name = "grown", .does = grown},
    {.name = "enlarged", .does = enlarged},
    {.name = "joined", .does = joined},
    {.name = "odd_kinds", .does = odd_kinds},
    {.name = "spliced", .does = spliced},
    {.name = "forked", .does = forked},
    {.name = "managed", .does = managed},
    {.name = "in_pieces", .does = in_pieces},
    {.name = "marked", .does = marked},
    {.name = "vdso_moved", .does = vdso_moved},
};
#define TRICKS (sizeof tricks / sizeof *tricks)

static void step_all(int step)
{
    for (now = tricks; now < tricks + TRICKS; now++)
        if (!now->lacks)
            now->does(step);
}

static void say(void)
{
    char name[512], beside[512];
    snprintf(name, sizeof name, "%s/sum-%d", work, ++number);
    snprintf(beside, sizeof beside, "%s/beside", work);
    int out = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    for (now = tricks; now < tricks + TRICKS; now++) {
        uint64_t sum = 0xcbf29ce484222325ull;
        for (int i = 0; i < now->count && !now->lacks; i++)
            for (unsigned long j = 0; j < looked_after[i].length / 8; j++)
                sum = (sum ^ ((uint64_t *)looked_after[i].place)[j]) * 0x100000001b3ull;
        if (now->lacks)
            dprintf(out, "%s -\n", now->name);
        else
            dprintf(out, "%s %016llx\n", now->name, (unsigned long long)sum);
    }
    close(out);
    rename(beside, name);
}

int main(int argc, char **argv)
{
    sigset_t signals;
    int got = 0;
    if (argc < 2)
        return 2;
    work = argv[1];
    for (now = tricks; now < tricks + TRICKS; now++)
        now->lacks = argc > 2 && !strcmp(now->name, argv[2]);
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGUSR2);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    step_all(0);
    for (int step = 1;;) {
        say();
        do
            got = sigwaitinfo(&signals, NULL);
        while (got < 0);
        if (got == SIGUSR1)
            step_all(step++);
    }
}
