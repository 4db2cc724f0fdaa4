/*
 * The preload library for dumps: lets an unmodified CRIU do --track-mem, pre-dump and --prev-images-dir where the kernel
 * has no soft-dirty bits.
 *
 *   written_pages.c  what was written, by write protection (userfaultfd) or by soft-dirty bits
 *   frames.c    pages that moved, or may be written without a bit, read as written
 *   gate.c      stops CRIU before its first reset, so that crckpt can look at the frozen tree
 *   pages.c     moves scattered pages out of the tree with fewer calls, or reads them when it runs again
 *   vdso.c      the vDSO is always dumped in full
 *   smaps.c     the flags of maps, without a look at every page
 *   restart.c   keeps system calls from being interrupted
 *   filtered.c  filters of system calls hold while CRIU's code is in a process (thread_calls.c)
 *   enter.c     CRIU enters the mounts of a tree that has its own
 *   links.c     links to removed files: through no symlink, and by names of their own (names.c)
 *   sessions.c  a session that is led from outside the PID namespace of the tree gets a number
 *   terminals.c what terminals hold unread is written back unchanged
 *   shared_memory.c  CRIU shares memory with its code in a process, and nothing else
 *   parasite.c  CRIU speaks with its code in a process by a socket pair, and not by a name that all can reach
 *   files.c     the files that are watched for all this
 *
 * CRCKPT_TRACKER=soft-dirty: the kernel has the bits, and what CRIU asks goes to the kernel unchanged; but pages that
 * are not where they were, or may be written without a bit, read as written (frames.c).
 * CRCKPT_TRACKER=uffd-wp: CRIU asks for soft-dirty bits and is answered by asynchronous write protection. crckpt has
 * registered the tree's memory before. Pages that are not registered read as written, so a mistake there costs bytes.
 *
 *   reading /proc/PID/pagemap          every page is soft-dirty: CRIU's self-test passes, an old CRIU dumps all
 *   PAGEMAP_SCAN for SOFT_DIRTY        the first scan of a process looks at all that is WPALLOWED, protects again what
 *                                      was written (WP_MATCHING), and is kept: clean is what was allowed, and not
 *                                      WRITTEN; what is not allowed is asked for each time
 *   writing "4" to /proc/PID/clear_refs   nothing, if it was scanned; else protects again what was written
 *   criu.kdat                          does not exist and cannot be made: CRIU must not remember what is pretended here
 *
 * Without CRCKPT_TRACKER nothing is tracked: CRIU has this library only so that system calls are not interrupted.
 *
 * Every other request of CRIU is refused with a message on stderr, and so is every reset with another CRCKPT_TRACKER.
 * The library needs only syscall(2), sysconf(3), getenv(3), dprintf(3), vsnprintf(3), errno, environ and functions of
 * <string.h>, of whatever libc CRIU is linked with.
 * Sources: linux/fs.h; criu/mem.c, criu/pagemap-cache.c, criu/kerndat.c, criu/cr-dump.c, criu/page-xfer.c of CRIU 4.2.
 */
#include "dump_library.h"
#include "filtered.h"

/* With musl this is another name of the same function; CRIU may use either. */
#undef pread64

/*
 * For write protection a reset needs the page map, which is in the same directory. CRIU resets its own bits, too, in a
 * self-test before the tree is frozen: it names itself by number, so only the PID tells that apart.
 */
static int open_clear_refs(int directory, const char *path, const char *last, int flags)
{
    char name[4096];
    int is_passed = tracker_is("soft-dirty");
    if (!is_passed && !tracker_is("uffd-wp"))
        return refuse("a reset, and no tracker of this name");
    if (!sibling(name, path, last, is_passed ? "clear_refs" : "pagemap"))
        return refuse("a path longer than 4096");
    int number = syscall(SYS_openat, directory, name, is_passed ? flags : O_RDONLY | O_CLOEXEC, 0);
    if (number < 0)
        return number;
    int pid = is_of_proc(number) ? pid_beside(directory, path, last) : -1;
    if (pid < 0) {
        syscall(SYS_close, number);
        return refuse("a reset in another place than /proc");
    }
    return watch_file(number, CLEAR_REFS, pid);
}

static int open_smaps(int directory)
{
    int number = syscall(SYS_openat, directory, "smaps", O_RDONLY, 0);
    if (!is_of_proc(number))
        return number;
    int pid = pid_in(directory, "stat");
    if (are_frames_wanted())
        record_maps(pid, directory);
    return open_short_smaps(number, directory, pid);
}

/* Open the page map of a process. CRIU gets its bits unchanged only where nothing is known of it, as in a self-test. */
static int open_pagemap(int number, int directory, const char *path, const char *last)
{
    char name[4096];
    int is_passed = tracker_is("soft-dirty");
    if (!is_of_proc(number) || (is_passed && !are_frames_wanted()))
        return number;
    number = watch_file(number, PAGEMAP, pid_beside(directory, path, last));
    struct file *file = number >= 0 ? find_file(number) : NULL;
    int has_name = file && sibling(name, path, last, "maps");
    if (has_name && is_passed)
        keep_maps(file->pid, directory, name, &file->unchanged);
    if (has_name && file->pid > 0)
        find_vdso(directory, name, &file->vdso);
    return number;
}

