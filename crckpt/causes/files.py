"""Files, also changed and deleted ones, locks, directories. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

FILES = (
    Cause(
        "device",
        "fd {fd} is a device or special file that CRIU cannot save: {what}",
        "close it in the program, or use a CRIU plugin for it",
        r"Can't dump file (?P<fd>\d+) of that type \[\d+\] \((?P<what>.*)\)",
        "criu/files-ext.c",
    ),
    Cause(
        "mount-lookup",
        "{path} (fd {fd}) is on a mount outside the program's mount namespace",
        "open it inside the program's own mounts: start the program by a shell there (exec PROGRAM <{path}); or start "
        "it without own mounts (of a systemd unit: PrivateDevices=no, PrivateMounts=no), or without this descriptor",
        # Huge pages and terminals have causes of their own.
        r"Can't lookup mount=-?\d+ for fd=(?P<fd>\d+) path=(?!/anon_hugepage|/dev/(?:pts|tty))(?P<path>.*)",
        "criu/files-reg.c",
    ),
    Cause(
        "mount-lookup-mapped",
        "{path}, which the program runs, has mapped or works in, is on a mount outside its mount namespace",
        "start the program inside its mount namespace (unshare --mount PROGRAM); on overlayfs, some kernels of Ubuntu "
        "have a bug there: use another kernel or storage driver",
        # fd -3 is FD_DESC_INVALID.
        r"Can't lookup mount=-?\d+ for fd=-\d+ path=(?!/anon_hugepage|/dev/(?:pts|tty))(?P<path>.*)",
        "criu/files-reg.c",
    ),
    Cause(
        "terminal-inherited",
        "{path} (fd {fd}) is a terminal outside the program's mounts",
        "start the program without a terminal (podman run without --tty, input and output elsewhere); or with criu 3.18"
        " and newer: --shell-job",
        r"Can't lookup mount=-?\d+ for fd=(?P<fd>\d+) path=(?P<path>/dev/(?:pts|tty)\S*)",
        "criu/files-reg.c",
    ),
    Cause(
        "file-hidden",
        "{path|an open file} no longer has that name",
        "move the file back to where it was opened",
        r"Unaccessible path opened|Open files on overmounted mounts are (?:.* path=(?P<path>.*)|not supported yet$)",
        "criu/files-reg.c",
    ),
    Cause(
        "other-name",
        "{path} is open but no longer at its path (it has another name, or is below a mount)",
        "try again: crckpt picks --link-remap for the files that it sees",
        r"Can't create link remap for (?P<path>.*)\. Use",
        "criu/files-reg.c",
        by_criu="--link-remap on dump and restore",
    ),
    Cause(
        "link-refused",
        "the removed file {path|(not named)} cannot be linked again",
        "make its directory writable; it must be on the file's file system",
        r"Can't link remap to (?P<path>.+): (?:Permission denied|Read-only|Invalid cross)|trim failed: @",
        "criu/files-reg.c",
    ),
    Cause(
        "link-forbidden",
        "the removed file {path} cannot be linked again: it or its directory may not be changed, or its file system "
        "has no hard links",
        "check its directory: lsattr -d DIRECTORY (chattr -i allows changes); on a file system without hard links "
        "(vfat), close the file in the program",
        # linkat(2)
        r"Can't link remap to (?P<path>.+): (?:Operation not permitted|Operation not supported)",
        "criu/files-reg.c",
    ),
    Cause(
        "remap-left",
        "an earlier dump has its link {path} to another removed file there",
        "restore the checkpoint of that dump first",
        "Can't link remap to (?P<path>.+): File exists",
        "criu/files-reg.c",
        by_criu="restore the images of that dump first",
    ),
    Cause(
        "deleted-large",
        # DEFAULT_GHOST_LIMIT is 1 MiB (criu/include/cr_options.h:86).
        "{path} is deleted but still open, and has {size} bytes",
        "try again: crckpt raises the limit for the files that it sees",
        r"Can't dump ghost file (?P<path>.*) of (?P<size>\d+) size(?:, increase limit|$)",
        "criu/files-reg.c",
        by_criu="--ghost-limit BYTES on the dump, with more bytes than the file has",
    ),
    Cause(
        "deleted-unreadable",
        "a deleted file that the program holds open cannot be copied",
        "free space, or close the file in the program",
        "Can't open ghost (?:original )?file|Can't send ghost to image",
        "criu/files-reg.c",
    ),
    Cause(
        "chown-refused",
        "{path|a file} cannot get back its owner: its file system keeps none, or root may not change it there",
        "NFS: export it with no_root_squash; vfat, exfat and the like: mount it with uid= and gid= of that owner; in a "
        "user namespace: map that user",
        r"(?:Unable to change \[-?\d+\]/(?P<path>.*) ownership \(\d+, \d+\) to \(\d+, \d+\)"
        r"|Can't reset user/group on ghost .*|Can't setup uid \d+ gid \d+ on \S+): Operation not permitted",
        "criu/util.c",
    ),
    Cause(
        "deleted-again",
        "a deleted file that the program had open cannot be restored",
        "check that its directory exists and is writable",
        "Can't create ghost (?:regfile|symlink)|Can't make ghost dir|Can't create node for ghost"
        r"|Can't (?:reset user/group(?! on .+: Operation not)|set perms|set access and modu?[if]\w+ times).* on ghost"
        "|Ghost symlink target is NULL",
        "criu/files-reg.c",
    ),
    Cause(
        "deleted-damaged",
        "the copy of a deleted file in the images is damaged",
        "check them: crckpt verify REF; or restore an older checkpoint: crckpt restore REF --or-older",
        "Corrupted ghost image|Ghost file size mismatch|No rdev for ghost device",
        "criu/files-reg.c",
        by_criu="take another copy of the images, or dump again",
    ),
    Cause(
        "proc-of-the-dead",
        "the program has open a file in /proc of an ended process, whose PID is in use again",
        "close it in the program",
        "Conflict with a dead task with the same PID",
        "criu/files-reg.c",
    ),
    Cause(
        "no-absolute-path",
        "{path} is open but has no absolute path",
        "close it in the program",
        r"The path \[(?P<path>.*)\] is not supported",
        "criu/files-reg.c",
    ),
    Cause(
        "long-path",
        "the path of an open file is too long for CRIU",
        "move the file to a shorter path",
        r"Can't read link of fd \d+: File name too long|Buffer for readlinkat is too small"
        r"|Buffer for read link of fd \d+ is too small|path .* is longer than PATH_MAX",
        "criu/files-reg.c",
    ),
    Cause(
        "bad-size",
        "/{path} has {now} bytes, the checkpoint expects {size}",
        "put the file back as it was, or use --grown rewind if it only grew",
        r"File /?(?P<path>.+) has bad size (?P<now>\d+) \(expect (?P<size>\d+)\)",
        "criu/files-reg.c",
        by_criu="put the file back as it was; if it only grew: truncate --size BYTES FILE",
    ),
    Cause(
        "bad-build",
        "/{path} was replaced by another build",
        "install the former version again",
        "File /?(?P<path>.+) has bad build-ID",
        "criu/files-reg.c",
    ),
    Cause(
        "bad-kind",
        "/{path} is a file of another kind than at the checkpoint (mode {now}, was {mode})",
        "put back the old one: stat /{path}",
        # CRIU writes st_mode in octal (criu/files-reg.c:2294): before the last four digits is the kind of file.
        r"File /?(?P<path>.+) has bad mode (?P<now>0(\d*)\d{4}) \(expect (?!0\3\d{4}\))(?P<mode>\d+)\)",
        "criu/files-reg.c",
    ),
    Cause(
        "bad-mode",
        "/{path|(not named)} has mode {now|(not named)}; at the checkpoint it had {mode|another}",
        "chmod {mode|MODE} /{path|FILE}",
        r"File /?(?P<path>.+) has bad mode 0(\d*)(?P<now>\d{4}) \(expect 0\2(?P<mode>\d{4})\)"
        r"|r/w/x checks can be skipped",
        "criu/files-reg.c",
    ),
    Cause(
        "open-failed",
        "/{path} is missing",
        "put it back",
        r"Can't open file /?(?P<path>.+?)(?: on restore)?: No such file",
        "criu/files-reg.c",
    ),
    Cause(
        "open-linked",
        "a symlink leads to /{path} now, and other users than root can change it",
        "put the directory back, or give the symlink and the directories above it to root: namei -l /{path}",
        # ELOOP of crckpt's library for restores, which follows no link that others can change (trusted.c).
        "Can't open file /?(?P<path>.+) on restore: Too many levels of symbolic links",
        "criu/files-reg.c",
    ),
    Cause(
        "open-session-terminal",
        "the program had its session's terminal open (/dev/tty), but the restored program has none",
        "restore it from a terminal, or on a new one: crckpt restore REF --tty new",
        # tty(4)
        r"Can't open file /?dev/tty on restore: No such device or address",
        "criu/files-reg.c",
        by_criu="--shell-job on dump and restore, from a terminal",
    ),
    Cause(
        "open-unanswered",
        "/{path} is there, but nothing answers: a device without its driver, a socket, or a pipe that nobody reads",
        "load the driver, or start the program at the other end, then try again",
        # open(2)
        r"Can't open file /?(?!dev/tty on)(?P<path>.+) on restore: No such device",
        "criu/files-reg.c",
    ),
    Cause(
        "open-refused",
        "/{path} cannot be opened: {why}",
        "restore its state at the checkpoint (owner, mode, file system): ls -l /{path}",
        "Can't open file /?(?P<path>.+) on restore: (?!No such (?:file|device)|Too many levels)(?P<why>.+)",
        "criu/files-reg.c",
    ),
    Cause(
        "relink-missing",
        "{origin}, which CRIU made for a removed file at the dump, is missing, or the directory of {path} is",
        "create the directory again; without the link, restore an older checkpoint: crckpt restore REF --or-older",
        r"Can't link (?P<origin>\S.*) -> (?P<path>.+): No such file or directory",
        "criu/files-reg.c",
        by_criu="create the directory again; without the link the images cannot be restored: make a new dump",
    ),
    Cause(
        "relink-refused",
        "the removed name {path} cannot be linked again to {origin}",
        "check that both are on the same file system, that it is writable, and that {path} is free",
        r"Can't link (?P<origin>\S.*) -> (?P<path>.+): (?!No such file)",
        "criu/files-reg.c",
    ),
    Cause(
        "file-owner",
        "a descriptor sends signals to process {pid|(not named)} (F_SETOWN), which does not exist",
        "have the program name a process that runs: fcntl(FD, F_SETOWN, PID); then dump again",
        r"Can't setup (?P<pid>\d+) file owner pid: No such process",
        "criu/files.c",
    ),
    Cause(
        "file-position",
        "the position in an open file cannot be restored",
        "check that the path is a regular file, as at the checkpoint",
        "Can't restore file pos",
        "criu/files-reg.c",
    ),
    Cause(
        "locks",
        "the tree holds file locks",
        "try again: crckpt saves the locks that it sees",
        "Some file locks are hold by dumping tasks",
        "criu/file-lock.c",
        by_criu="--file-locks on dump and restore",
    ),
    Cause(
        "lock-outside",
        "PID {pid} shares a file lock with a process outside the tree",
        "checkpoint the process that holds it too",
        r"Unresolved lock found pid (?P<pid>\d+)",
        "criu/file-lock.c",
    ),
    Cause(
        "lock-taken",
        "{lock|a file lock of the tree} is held by {holder|another program} now",
        "end that program, or wait until it releases the lock; list all locks: lslocks",
        "Can not set (?:flock|posix lock|ofd lock)!",
        "criu/file-lock.c",
    ),
    Cause(
        "lock-kind",
        "the tree holds a kind of file lock that CRIU does not know",
        "release it in the program: lslocks",
        "Unknown file lock|Invalid file lock info|Unknown lock option|Unknown flock type",
        "criu/proc_parse.c",
    ),
    Cause(
        "lease",
        "a file lease of the tree cannot be saved or restored",
        "end the other programs that have the file open (lsof FILE), or drop the lease in the program",
        "Can't set lease|Can't get lease type|Lease doesn't conflicts but breaks"
        "|Conflicting lease wasn't found|Can't break lease|Can't restore non breaking lease"
        "|Incorrect (?:target )?lease type",
        "criu/file-lock.c",
    ),
    Cause(
        "inherit-syntax",
        "the value {value} of --inherit-fd is invalid",
        "write it as fd[NUMBER]:PATH, without the leading slash",
        "Invalid inherit fd argument: (?P<value>.*)",
        "criu/files.c",
    ),
    Cause(
        "inherit-closed",
        "descriptor {fd}, named by --inherit-fd, is not open",
        "open it in the shell that starts criu: exec {fd}<>FILE",
        r"Can't fstat inherit fd (?P<fd>\d+)",
        "criu/files.c",
    ),
    Cause(
        "descriptor-limit",
        "fd {fd} is above the limit of open files",
        "raise it: ulimit -Hn 1048576",
        r"Too big FD number to restore (?P<fd>\d+)",
        "criu/files.c",
    ),
    Cause(
        "working-directory",
        "the working directory or the root of a process cannot be entered",
        "create it again at its old place, with the same mode",
        r"Can't open (?:cwd|root)\b(?! fd)|Can't change (?:cwd|root)\b",
        "criu/files.c",
    ),
    Cause(
        "program-file",
        "the program's executable cannot be restored",
        "check that it exists, is executable, and is not on a noexec mount",
        "Can't restore EXE link",
        "criu/pie/restorer.c",
    ),
    Cause(
        "no-file",
        "the images lack a descriptor: the program closed or changed it during the dump",
        "dump again; or restore an older checkpoint: crckpt restore REF --or-older",
        r"No file for fd \d+ id",
        "criu/files.c",
        sure=False,
        by_criu="restore older images, or dump again",
    ),
    Cause(
        "flags-dropped",
        "the kernel refuses the flags of an open file",
        "put the file on the same kind of file system as at the dump",
        r"fcntl call on fd \d+ \(flags",
        "criu/files.c",
    ),
    Cause(
        "tmpfs",
        "the content of a tmpfs cannot be saved or restored",
        "install tar, and check that there is space",
        "Can't (?:dump|restore) tmpfs content",
        "criu/filesystems.c",
    ),
    Cause(
        "fuse",
        "{path} is a FUSE mount, and CRIU cannot save its server",
        "unmount it: fusermount -u {path}; with criu: --external mnt[PATH]:KEY",
        r"(?P<path>/\S*) is a fuse mount but not external",
        "criu/filesystems.c",
    ),
    Cause(
        "link-remap",
        "{path} was removed but has a name in another directory: a checkpoint can be restored only if it is made with "
        "--stop",
        "use --stop, or close the file in the program",
    ),
    Cause(
        "unnamed-file",
        "{path} (fd {fd} of PID {pid}) has no name (O_TMPFILE): a restored program cannot give it one (linkat)",
        "",
    ),
    Cause(
        "volatile-file",
        "a reboot removes {paths} (tmpfs), and no checkpoint contains that",
        "before a reboot copy it to a disk, and put it back before the restore: cp --archive",
    ),
    Cause(
        "lock-shared",
        "process {other} outside the tree also holds the lock on {path} (fd {fd} of PID {pid}): a restore must wait "
        "until it releases the lock",
        "",
    ),
    Cause("file-missing", "{path} is missing ({use})", "put it back"),
    Cause(
        "link-missing",
        "{path} is missing, by which CRIU finds the removed file {origin} ({use}): CRIU removes this link when the "
        "program goes on after the dump, and when it is restored",
        "if that file has another name, make the link again: ln FILE {path}",
    ),
    Cause(
        "log-missing",
        "{path} is missing ({use}, append only)",
        "put it back; or make an empty one: install --mode={mode} --owner={owner} /dev/null {path}; then --grown keep",
    ),
    Cause(
        "directory-missing",
        "{path} is missing ({use})",
        "make it again: install --directory --mode={mode} --owner={owner} {path}",
    ),
    Cause(
        "file-grown",
        "{path} grew from {size} to {now} bytes since the checkpoint, last at {since} ({use})",
        "--grown rewind cuts it back (and keeps what it cuts off in a file next to it); --grown keep works only for "
        "files "
        "that the program opened for appending",
    ),
    Cause(
        "log-grown",
        "{path} grew from {size} to {now} bytes since the checkpoint, last at {since} ({use}, append only)",
        "--grown rewind cuts it back (and keeps what it cuts off in a file next to it), --grown keep appends after "
        "the new "
        "lines",
    ),
    Cause(
        "log-rotated",
        "{path} is no longer the log of the checkpoint: that had {size} bytes, this one has {now} since {since} "
        "({use}, append only)",
        "--grown keep lets the program append to it",
    ),
    Cause(
        "log-appended",
        "{path} is no longer the log of the checkpoint: that had {size} bytes, this one has {now} ({use}); the program "
        "appends to it",
        "",
    ),
    Cause("log-kept", "{path} grew from {size} to {now} bytes since the checkpoint ({use}) and stays as it is", ""),
    Cause(
        "file-rewound",
        "{path} grew from {size} to {now} bytes since the checkpoint ({use}) and is cut back",
        "what is cut off is kept in {kept|a file next to it}",
    ),
    Cause(
        "file-being-written",
        "{path} grew from {size} to {now} bytes since the checkpoint ({use}), and {comm} (PID {writer}) has it open "
        "for writing: it cannot be cut back",
        "end that program first: it may be the checkpointed one",
    ),
    Cause(
        "file-linked",
        "{path} grew from {size} to {now} bytes since the checkpoint ({use}), and its path leads through a symbolic "
        "link now: it is not cut back",
        "replace the link by the file itself",
    ),
    Cause(
        "program-grown",
        "{path} grew from {size} to {now} bytes since the checkpoint, last at {since} ({use}): it was replaced by "
        "another build",
        "put back the file as it was at {created}",
    ),
    Cause(
        "file-shrunk",
        "{path} has {now} bytes since {since}; at the checkpoint it had {size} ({use})",
        "put back the file as it was at {created}",
    ),
    Cause(
        "output-shrunk",
        "{path} has {now} bytes since {since}; at the checkpoint it had {size} ({use})",
        "put back the file as it was at {created}; or give this one the old size, so that the program writes on behind "
        "it: truncate --size {size} {path}; then --written keep",
    ),
    Cause(
        "file-other",
        "{path} is not the file of the checkpoint: that had {size} bytes, this one has {now} ({use})",
        "put back the file as it was at {created}",
    ),
    Cause(
        "file-replaced",
        "{path} is another build than at the checkpoint, since {since} ({use})",
        "install the build with id {build_id} again",
    ),
    Cause(
        "file-kind",
        "{path} is a {now} since {since}; at the checkpoint it was a {was} ({use})",
        "put back the {was}",
    ),
    Cause("file-mode", "{path} has mode {now} since {since}; at the checkpoint it had {mode}", "chmod {mode} {path}"),
    Cause(
        "data-written",
        "{path} was written after the checkpoint, at {when} ({use}): the program would overwrite what it does not know",
        "put back the file as it was at {created}; or let the program use it as it is: --written keep",
    ),
    Cause(
        "file-written", "{path} was written after the checkpoint, at {when} ({use}): memory and file may disagree", ""
    ),
)
