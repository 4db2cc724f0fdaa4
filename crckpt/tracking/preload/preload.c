/*
 * Lets an unmodified CRIU do --track-mem, pre-dump and --prev-images-dir where the kernel has no soft-dirty bits; stops
 * it before it resets any, so that whoever started it can look at the frozen tree (let_through); moves scattered pages
 * out of it with fewer calls (splice), or reads them when it runs again (process_vm_readv); and tells it the flags of
 * maps without a look at every page (smaps.c). Where a tree has mounts of its own, CRIU comes to be in them (enter.c).
 *
 * CRCKPT_TRACKER=soft-dirty: the kernel has the bits, and what CRIU asks goes to the kernel as it is; but pages that
 * are not where they were, or may be written without a bit, read as written (frames.c).
 * CRCKPT_TRACKER=uffd-wp: CRIU asks for soft-dirty; it gets what asynchronous write protection (userfaultfd) knows.
 * Whoever starts CRIU has registered the tree's memory. Pages that nobody has registered read as written, so a mistake
 * there costs bytes.
 *
 *   reading /proc/PID/pagemap          every page is soft-dirty: CRIU's self-test passes, an old CRIU dumps all
 *   PAGEMAP_SCAN for SOFT_DIRTY        the first of a process looks at all that is WPALLOWED, protects again what was
 *                                      written (WP_MATCHING), and is kept: clean is what was allowed, and not WRITTEN;
 *                                      what is not allowed is asked for each time
 *   writing "4" to /proc/PID/clear_refs   nothing, if it was scanned; else protects again what was written
 *   criu.kdat                          is not there and cannot be made: what is pretended here is never remembered
 *
 * Without CRCKPT_TRACKER nothing is tracked, and CRIU does all of this as it would alone: it runs with this library only
 * so that system calls are not interrupted (restart.c).
 *
 * What CRIU asks beyond that is refused, in words on stderr, and so is every reset with another CRCKPT_TRACKER. Needs
 * only syscall(2), sysconf(3), errno and environ of whatever libc CRIU is linked with. Sources: linux/fs.h; criu/mem.c,
 * criu/pagemap-cache.c, criu/kerndat.c, criu/cr-dump.c, criu/page-xfer.c of CRIU 4.2.
 */
#define _GNU_SOURCE
#include "enter.h"
#include "frames.h"
#include "opens.h"
#include "links.h"
#include "smaps.h"
#include "text.h"
#include "../../criu/hold.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* With musl these are other names of the same; CRIU may ask for either. */
#undef open64
#undef openat64
#undef pread64

#define VISIBLE __attribute__((visibility("default")))

#define SCAN 0xC0606610ul
#define WP_MATCHING 1ull
#define WPALLOWED (1ull << 0)
#define WRITTEN (1ull << 1)
#define FILES (1ull << 2)
#define PRESENT (1ull << 3)
#define SWAPPED (1ull << 4)
#define PFNZERO (1ull << 5)
#define SOFT_DIRTY (1ull << 7)
#define OURS (WPALLOWED | WRITTEN | SOFT_DIRTY)
/* More than any pipe holds. */
#define MOST (1ul << 30)
/* So many regions does the kernel report with one call. */
#define AT_ONCE 4096
#define MIN(one, other) ((one) < (other) ? (one) : (other))
#define MAX(one, other) ((one) > (other) ? (one) : (other))

struct region {
    uint64_t start, end, categories;
};

struct scan {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t inverted, mask, anyof, told;
};

/*
 * The files that we look after. A number may have come to name another file without our seeing it: the inode says.
 * `pid` is whose page map it is, or whose bits are reset, 0 if it is CRIU's own; `unchanged` are those of its maps that
 * are as they were (frames.c), `vdso` the regions of its vDSO.
 */
static struct file {
    int number;
    enum { NONE, PAGEMAP, CLEAR_REFS, PAGES } kind;
    dev_t device;
    ino_t inode;
    int pid;
    struct bytes unchanged, vdso;
} files[64];

/* What was moved from a pipe to a file before CRIU asked for it. */
static struct {
    int from, to;
    size_t length;
} ahead;

extern char **environ;

static long refused(const char *what)
{
    say("crckpt's preload does not know what CRIU asks: ");
    say(what);
    say("\n");
    errno = ENOTSUP;
    return -1;
}