/* Do not preload programs that CRIU starts (its scripts, tar for a tmpfs): their files may have these names by chance. */
static void prepare_once(void)
{
    static int is_done;
    char **kept = environ;
    if (is_done || !environ)
        return;
    is_done = 1;
    for (char **one = environ; *one; one++)
        if (!starts_with(*one, "LD_PRELOAD="))
            *kept++ = *one;
    *kept = NULL;
    prepare_to_enter(variable("CRCKPT_ENTER"));
    prepare_for_smaps(variable("CRCKPT_MAP_FLAGS"));
    prepare_frames(tracker_is("soft-dirty") ? variable("CRCKPT_FRAMES") : "", !*variable("CRCKPT_JOINED_ARE_DIRTY"));
}

int open_file(int directory, const char *path, int flags, mode_t mode)
{
    const char *last = last_part(path);
    int number;
    prepare_once();
    if (open_inside(directory, path, flags, &number) || open_shared(directory, path, flags, &number))
        return number;
    if (!is_tracking() || starts_with(last, "mm-")) {
        number = syscall(SYS_openat, directory, path, flags, mode);
        if (flags & O_CREAT)
            note_image(number, last);
        return number;
    }
    if (starts_with(last, "criu.kdat") && !tracker_is("soft-dirty")) {
        errno = flags & O_CREAT ? EEXIST : ENOENT;
        return -1;
    }
    if (!strcmp(last, "clear_refs"))
        return open_clear_refs(directory, path, last, flags);
    if (!strcmp(path, "smaps") && directory != AT_FDCWD && flags == O_RDONLY)
        return open_smaps(directory);
    number = syscall(SYS_openat, directory, path, flags, mode);
    if (starts_with(last, "pages-") && flags & O_CREAT)
        return watch_file(number, PAGES, 0);
    return !strcmp(last, "pagemap") ? open_pagemap(number, directory, path, last) : number;
}

/* Mark entries that were read of a page map at this place. */
static ssize_t mark_dirty(int number, uint64_t *entries, ssize_t length, off_t place)
{
    struct file *file = length > 0 ? find_file(number) : NULL;
    ssize_t count = length / (ssize_t)sizeof *entries;
    int is_passed = tracker_is("soft-dirty");
    if (!file || file->kind == PAGES || (is_passed && file->kind != PAGEMAP))
        return length;
    if ((is_passed ? length | place : length) % sizeof *entries)
        return refuse("part of a page map's entry");
    if (is_passed)
        mark_moved(file->pid, &file->unchanged, place / sizeof *entries, entries, count);
    for (ssize_t i = 0; i < count && !is_passed; i++)
        entries[i] |= ENTRY_SOFT_DIRTY;
    return length;
}

VISIBLE ssize_t pread(int number, void *into, size_t length, off_t place)
{
    ssize_t found = syscall(SYS_pread64, number, into, length, place);
    return mark_dirty(number, into, found, place);
}
ALIAS(pread64, pread);
ALIAS(__pread_chk, pread);
ALIAS(__pread64_chk, pread);

VISIBLE ssize_t read(int number, void *into, size_t length)
{
    ssize_t found = syscall(SYS_read, number, into, length);
    struct file *file = found > 0 ? find_file(number) : NULL;
    if (!file || file->kind == PAGES)
        return found;
    return mark_dirty(number, into, found, syscall(SYS_lseek, number, 0l, SEEK_CUR) - found);
}
ALIAS(__read_chk, read);

VISIBLE ssize_t write(int number, const void *from, size_t length)
{
    pass_log_on(number);
    struct file *file = find_file(number);
    const char *text = from;
    if (!file || file->kind == PAGEMAP || file->kind == PAGES)
        return write_unread(number, from, length);
    if (file->pid && !pass_gate())
        return -1;
    if (tracker_is("soft-dirty"))
        return syscall(SYS_write, number, from, length);
    if (length < 1 || length > 2 || text[0] != '4' || (length == 2 && text[1] && text[1] != '\n'))
        return refuse("another number than 4 for clear_refs");
    return reset_by_protection(number, file->pid) ? (ssize_t)length : -1;
}

VISIBLE int ioctl(int number, unsigned long request, ...)
{
    va_list more;
    va_start(more, request);
    void *argument = va_arg(more, void *);
    va_end(more);
    if (request != SCAN || !is_tracking())
        return syscall(SYS_ioctl, number, request, argument);
    return tracker_is("soft-dirty") ? scan_soft_dirty(number, argument) : scan_by_protection(number, argument);
}

VISIBLE int unlinkat(int from, const char *name, int flags)
{
    return unlink_in_parent(from, name, flags);
}

VISIBLE int close(int number)
{
    forget_file(number);
    forget_moved(number);
    correct_image(number);
    return syscall(SYS_close, number);
}
