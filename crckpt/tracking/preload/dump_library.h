/* What the parts of the preload library for dumps share: the files that it watches, and the kernel's scan of page maps. */
#pragma once

#include "library.h"

/* PAGEMAP_SCAN and its flags and categories (linux/fs.h). */
#define SCAN 0xC0606610ul
#define WP_MATCHING 1ull
#define WPALLOWED (1ull << 0)
#define WRITTEN (1ull << 1)
#define FILES (1ull << 2)
#define PRESENT (1ull << 3)
#define SWAPPED (1ull << 4)
#define PFNZERO (1ull << 5)
#define SOFT_DIRTY (1ull << 7)
/* An entry of a page map (Documentation/admin-guide/mm/pagemap.rst). */
#define ENTRY_SOFT_DIRTY (1ull << 55)

/* struct page_region and struct pm_scan_arg. */
struct region {
    uint64_t start, end, categories;
};

struct scan {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};

/*
 * A file that CRIU opened and that the library watches. `pid` is the process whose page map it is or whose bits it
 * resets, 0 for CRIU itself. `unchanged` are those of its maps that are as they were (frames.c), `vdso` the regions of
 * its vDSO.
 */
struct file {
    int number;
    enum { NONE, PAGEMAP, CLEAR_REFS, PAGES } kind;
    dev_t device;
    ino_t inode;
    int pid;
    struct bytes unchanged, vdso;
};

static inline int tracker_is(const char *name)
{
    return !strcmp(variable("CRCKPT_TRACKER"), name);
}

static inline int is_tracking(void)
{
    return getenv("CRCKPT_TRACKER") != NULL;
}

/* Refuse what CRIU asks, with a message on stderr. */
static inline long refuse(const char *what)
{
    dprintf(2, "crckpt's preload does not know what CRIU asks: %s\n", what);
    errno = ENOTSUP;
    return -1;
}

/* files.c: the watched file of this number, or NULL. */
struct file *find_file(int number);

/* Watch a file. Returns its number; closes it, and returns -1, if there is no room. */
int watch_file(int number, int kind, int pid);

/* Watch it no longer. */
void forget_file(int number);

/* The path of `name` in the directory of `path`, whose last part begins at `last`. Whether there is room for it. */
int sibling(char into[4096], const char *path, const char *last, const char *name);

/* The PID of the process whose /proc directory this is, from its `stat`: CRIU's /proc may know it by another number. */
int pid_in(int directory, const char *stat);

/* The same for the directory of a path; 0 if it is CRIU's own, -1 if that is unknown. */
int pid_beside(int directory, const char *path, const char *last);

/* gate.c: wait, before the first reset, until crckpt has looked at the frozen tree. Whether CRIU may go on. */
int pass_gate(void);

/* vdso.c: add the regions of the vDSO to `regions`. `list` is the process's list of maps. */
void find_vdso(int directory, const char *list, struct bytes *regions);

/* Lay regions of the vDSO over what the kernel reports of the same pages. */
int lay_over(struct bytes *regions, const struct bytes *over);

/* written_pages.c: PAGEMAP_SCAN by write protection, and with soft-dirty bits. */
long scan_by_protection(int number, struct scan *asked);
long scan_soft_dirty(int number, struct scan *asked);

/* Protect again what was written, unless the first scan of this process has. Whether that was done. */
int reset_by_protection(int number, int pid);

/* pages.c: a descriptor is closed from which or to which pages were moved. */
void forget_moved(int number);

/*
 * frames.c: call it before any process is frozen. `path` is the file with the frames and maps of the last reset, which
 * are replaced by those of this one; empty: none. `compares_maps`: every page of a map that has changed is dirty.
 */
void prepare_frames(const char *path, int compares_maps);

/* Whether a file was named. */
int are_frames_wanted(void);

/* Record the maps of the process of this directory of /proc, which is frozen and otherwise unchanged. */
void record_maps(int pid, int directory);

/* Find its maps that are unchanged since the last reset. `list` is its list of maps, of which CRIU may have changed some. */
void keep_maps(int pid, int directory, const char *list, struct bytes *unchanged);

/*
 * Mark entries as dirty, of pages of this process from `first` on, unless the page is where it was and in one of the
 * `unchanged` maps. Returns how many were marked.
 */
size_t mark_moved(int pid, const struct bytes *unchanged, uint64_t first, uint64_t *entries, size_t count);

/* smaps.c: call it before any process is frozen. `table`: the file of what is known of this tree's flags; empty: none. */
void prepare_for_smaps(const char *table);

/* A file to read instead of `smaps`, which is closed, or that itself, of the frozen process of this directory of /proc. */
int open_short_smaps(int smaps, int directory, int pid);

/* enter.c: `pid` is the tree's root as CRIU names it: CRIU is to enter its mount namespace. Empty: none. */
void prepare_to_enter(const char *pid);

/* Open a file of the tree's mounts into `number`, or set that to -1 and errno. Returns 0 for a file of the host. */
int open_inside(int directory, const char *path, int flags, int *number);

/* logs.c: before CRIU writes to this file: if it is its log, write there what its code in a process has said. */
void pass_log_on(int number);

/* parasite.c: whether CRIU continues next the code in a process that is to connect to it. */
int is_code_awaited(void);

/* Continue that code, connected. As PTRACE_CONT. */
long let_code_connect(int pid);

/* shared_memory.c: open the memory that CRIU shares with a process into `number`, or set that to -1 and errno. 0: it is not. */
int open_shared(int directory, const char *path, int flags, int *number);

/* Take this descriptor of a process (pidfd_getfd(2)): ours, or -1 and errno. */
int take_descriptor(int pid, int number);