/* What follows `name`, which ends in =, in the environment; empty if it is not there. */
static const char *variable(const char *name)
{
    for (char **one = environ; one && *one; one++)
        if (begins(*one, name)) {
            const char *value = *one;
            while (*name++)
                value++;
            return value;
        }
    return "";
}

static int tracker_is(const char *name)
{
    return same(variable("CRCKPT_TRACKER="), name);
}

static int is_tracking(void)
{
    return *variable("CRCKPT_TRACKER") != 0;
}

/*
 * CRIU comes to its first scan and reset with all of the tree frozen, in a pre-dump too, where it runs no script. What
 * writes the tree's memory unseen must be known by then. This is CRIU's end of a hold (criu/hold.h), as elsewhere its
 * action script is. ECANCELED is a failure to CRIU, after which it lets the tree run on; at EINVAL it would take the
 * kernel to have no soft-dirty bits, and abort.
 */
static int let_through(void)
{
    static int is_let;
    const char *place = variable("CRCKPT_HOLD=");
    if (is_let || !*place)
        return 1;
    int hold = syscall(SYS_openat, AT_FDCWD, place, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    enum answer answer = wait_for_answer(hold);
    syscall(SYS_close, hold);
    if (answer == UNANSWERED)
        say("crckpt's preload: no answer while the tree was frozen\n");
    is_let = answer == COMMITTED;
    if (!is_let) {
        say("crckpt's preload: who started this CRIU does not let it reset what was written\n");
        errno = ECANCELED;
    }
    return is_let;
}

/* What the registered memory of a process held when what was written of it was protected: regions, in order. */
struct taken {
    int pid;
    struct bytes regions;
};
static struct bytes all_taken;

static int identified(int number, struct stat *status)
{
    return syscall(SYS_fstat, number, status) == 0;
}

static struct file *known(int number)
{
    struct stat status;
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i].kind != NONE && files[i].number == number) {
            int before = errno;
            if (identified(number, &status) && status.st_dev == files[i].device && status.st_ino == files[i].inode)
                return &files[i];
            errno = before;
            files[i].kind = NONE;
        }
    return NULL;
}

/* Closes the number if it cannot be looked after. */
static int looked_after(int number, int kind, int pid)
{
    struct stat status;
    if (number < 0)
        return number;
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i].kind == NONE && identified(number, &status)) {
            let_go(&files[i].unchanged);
            let_go(&files[i].vdso);
            files[i] = (struct file){number, kind, status.st_dev, status.st_ino, pid, {0}, {0}};
            return number;
        }
    syscall(SYS_close, number);
    return refused("more than 64 page maps and images of pages at once");
}

/* The path of what is called `name` where this clear_refs is, in `into`; whether there is room for it. */
static int beside(char into[4096], const char *path, const char *last, const char *name)
{
    char *end = into + 4096;
    while (path < last && into < end)
        *into++ = *path++;
    while (into < end && (*into++ = *name))
        name++;
    return into < end;
}

/* Not what somebody has called as we know it. */
static int is_of_proc(int number)
{
    struct statfs there;
    return number >= 0 && syscall(SYS_fstatfs, number, &there) == 0 && there.f_type == PROC_SUPER_MAGIC;
}

/* What number the process has in this /proc is the first word of its stat. */
static int pid_in(int directory, const char *stat)
{
    char digit;
    int pid = 0, number = syscall(SYS_openat, directory, stat, O_RDONLY | O_CLOEXEC, 0);
    while (syscall(SYS_read, number, &digit, 1) == 1 && digit >= '0' && digit <= '9')
        pid = 10 * pid + digit - '0';
    syscall(SYS_close, number);
    return pid;
}

/* Whose /proc this is in; 0 if it is CRIU's own, -1 if that cannot be told. */
static int pid_beside(int directory, const char *path, const char *last)
{
    char name[4096], own[4096];
    if (!beside(name, path, last, "stat") || !beside(own, path, last, "../self/stat"))
        return -1;
    int pid = pid_in(directory, name);
    return !pid ? -1 : pid == pid_in(directory, own) ? 0 : pid;
}

