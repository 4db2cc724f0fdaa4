/*
 * PAGEMAP_SCAN, as CRIU asks for it with soft-dirty bits: answered by write protection, or by the kernel's bits and the
 * frames of pages.
 */
#include "dump_library.h"

#define OURS (WPALLOWED | WRITTEN | SOFT_DIRTY)
/* The kernel reports at most so many regions in one call. */
#define AT_ONCE 4096

/* What the registered memory of a process held when its written pages were protected: regions, in order. */
struct snapshot {
    int pid;
    struct bytes regions;
};
static struct bytes snapshots;

/*
 * Where a scan that found these regions stopped. The kernel collects 512 regions at a time. `walk_end` is where it was
 * after the last full batch (fs/proc/task_mmu.c, do_pagemap_scan).
 */
static uint64_t end_of(const struct scan *scan, const struct region *regions, long found)
{
    return found > 0 && regions[found - 1].end > scan->walk_end ? regions[found - 1].end : scan->walk_end;
}

/*
 * Scan all registered memory into `into`, with the categories that are `wanted`. With WP_MATCHING in `flags`, protect again
 * what was written.
 *
 * One scan covers every map. The kernel skips unregistered ones, hugetlb among them, before it reads their page tables.
 * Registered memory is anonymous, so that it needs no look at each page to leave out those of files.
 * Pages that hold nothing must not be marked: CRIU would take the mark for a page that was swapped out. The kernel leaves
 * them out only if it reports regions: without a vector it marks all (pagemap_scan_pmd_entry).
 */
static int walk_registered(int number, uint64_t flags, uint64_t wanted, struct bytes *into)
{
    struct scan scan = {
        .size = sizeof scan,
        .flags = flags,
        .category_inverted = PFNZERO,
        .category_mask = PFNZERO | WPALLOWED,
        .category_anyof_mask = PRESENT | SWAPPED,
    };
    int bits = 56;
    long found;
    into->length = 0;
    /* How many bits an address has differs between kernels: what is too high is refused as a whole. */
    do {
        if (!reserve(into, AT_ONCE * sizeof(struct region)))
            return 0;
        struct region *regions = (void *)(into->at + into->length);
        scan.end = (1ull << bits) - sysconf(_SC_PAGESIZE);
        scan.return_mask = wanted, scan.vec = (uintptr_t)regions, scan.vec_len = AT_ONCE;
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
            dprintf(2, "crckpt's preload: the kernel does not get on with its scan\n");
            errno = EIO;
            return 0;
        }
        scan.start = reached;
    } while (found < 0 || scan.start < scan.end);
    return 1;
}

static struct snapshot *find_snapshot(int pid)
{
    struct snapshot *first = (struct snapshot *)snapshots.at, *last = first + snapshots.length / sizeof *first;
    while (last > first)
        if ((--last)->pid == pid)
            return last;
    return NULL;
}

/*
 * CRIU scans a process, copies its pages, and resets. What another process writes to it in between (process_vm_writev,
 * /proc/PID/mem) would be in no dump. So the first scan of a process looks at all that is registered, protects in the
 * same step what was written, and is kept for all answers: later writes belong to the next dump. CRIU's own memory, as
 * in its self-test, is scanned each time.
 */
static const struct bytes *registered_regions(int number, uint64_t wanted)
{
    static struct bytes now;
    struct file *file = find_file(number);
    struct snapshot one = {0}, *before;
    if (!file || file->kind != PAGEMAP || file->pid <= 0)
        return walk_registered(number, 0, wanted, &now) ? &now : NULL;
    before = find_snapshot(file->pid);
    if (before)
        return &before->regions;
    one.pid = file->pid;
    if (!pass_gate() || !walk_registered(number, WP_MATCHING, wanted, &one.regions) || !lay_over(&one.regions, &file->vdso) ||
        !append(&snapshots, &one, sizeof one))
        return NULL;
    return &find_snapshot(one.pid)->regions;
}

/*
 * Report to CRIU, in the order of addresses and as far as there is room: the regions `kept` of registered memory, and
 * the `others` that the kernel found, up to `end`. Where both name the same page, whose registration ended since, `kept`
 * counts.
 */
static long report_regions(struct scan *asked, uint64_t end, long others, const struct bytes *kept)
{
    static struct bytes copy;
    struct region *into = (struct region *)(uintptr_t)asked->vec, *full = into + asked->vec_len;
    copy.length = 0;
    if (!append(&copy, into, others * sizeof *into))
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

/* The scan of registered memory comes first: what is registered no more when the others are scanned was kept then. */
long scan_by_protection(int number, struct scan *asked)
{
    if (asked->size != sizeof *asked || asked->flags)
        return refuse("PAGEMAP_SCAN of another size, or with flags");
    if ((asked->category_inverted | asked->category_mask | asked->category_anyof_mask) & OURS || asked->return_mask & (WPALLOWED | WRITTEN))
        return refuse("PAGEMAP_SCAN with WPALLOWED or WRITTEN, or choosing by SOFT_DIRTY");
    if (!(asked->return_mask & SOFT_DIRTY))
        return syscall(SYS_ioctl, number, SCAN, asked);
    if (asked->category_inverted != asked->category_mask || (asked->category_mask | FILES) != (PFNZERO | FILES) ||
        asked->category_anyof_mask != (PRESENT | SWAPPED))
        return refuse("PAGEMAP_SCAN for SOFT_DIRTY of other pages than those that hold something");
    struct scan other = *asked;
    const struct bytes *kept = registered_regions(number, (asked->return_mask & ~SOFT_DIRTY) | WRITTEN);
    if (!kept)
        return -1;
    other.return_mask &= ~SOFT_DIRTY;
    other.category_inverted |= WPALLOWED;
    other.category_mask |= WPALLOWED;
    long others = syscall(SYS_ioctl, number, SCAN, &other);
    for (long i = 0; i < others; i++)
        ((struct region *)(uintptr_t)asked->vec)[i].categories |= SOFT_DIRTY;
    return others < 0 ? others : report_regions(asked, other.walk_end, others, kept);
}

/* A scan does not report frames. So the entries of the pages that it reports are read, too. */
long scan_soft_dirty(int number, struct scan *asked)
{
    static uint64_t entries[4096];
    struct file *file = find_file(number);
    struct region *region = (struct region *)(uintptr_t)asked->vec;
    long found = syscall(SYS_ioctl, number, SCAN, asked), size = sysconf(_SC_PAGESIZE);
    if (found < 0 || !file || !(asked->return_mask & SOFT_DIRTY))
        return found;
    for (long i = 0; i < found; i++, region++)
        for (uint64_t page = region->start / size, end = region->end / size, count; page < end; page += count) {
            count = MIN(end - page, sizeof entries / sizeof *entries);
            long length = count * sizeof *entries;
            if (syscall(SYS_pread64, number, entries, length, page * sizeof *entries) != length ||
                mark_moved(file->pid, &file->unchanged, page, entries, count))
                region->categories |= SOFT_DIRTY;
        }
    return file->vdso.length ? report_regions(asked, asked->walk_end, found, &file->vdso) : found;
}

int reset_by_protection(int number, int pid)
{
    static struct bytes ignored;
    /* If the first scan has protected them, what counts as written now was written since. */
    return find_snapshot(pid) || walk_registered(number, WP_MATCHING, WPALLOWED, &ignored);
}
