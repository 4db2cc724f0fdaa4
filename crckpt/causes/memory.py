"""Mappings, pages, and the chain of incremental images. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

MEMORY = (
    Cause(
        "secretmem",
        "the program has secret memory (memfd_secret), which no other process can read",
        "run it without secret memory",
        # CRIU's own word for a mapped file that it does not know (criu/proc_parse.c:502).
        r"Unknown shit \d+ \(/secretmem",
        "criu/proc_parse.c",
    ),
    Cause(
        "io-uring",
        "the program uses io_uring, which cannot be checkpointed",
        "run it without io_uring (Node: UV_USE_IO_URING=0)",
        # -22: since Linux 6.7, no unix socket passes on an io_uring (EINVAL; Linux 705318a99a13).
        r"send_fds failed \(-22\)|Unknown shit \d+ \(anon_inode:\[io_uring\]",
        "criu/pie/parasite.c",
    ),
    Cause(
        "unknown-mapping",
        "the program maps {path}, a kind of file that CRIU cannot save",
        "unmap it, or run the program without it",
        r"Unknown shit \d+ \((?!/secretmem|anon_inode:\[io_uring\])(?P<path>.*)\)",
        "criu/proc_parse.c",
    ),
    Cause(
        "device-map",
        "PID {pid} maps a device at {address}",
        "use a CRIU plugin for the device, and check that CRIU finds it (GPU: --libdir DIRECTORY, cuda-checkpoint and"
        " driver 570 or newer), or unmap it",
        r"Can't handle non-regular mapping on (?P<pid>\d+)'s map (?P<address>[0-9a-f]+)",
        "criu/proc_parse.c",
    ),
    Cause(
        "huge-pages-in-use",
        "the program has huge pages, but no reserved page is free for CRIU's test of the kernel",
        "reserve one more: /proc/sys/vm/nr_hugepages or nr_overcommit_hugepages",
        # CRIU maps a huge page to learn its device (criu/kerndat.c:304). If none is free, it takes the program's for
        # files.
        r"Can't lookup mount=-?\d+ for fd=-?\d+ path=/anon_hugepage",
        "criu/files-reg.c",
    ),
    Cause(
        "map-gone",
        "a mapped file cannot be reached: {path|its link in /proc does not open}",
        "dump as root in the program's mount namespace",
        r"Can't open mapped \[(?P<path>.*)\]"
        r"|Can't open \d+'s mapfile link(?! [0-9a-f]{1,16}: (?:No such device or address|Operation not|Permission))",
        "criu/proc_parse.c",
    ),
    Cause(
        "io-uring-older",
        "the program uses io_uring or maps another file without a name; neither can be checkpointed",
        "run it without io_uring (Node: UV_USE_IO_URING=0); list what it maps: grep anon_inode /proc/PID/maps",
        r"Can't open \d+'s mapfile link [0-9a-f]{1,16}: No such device or address",
        "criu/proc_parse.c",
        sure=False,
    ),
    Cause(
        "uprobes",
        "process {pid} is watched by uprobes (perf, bpftrace, eBPF), which add a mapping to it",
        "end the tracing tool; or with criu: --allow-uprobes on dump and restore",
        r"PID (?P<pid>\d+) has uprobes vma",
        "criu/proc_parse.c",
    ),
    Cause(
        "unsupported-mapping",
        "CRIU does not know the kind of memory at {start}",
        "find it: grep {start} /proc/*/maps; a newer CRIU may know it",
        "Unsupported mapping found 0*(?P<start>[0-9a-f]+)",
        "criu/proc_parse.c",
    ),
    Cause(
        "mapped-unreachable",
        "{path}, mapped at {address}, cannot be opened through /proc",
        "dump as root in the mount namespace of the program: nsenter --mount --target PID",
        r"Strange file mapped at (?P<address>[0-9a-f]+) \[(?P<path>.*)\]",
        "criu/proc_parse.c",
    ),
    Cause(
        "map-files",
        "the files that the program maps cannot be opened through /proc/PID/map_files",
        "run crckpt as root of the host, or give CRIU CAP_CHECKPOINT_RESTORE (before Linux 5.9 CAP_SYS_ADMIN) "
        "outside of any user namespace; for files on NFS, export it with no_root_squash",
        r"Can't open map_files: |map_files is inaccessible"
        r"|Can't open \d+'s mapfile link [0-9a-f]{1,16}: (?:Operation not permitted|Permission denied)",
        "criu/proc_parse.c",
    ),
    Cause(
        "kernel-config",
        "this kernel was built without CONFIG_CHECKPOINT_RESTORE, or is too old for this CRIU",
        "boot a kernel that has it: grep CHECKPOINT_RESTORE /boot/config-$(uname -r)",
        "Can't stat self map_files|/children on procfs: No such file|_next_id is inaccessible",
        "criu/kerndat.c",
    ),
    Cause(
        "memory-in-common",
        "process {pid} shares all its memory with another process (vfork, or clone with CLONE_VM)",
        "wait until it has started its own program; if it goes on sharing, use threads instead",
        # CRIU saves no address space for the second time (criu/cr-dump.c:667).
        r"Can't make VM id for (?P<pid>\d+)",
        "criu/cr-dump.c",
    ),
    Cause(
        "directories-in-common",
        "process {pid} shares its working directory, root and umask with another process (clone(2) with "
        "CLONE_FS), which CRIU cannot save",
        "let the program make it without CLONE_FS, as fork(2) does (a browser: --no-sandbox)",
        r"Can't make FS id for (?P<pid>\d+)",
        "criu/cr-dump.c",
    ),
    Cause(
        "descriptors-in-common",
        "process {pid} shares its table of descriptors with another process, which is not its parent "
        "(clone(2) with CLONE_FILES): CRIU cannot save that",
        "let the program make it without CLONE_FILES, as fork(2) does",
        r"Can't make FILES id for (?P<pid>\d+)",
        "criu/cr-dump.c",
    ),
    Cause(
        "sysv-shm",
        "the tree uses System V shared memory of the host",
        "start the program in its own IPC namespace: unshare --ipc PROGRAM",
        "doesn't live in IPC ns",
        "criu/cr-dump.c",
    ),
    Cause(
        "sysv-shm-part",
        "only a part of System V shared memory {id} is attached",
        "have the program attach all of it (no munmap of a part)",
        "Sysv shmem (?P<id>[0-9a-f]+) with (?:a hole|tail hole|misordered)",
        "criu/shmem.c",
    ),
    Cause(
        "guard-pages",
        "process {pid} has guard pages (MADV_GUARD_INSTALL), which this kernel does not report to CRIU",
        "boot a newer kernel (PAGEMAP_SCAN must report PAGE_IS_GUARD)",
        r"Collect MADV_GUARD_INSTALL pages \(pid: (?P<pid>\d+)\) failed",
        "criu/cr-dump.c",
    ),
    Cause(
        "no-dirty-tracking",
        "this kernel does not track which pages are written (soft-dirty)",
        "leave --track-mem out, or boot a kernel with CONFIG_MEM_SOFT_DIRTY",
        # CRIU checks for --track-mem only: `criu pre-dump` ends in this BUG (criu/mem.c:46).
        r"Tracking memory is not available|BUG at criu/mem\.c:4\d\b",
        "criu/config.c",
    ),
    Cause(
        "dirty-reset",
        "CRIU cannot start to track the written pages of process {pid}",
        "dump as root, or without --track-mem",
        r"Can't reset (?P<pid>\d+)'s dirty memory tracker",
        "criu/mem.c",
    ),
    Cause(
        "page-map",
        "the page map of process {pid} cannot be read",
        "run crckpt as root (CAP_SYS_ADMIN)",
        r"Can't read (?P<pid>\d+)'s pagemap file",
        "criu/pagemap-cache.c",
    ),
    Cause(
        "no-remote-memory",
        "CRIU cannot map memory inside the program: {why}",
        "check whether a security module forbids it: journalctl -k -g denied",
        r"remote mmap\(\) failed: (?P<why>.*)",
        "compel/arch/x86/src/lib/infect.c",
    ),
    Cause(
        "shadow-stack",
        "the program's shadow stack (Intel CET) cannot be saved or restored",
        "start the program without one: GLIBC_TUNABLES=glibc.cpu.x86_shstk=off",
        r"shstk: (?:can't|\d+: )|Failed to (?:lock|disable|prepare) shadow stack|Cannot unlock CET for"
        "|Unable to prepare shadow stack vma",
        "compel/arch/x86/src/lib/infect.c",
    ),
    Cause(
        "parent-pages",
        "the parent of this incremental checkpoint is missing, damaged, or the wrong one",
        "make a full dump; with criu, keep the directories of --prev-images-dir at their place",
        "Missing [0-9a-f]+ in parent pagemap|Hole .* not found in parent|No parent for snapshot pagemap"
        "|No parent image found, though parent directory is set",
        "criu/page-xfer.c",
    ),
    Cause(
        "parent-directory",
        "the directory of the parent images does not exist",
        "correct --prev-images-dir: it is relative to --images-dir",
        "Invalid parent image directory provided|Can't open parent path",
        "criu/image.c",
    ),
    Cause(
        "parent-untracked",
        "the parent checkpoint was made without tracking",
        "make a full dump; with criu, use --track-mem for the first one too",
        "Pid-reuse detection failed: no parent inventory",
        "criu/mem.c",
    ),
    Cause(
        "remap",
        "a part of the program's memory cannot be mapped at its old address",
        "raise the limits: ulimit -v unlimited; sysctl -w vm.max_map_count=1048576",
        # The answer of mmap(2) as an address: -1 and -13 are `remap-refused`, -12 is `out-of-memory`.
        r"Can't restore (?:0x)?[0-9a-f]{1,16} mapping with (?!0xf{15}[34f]\b|-1\b|-1[23]\b)|Unable to map ANON_VMA"
        r"|Unable to remap a private vma|Unable to remap [0-9a-f]{1,16} -> [0-9a-f]{1,16}(?: \(|$)",
        "criu/pie/restorer.c",
    ),
    Cause(
        "remap-refused",
        "a security module, or a missing capability, forbids CRIU to restore the program's memory",
        "find the denial: ausearch -m avc -ts recent, or journalctl -k -g DENIED; allow it, or restore as root",
        r"Can't restore (?:0x)?[0-9a-f]{1,16} mapping with (?:0xf{15}[3f]|-1|-13)\b",
        "criu/pie/restorer.c",
        sure=False,
    ),
    Cause(
        "no-room-for-memory",
        "the memory of the tree does not fit on this host",
        "free memory, or raise the limit: ulimit -v unlimited",
        r"Unable to reserve memory \(|No suitable area for task_restore bootstrap",
        "criu/mem.c",
    ),
    Cause(
        "pages-cut",
        "the memory pages in the images are cut short or cannot be read",
        "check them: crckpt verify REF; or restore an older checkpoint: crckpt restore REF --or-older",
        r"Can't read pages data \(|Reached EOF unexpectedly while reading page from image"
        "|Can't read mapping page|Page read err "
        "|Can't read async pr bytes|Out of order read completed|Error punching hole",
        "criu/pagemap.c",
        by_criu="take another copy of the images, or dump again",
    ),
    Cause(
        "page-outside",
        "a page in the images is outside the memory areas that they describe",
        "restore with the CRIU of the dump on the same kind of machine; check the images: crckpt verify REF",
        r"Page entry address \S+ outside of VMA|Trying to restore page for non-private VMA",
        "criu/mem.c",
        sure=False,
        by_criu="restore with the CRIU of the dump on the same kind of machine; or dump again",
    ),
    Cause(
        "high-memory",
        "the program uses addresses above 128 TiB (5-level page tables), which this host cannot save or restore",
        "boot the host of the dump with no5lvl, then start the program anew",
        "high memory region",
        "criu/mem.c",
    ),
    Cause(
        "memory-advice",
        "this kernel refuses an madvise that the program uses for its memory",
        "boot a kernel with the options of the dump's kernel (transparent huge pages, KSM)",
        r"madvise\(.*failed with",
        "criu/pie/restorer.c",
        sure=False,
    ),
    Cause(
        "userfaultfd",
        "CRIU is not allowed to open a userfaultfd, which it needs to restore memory later",
        "sysctl -w vm.unprivileged_userfaultfd=1, or restore as root",
        "Unable to open an? userfaultfd descriptor",
        "criu/uffd.c",
    ),
    Cause(
        "lazy-server",
        "the server of lazy pages does not run or has ended",
        "start it first and keep it running: criu lazy-pages --images-dir DIR",
        r"No lazy-pages socket|connect to \S+ failed|Failed (?:sending|getting) restore finished indication"
        "|Restorer unexpectedly closed the connection"
        "|uffd: .*(?:PID (?:sending|recv)|send_fd|recv_fd)",
        "criu/uffd.c",
    ),
    Cause(
        "aio-ring",
        "a ring for asynchronous I/O (AIO) cannot be restored",
        "raise the limit: sysctl -w fs.aio-max-nr=1048576",
        "Ring setup failed with|Ring remap failed with|Can't submit aio iocbs|Can't mmap aio tmp buffer",
        "criu/pie/restorer.c",
    ),
    Cause(
        "shared-memory",
        "shared memory of the tree cannot be restored",
        "free memory, and check the space on /dev/shm: df -h /dev/shm",
        "Can't restore shmem content|Can't (?:resize|mmap) shmem 0x|Unable to truncate memfd|Can't mmap shmid=",
        "criu/shmem.c",
    ),
    Cause(
        "memfd",
        "an anonymous file in memory (memfd) cannot be restored",
        "check whether something limits memory files: sysctl vm.memfd_noexec",
        "Can't create memfd:|Cannot apply seals on memfd"
        r"|Can't set permissions \{ uid \d+ gid \d+ mode \S+ \} of memfd",
        "criu/memfd.c",
    ),
    Cause(
        "memory-layout",
        "the kernel refused the layout of the program's memory (PR_SET_MM)",
        "restore as root (CAP_CHECKPOINT_RESTORE)",
        r"sys_prctl\(PR_SET_MM, PR_SET_MM_MAP\) failed with",
        "criu/pie/restorer.c",
    ),
    Cause(
        "sealed",
        "PID {pid} has sealed memory (mseal), for example at {start}: after a restore it can be changed and unmapped",
        "",
    ),
)