/*
 * For write protection a reset needs the page map, which lies beside. CRIU resets its own bits, too, in a self-test
 * before the tree is frozen: by its number, which says nothing here.
 */
static int opened_to_reset(int directory, const char *path, const char *last, int flags)
{
    char name[4096];
    int is_passed = tracker_is("soft-dirty");
    if (!is_passed && !tracker_is("uffd-wp"))
        return refused("a reset, and no tracker of this name");
    if (!beside(name, path, last, is_passed ? "clear_refs" : "pagemap"))
        return refused("a path longer than 4096");
    int number = syscall(SYS_openat, directory, name, is_passed ? flags : O_RDONLY | O_CLOEXEC, 0);
    if (number < 0)
        return number;
    int pid = is_of_proc(number) ? pid_beside(directory, path, last) : -1;
    if (pid < 0) {
        syscall(SYS_close, number);
        return refused("a reset in another place than /proc");
    }
    return looked_after(number, CLEAR_REFS, pid);
}

static int opened_smaps(int directory)
{
    int number = syscall(SYS_openat, directory, "smaps", O_RDONLY, 0);
    if (!is_of_proc(number))
        return number;
    int pid = pid_in(directory, "stat");
    if (are_frames_wanted())
        see_maps(pid, syscall(SYS_openat, directory, "maps", O_RDONLY | O_CLOEXEC, 0));
    return as_smaps(number, syscall(SYS_openat, directory, "maps", O_RDONLY | O_CLOEXEC, 0), pid);
}

/* Whether a line of maps, from its permissions on, is of the vDSO. The name of a file begins with a slash. */
static int is_of_vdso(const char *line, const char *end)
{
    for (int field = 0; field < 4; field++) {
        while (line < end && *line != ' ')
            line++;
        while (line < end && *line == ' ')
            line++;
    }
    const char *wanted = "[vdso]\n";
    while (*wanted && line < end && *line == *wanted)
        line++, wanted++;
    return !*wanted;
}

/* As if it was written: CRIU takes no page of a file for written, and asks for all of this (should_dump_entire_vma). */
static void find_vdso(int list, struct bytes *regions)
{
    static struct bytes text;
    text.length = 0;
    if (list >= 0 && all_read(list, &text)) {
        const char *end = text.at + text.length;
        for (const char *line = text.at; line < end; line = line_after(line, end)) {
            struct region one = {.categories = PRESENT | WRITTEN};
            one.start = address(&line);
            line++;
            one.end = address(&line);
            if (is_of_vdso(++line, end))
                added(regions, (const char *)&one, (const char *)(&one + 1));
        }
    }
    syscall(SYS_close, list);
}

/* Of a process. Its bits go to CRIU as they are only where nothing can be kept beside them, as in a self-test. */
static int opened_pagemap(int number, int directory, const char *path, const char *last)
{
    char name[4096];
    int is_passed = tracker_is("soft-dirty");
    if (!is_of_proc(number) || (is_passed && !are_frames_wanted()))
        return number;
    number = looked_after(number, PAGEMAP, pid_beside(directory, path, last));
    struct file *file = number >= 0 ? known(number) : NULL;
    int has_name = file && beside(name, path, last, "maps");
    if (has_name && is_passed)
        keep_maps(file->pid, syscall(SYS_openat, directory, name, O_RDONLY | O_CLOEXEC, 0), &file->unchanged);
    if (has_name && file->pid > 0)
        find_vdso(syscall(SYS_openat, directory, name, O_RDONLY | O_CLOEXEC, 0), &file->vdso);
    return number;
}

/* Programs that CRIU starts (its scripts, tar for a tmpfs) may have to do with files that are called so by chance. */
static void keep_to_criu(void)
{
    static int is_done;
    char **kept = environ;
    if (is_done || !environ)
        return;
    is_done = 1;
    for (char **one = environ; *one; one++)
        if (!begins(*one, "LD_PRELOAD="))
            *kept++ = *one;
    *kept = NULL;
    prepare_to_enter(variable("CRCKPT_ENTER="));
    prepare_for_smaps(variable("CRCKPT_MAP_FLAGS="));
    prepare_frames(tracker_is("soft-dirty") ? variable("CRCKPT_FRAMES=") : "", !*variable("CRCKPT_JOINED_ARE_DIRTY="));
}

static int opened(int directory, const char *path, int flags, mode_t mode)
{
    const char *last = begin_of_last(path);
    int inside;
    keep_to_criu();
    if (opened_inside(directory, path, flags, is_mount_table(path) && !pid_beside(directory, path, last), &inside))
        return inside;
    if (!is_tracking())
        return syscall(SYS_openat, directory, path, flags, mode);
    if (begins(last, "criu.kdat") && !tracker_is("soft-dirty")) {
        errno = flags & O_CREAT ? EEXIST : ENOENT;
        return -1;
    }
    if (same(last, "clear_refs"))
        return opened_to_reset(directory, path, last, flags);
    if (same(path, "smaps") && directory != AT_FDCWD && flags == O_RDONLY)
        return opened_smaps(directory);
    int number = syscall(SYS_openat, directory, path, flags, mode);
    if (begins(last, "pages-") && flags & O_CREAT)
        return looked_after(number, PAGES, 0);
    return same(last, "pagemap") ? opened_pagemap(number, directory, path, last) : number;
}

/* What was read of a file at this place, where it is a page map. */
static ssize_t with_dirty(int number, uint64_t *entries, ssize_t length, off_t place)
{
    struct file *file = length > 0 ? known(number) : NULL;
    ssize_t count = length / (ssize_t)sizeof *entries;
    int is_passed = tracker_is("soft-dirty");
    if (!file || file->kind == PAGES || (is_passed && file->kind != PAGEMAP))
        return length;
    if ((is_passed ? length | place : length) % sizeof *entries)
        return refused("part of a page map's entry");
    if (is_passed)
        moved_are_dirty(file->pid, &file->unchanged, place / sizeof *entries, entries, count);
    for (ssize_t i = 0; i < count && !is_passed; i++)
        entries[i] |= ENTRY_SOFT_DIRTY;
    return length;
}

/*
 * Where a scan that found these went to. The kernel collects 512 at a time, and says where it was after those, if the
 * last such time was not cut short (fs/proc/task_mmu.c, do_pagemap_scan).
 */
static uint64_t end_of(const struct scan *scan, const struct region *regions, long found)
{
    return found > 0 && regions[found - 1].end > scan->walk_end ? regions[found - 1].end : scan->walk_end;
}

/*
 * What registered memory holds, into `into`, with what is `told` of it; what was written is protected again, if `flags`
 * say so. Every map at once: unregistered ones, hugetlb among them, are passed over before their page tables are looked
 * at, and it is anonymous, so that nothing has to be looked up of pages to leave out those of files.
 * Pages that hold nothing must not be marked: the mark would be taken for a page that was swapped out. The kernel
 * respects that only if it is to report the regions: without a vector it marks all (pagemap_scan_pmd_entry).
 */
static int walked(int number, uint64_t flags, uint64_t told, struct bytes *into)
{
    struct scan scan = {
        .size = sizeof scan,
        .flags = flags,
        .inverted = PFNZERO,
        .mask = PFNZERO | WPALLOWED,
        .anyof = PRESENT | SWAPPED,
    };
    int bits = 56;
    long found;
    into->length = 0;
    /* How many bits an address has differs between kernels: what is too high is refused as a whole. */
    do {
        if (!has_room(into, AT_ONCE * sizeof(struct region)))
            return 0;
        struct region *regions = (void *)(into->at + into->length);
        scan.end = (1ull << bits) - sysconf(_SC_PAGESIZE);
        scan.told = told, scan.vec = (uintptr_t)regions, scan.vec_len = AT_ONCE;
        found = syscall(SYS_ioctl, number, SCAN, &scan);
        if (found < 0 && (scan.start || bits-- == 36 || (errno != EFAULT && errno != EINVAL)))
            return 0;
        if (found > 0)
            into->length += found * sizeof *regions;
        if (found < 0)
            continue;
        /* Some kernels stop at a huge page of 1 GiB (pagemap_scan_hugetlb_entry). */
        uint64_t reached = end_of(&scan, regions, found);
        if (reached <= scan.start) {
            say("crckpt's preload: the kernel does not get on with its scan\n");
            errno = EIO;
            return 0;
        }
        scan.start = reached;
    } while (found < 0 || scan.start < scan.end);
    return 1;
}

static struct taken *taken_of(int pid)
{
    struct taken *first = (struct taken *)all_taken.at, *last = first + all_taken.length / sizeof *first;
    while (last > first)
        if ((--last)->pid == pid)
            return last;
    return NULL;
}

static int add_part(struct bytes *into, const struct region *of, uint64_t start, uint64_t end)
{
    const struct region part = {MAX(start, of->start), MIN(end, of->end), of->categories};
    return part.start >= part.end || added(into, (const char *)&part, (const char *)(&part + 1));
}

/*
 * These regions, and in their place, where they say something of the same pages, those `over` them. CRIU asks for every
 * page of the vDSO: of one that it is not told of it would take what the dump before has there. If the program has moved
 * its vDSO meanwhile, that is other memory.
 */
static int lay_over(struct bytes *regions, const struct bytes *over)
{
    const struct region *one = (const void *)over->at, *end = one + over->length / sizeof *one;
    for (; one < end; one++) {
        struct bytes all = {0}, before = *regions;
        const struct region *first = (const void *)before.at, *last = first + before.length / sizeof *first;
        int is_done = 1;
        for (const struct region *region = first; region < last; region++)
            is_done = is_done && add_part(&all, region, 0, one->start);
        is_done = is_done && add_part(&all, one, 0, ~0ull);
        for (const struct region *region = first; region < last; region++)
            is_done = is_done && add_part(&all, region, one->end, ~0ull);
        *regions = all;
        let_go(&before);
        if (!is_done)
            return 0;
    }
    return 1;
}

/*
 * CRIU scans a process, copies, and resets. What somebody outside of the tree writes (process_vm_writev, /proc/PID/mem)
 * between the first and the last would be in no dump. So all that is registered is looked at once, what was written is
 * protected in the same step, before the first scan is answered, and kept for all answers: what is written later than
 * that is written for the next dump. Memory of CRIU's own, as in a self-test, is looked at whenever it asks.
 */
static const struct bytes *registered(int number, uint64_t told)
{
    static struct bytes now;
    struct file *file = known(number);
    struct taken one = {0}, *before;
    if (!file || file->kind != PAGEMAP || file->pid <= 0)
        return walked(number, 0, told, &now) ? &now : NULL;
    before = taken_of(file->pid);
    if (before)
        return &before->regions;
    one.pid = file->pid;
    if (!let_through() || !walked(number, WP_MATCHING, told, &one.regions) || !lay_over(&one.regions, &file->vdso) ||
        !added(&all_taken, (const char *)&one, (const char *)(&one + 1)))
        return NULL;
    return &taken_of(one.pid)->regions;
}

/*
 * What CRIU is told, in the order of addresses, as far as there is room: what was `kept` of registered memory, and the
 * `others` that the kernel has found, up to `end`. Somebody who has died since had registered
 * what is in both.
 */
static long told(struct scan *asked, uint64_t end, long others, const struct bytes *kept)
{
    static struct bytes copy;
    struct region *into = (struct region *)(uintptr_t)asked->vec, *full = into + asked->vec_len;
    copy.length = 0;
    if (!added(&copy, (const char *)into, (const char *)(into + others)))
        return -1;
    const struct region *other = (const void *)copy.at, *last_other = other + others;
    const struct region *one = (const void *)kept->at, *last = one + kept->length / sizeof *one;
    one += first_after(one, sizeof *one / sizeof one->end, last - one, asked->start >> PAGE_SHIFT);
    asked->walk_end = end;
    for (uint64_t at = asked->start, until;; at = until) {
        while (one < last && one->end <= at)
            one++;
        while (other < last_other && other->end <= at)
            other++;
        uint64_t next = one < last ? one->start : end, next_other = other < last_other ? other->start : end;
        int is_registered = next <= at || next <= next_other;
        const struct region *region = is_registered ? one : other;
        at = MAX(at, is_registered ? next : next_other);
        if (at >= end)
            break;
        if (into == full) {
            asked->walk_end = at;
            break;
        }
        until = MIN(end, is_registered ? one->end : MIN(other->end, next));
        int is_dirty = (region->categories & (is_registered ? WRITTEN : SOFT_DIRTY)) != 0;
        *into++ = (struct region){at, until, (region->categories & ~OURS) | (is_dirty ? SOFT_DIRTY : 0)};
    }
    return into - (struct region *)(uintptr_t)asked->vec;
}

/* In this order: memory that is registered no more when the others are asked for was kept before. */
static long scanned(int number, struct scan *asked)
{
    if (asked->size != sizeof *asked || asked->flags)
        return refused("PAGEMAP_SCAN of another size, or with flags");
    if ((asked->inverted | asked->mask | asked->anyof) & OURS || asked->told & (WPALLOWED | WRITTEN))
        return refused("PAGEMAP_SCAN with WPALLOWED or WRITTEN, or choosing by SOFT_DIRTY");
    if (!(asked->told & SOFT_DIRTY))
        return syscall(SYS_ioctl, number, SCAN, asked);
    if (asked->inverted != asked->mask || (asked->mask | FILES) != (PFNZERO | FILES) ||
        asked->anyof != (PRESENT | SWAPPED))
        return refused("PAGEMAP_SCAN for SOFT_DIRTY of other pages than those that hold something");
    struct scan other = *asked;
    const struct bytes *kept = registered(number, (asked->told & ~SOFT_DIRTY) | WRITTEN);
    if (!kept)
        return -1;
    other.told &= ~SOFT_DIRTY;
    other.inverted |= WPALLOWED;
    other.mask |= WPALLOWED;
    long others = syscall(SYS_ioctl, number, SCAN, &other);
    for (long i = 0; i < others; i++)
        ((struct region *)(uintptr_t)asked->vec)[i].categories |= SOFT_DIRTY;
    return others < 0 ? others : told(asked, other.walk_end, others, kept);
}

/* A scan tells no frames: the entries of the pages that it tells of are read as well. */
static long scanned_bits(int number, struct scan *asked)
{
    static uint64_t entries[4096];
    struct file *file = known(number);
    struct region *region = (struct region *)(uintptr_t)asked->vec;
    long found = syscall(SYS_ioctl, number, SCAN, asked), size = sysconf(_SC_PAGESIZE);
    if (found < 0 || !file || !(asked->told & SOFT_DIRTY))
        return found;
    for (long i = 0; i < found; i++, region++)
        for (uint64_t page = region->start / size, end = region->end / size, count; page < end; page += count) {
            count = end - page < sizeof entries / sizeof *entries ? end - page : sizeof entries / sizeof *entries;
            long length = count * sizeof *entries;
            if (syscall(SYS_pread64, number, entries, length, page * sizeof *entries) != length ||
                moved_are_dirty(file->pid, &file->unchanged, page, entries, count))
                region->categories |= SOFT_DIRTY;
        }
    return file->vdso.length ? told(asked, asked->walk_end, found, &file->vdso) : found;
}

#define PREAD(name, ...)                                                                 \
    VISIBLE ssize_t name(int number, void *into, size_t length, off_t place __VA_ARGS__) \
    {                                                                                    \
        ssize_t found = syscall(SYS_pread64, number, into, length, place);               \
        return with_dirty(number, into, found, place);                                   \
    }
#define ROOM , size_t room __attribute__((unused))

CHECKED_OPEN(__open_2)
CHECKED_OPEN(__open64_2)
CHECKED_OPENAT(__openat_2)
CHECKED_OPENAT(__openat64_2)
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
PREAD(pread)
PREAD(pread64)
PREAD(__pread_chk, ROOM)
PREAD(__pread64_chk, ROOM)

VISIBLE ssize_t read(int number, void *into, size_t length)
{
    ssize_t found = syscall(SYS_read, number, into, length);
    struct file *file = found > 0 ? known(number) : NULL;
    if (!file || file->kind == PAGES)
        return found;
    return with_dirty(number, into, found, syscall(SYS_lseek, number, 0l, SEEK_CUR) - found);
}

VISIBLE ssize_t __read_chk(int number, void *into, size_t length, size_t room __attribute__((unused)))
{
    return read(number, into, length);
}

VISIBLE ssize_t write(int number, const void *from, size_t length)
{
    static struct bytes ignored;
    struct file *file = known(number);
    const char *text = from;
    if (!file || file->kind == PAGEMAP || file->kind == PAGES)
        return syscall(SYS_write, number, from, length);
    if (file->pid && !let_through())
        return -1;
    if (tracker_is("soft-dirty"))
        return syscall(SYS_write, number, from, length);
    if (length < 1 || length > 2 || text[0] != '4' || (length == 2 && text[1] && text[1] != '\n'))
        return refused("another number than 4 for clear_refs");
    /* If its bits were taken before, what has one now was written since. */
    return taken_of(file->pid) || walked(number, WP_MATCHING, WPALLOWED, &ignored) ? (ssize_t)length : -1;
}

VISIBLE int ioctl(int number, unsigned long request, ...)
{
    va_list more;
    va_start(more, request);
    void *argument = va_arg(more, void *);
    va_end(more);
    if (request != SCAN || !is_tracking())
        return syscall(SYS_ioctl, number, request, argument);
    return tracker_is("soft-dirty") ? scanned_bits(number, argument) : scanned(number, argument);
}

/*
 * CRIU moves the pages of a frozen tree into their image run by run, as they lie in its memory: where every tenth page
 * was written, one by one, each for the price of a write. We move all that the pipe holds with the first, to the end of
 * the same file and in the same order, and CRIU is told of it as it asks. An error is told at once, too. Only of these
 * images is it so that what follows in the pipe follows in the file (criu/page-xfer.c, write_pages_loc).
 */
VISIBLE ssize_t splice(int from, off_t *from_place, int to, off_t *to_place, size_t length, unsigned flags)
{
    struct file *file;
    if (ahead.length) {
        if (from != ahead.from || to != ahead.to)
            return refused("pages of another pipe or for another file, before it took all of one");
    } else {
        if (flags != SPLICE_F_MOVE || from_place || to_place || !(file = known(to)) || file->kind != PAGES)
            return syscall(SYS_splice, from, from_place, to, to_place, length, flags);
        long moved = syscall(SYS_splice, from, NULL, to, NULL, MOST, flags);
        if (moved <= 0)
            return moved;
        ahead.from = from;
        ahead.to = to;
        ahead.length = moved;
    }
    size_t told = length < ahead.length ? length : ahead.length;
    ahead.length -= told;
    return told;
}

static int opened_memory(int pid)
{
    char name[32] = "/proc/", digits[16], *at = name + 6;
    int count = 0;
    for (; pid; pid /= 10)
        digits[count++] = '0' + pid % 10;
    while (count)
        *at++ = digits[--count];
    for (const char *end = "/mem"; *end;)
        *at++ = *end++;
    return syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC, 0);
}

/*
 * CRIU reads the pages of a round when the tree runs again, process by process, and this call would pin them: of every
 * page that a process shares with its relatives since a fork the kernel would give it one of its own, for good. To read
 * its file does not, nor is that kept out of what the program has protected meanwhile.
 */
VISIBLE ssize_t process_vm_readv(pid_t pid, const struct iovec *into, unsigned long places, const struct iovec *from,
                                 unsigned long runs, unsigned long flags)
{
    static int memory = -1, of;
    size_t done = 0;
    if (tracker_is("soft-dirty") || !is_tracking())
        return syscall(SYS_process_vm_readv, pid, into, places, from, runs, flags);
    if (places != 1 || flags)
        return refused("process_vm_readv into more than one place, or with flags");
    if (of != pid) {
        if (memory >= 0)
            syscall(SYS_close, memory);
        of = pid;
        memory = opened_memory(pid);
    }
    for (; runs && done < into->iov_len; runs--, from++) {
        size_t end = done + MIN(from->iov_len, into->iov_len - done);
        off_t place = (uintptr_t)from->iov_base - done;
        while (done < end) {
            long found = syscall(SYS_pread64, memory, (char *)into->iov_base + done, end - done, place + done);
            if (found <= 0 && !done)
                errno = found && errno == EIO ? EFAULT : ESRCH;
            if (found <= 0)
                return done ? (ssize_t)done : -1;
            done += found;
        }
    }
    return done;
}

int unlinked_by_name(const char *path, int flags)
{
    return syscall(SYS_unlinkat, AT_FDCWD, path, flags);
}

VISIBLE int close(int number)
{
    struct file *file = known(number);
    if (file)
        file->kind = NONE;
    if (number == ahead.from || number == ahead.to)
        ahead.from = -1;
    return syscall(SYS_close, number);
}
