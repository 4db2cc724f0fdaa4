"""What the preflight of a dump or a restore sees by itself, before CRIU is started. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

PREFLIGHT = (
    Cause("gone", "there is no process {pid}", "look for it: ps -e -o pid,args | grep NAME"),
    Cause("ourselves", "process {pid} is crckpt itself", "give the PID of the program that you want to keep"),
    Cause(
        "tcp-layer",
        "the TCP connection fd {fd} of PID {pid} works with a layer of the kernel ({layer}), whose keys and state CRIU "
        "does not save: a restored one would go on in plain text",
        "close the connection: --tcp close; or have the program encrypt by itself",
    ),
    Cause(
        "ancestor",
        "process {pid} ({comm}) is an ancestor of crckpt: to freeze it would freeze crckpt",
        "start crckpt from elsewhere, for example: setsid --fork crckpt dump {pid}",
    ),
    Cause(
        "disk",
        "the images of the tree take about {needed}, and {directory} has {free} free",
        "free space (crckpt rm, crckpt gc), or let them lie elsewhere: --staging DIR",
    ),
    Cause("store-read-only", "{directory} lies on a read-only mount", "name another place: --store DIR, --staging DIR"),
    Cause(
        "memory",
        "the dump takes about {needed} of memory, and {free} are free (images go to {directory})",
        "end something else, or let the images lie on a disk: --staging DIR",
    ),
    Cause("kernel-thread", "process {pid} ({comm}) is a thread of the kernel", "give the PID of a program"),
    Cause("init", "process 1 is the system itself", "give the PID of a program, or unit:NAME"),
    Cause(
        "zombie",
        "process {pid} ({comm}) has ended and waits to be reaped by its parent {ppid}",
        "there is nothing left to save; give the PID of a living program",
    ),
    Cause(
        "traced",
        "process {pid} ({comm}) is traced by process {tracer} ({tracer_comm}), and only one can trace at a time",
        "end the debugger or strace first: kill {tracer}",
    ),
    Cause(
        "traced-by-root",
        "process {pid} ({comm}) is traced by process {tracer} ({tracer_comm}), the root of the tree itself",
        "let the program end its tracing first, or give the PID of something else than a debugger",
    ),
    Cause(
        "being-dumped",
        "process {pid} ({comm}) is being checkpointed or restored by process {tracer} (criu) already",
        "try again when that is done",
    ),
    Cause(
        "frozen-group",
        "process {pid} stands still, as all of its control group does, which is frozen ({group})",
        "thaw it, as with systemctl thaw, podman unpause or: {thaw}",
    ),
    Cause(
        "container",
        "process {pid} ({comm}) is the init of a container (a pid namespace of its own)",
        "checkpoint it with its container engine, for example: podman container checkpoint",
    ),
    Cause(
        "other-user-namespace",
        "process {pid} ({comm}) runs in another user namespace than crckpt, and no restore can make that again",
        "start it without its own user namespace (unshare --user, PrivateUsers=), or checkpoint it with its container "
        "engine",
    ),
    Cause(
        "namespace-owner",
        "the {kind} namespace of process {pid} ({comm}) belongs to another user namespace than crckpt's: its owner "
        "controls what CRIU finds in it",
        "start the program without that user namespace, or checkpoint it with its container engine",
    ),
    Cause(
        "user-namespace-recorded",
        "process {pid} ({comm}) had its own user namespace at the dump, and crckpt cannot make one again",
        "restore it with the program that dumped it, for example its container engine",
    ),
    Cause(
        "cannot-enter",
        "process {pid} has its own mounts, and CRIU cannot run in them safely: {why}",
        "install a CRIU that loads crckpt's preload library: scripts/install-criu; or start the program without "
        "its own mounts",
    ),
    Cause(
        "mount-namespace",
        "process {pid} ({comm}) lives in a mount namespace of its own, which a restore could not rebuild here",
        "start it without one (systemd: PrivateTmp=no, ProtectSystem=no ...), or use its container engine",
    ),
    Cause(
        "tcp",
        "PID {pid} has fd {fd} connected over TCP: {local} -> {remote} ({status})",
        "choose: --tcp keep (the connection is frozen and goes on) or --tcp close (the program sees it closed)",
    ),
    Cause(
        "untested-kind",
        "no test shows that a restore brings back: {kind} ({where})",
        "leave out --stop, so that the tree runs on; or end it all the same: --force",
    ),
    Cause(
        "tcp-keys",
        "fd {fd} of process {pid} ({comm}) accepts only signed TCP segments (TCP_MD5SIG), and CRIU loses the keys: a "
        "restore is refused without --allow-weaker",
        "leave out --stop, so that the tree runs on; or end it all the same: --force",
    ),
    Cause(
        "peer-of-another",
        "fd {fd} of process {pid} ({comm}) has a peer of user {user}, which a restored socket would take for root: a "
        "restore is refused without --allow-weaker",
        "leave out --stop, so that the tree runs on; or end it all the same: --force",
    ),
    Cause(
        "outside-pipe",
        "fd {fd} of PID {pid} is a pipe to a process outside the tree; after a restore its other end is the output of "
        "crckpt restore (/dev/null with --detach)",
        "",
    ),
    Cause(
        "outside-pipe-read",
        "fd {fd} of PID {pid} is a pipe from a process outside the tree; after a restore the program reads the bytes "
        "that the pipe holds now, then end of file",
        "",
    ),
    Cause(
        "in-flight-skipped",
        "crckpt does not save a TCP connection that waits to be accepted at fd {fd} of PID {pid}: after a restore it "
        "is gone, and with --stop its peer sees a reset",
        "",
    ),
    Cause(
        "descriptors-for-rounds",
        "CRIU needs about {needed} descriptors to copy the tree while it runs, and may open {limit}",
        "raise the limit (ulimit -Hn {more}; systemd: LimitNOFILE={more}; docker: --ulimit nofile={more}), allow "
        "larger pipes (sysctl -w fs.pipe-max-size=4194304), give crckpt the capability CAP_SYS_RESOURCE, or leave out "
        "--pre-copy or pre-dump (a longer freeze)",
    ),
    Cause(
        "output-socket",
        "the tree writes to crckpt's output, which is a socket, and CRIU cannot pass on a socket",
        "use a pipe: crckpt restore REF 2>&1 | cat; or a file: crckpt restore REF > FILE 2>&1; or --detach",
    ),
    Cause(
        "link-remap",
        "{path} (fd {fd} of PID {pid}) lost this name but not all: without --stop its checkpoint cannot be restored",
        "use --stop, or close the file",
    ),
    Cause(
        "foreign-limits",
        "process {pid} ({comm}) runs as user {uid}, whose limits cannot be read without CAP_SYS_RESOURCE",
        "run crckpt with that capability (in a container: --cap-add SYS_RESOURCE)",
    ),
    Cause(
        "unread",
        "what waits to be read from descriptor {fd} of PID {pid} ({kind}) is not saved, and after a restore it is lost",
        "",
    ),
    Cause(
        "lock-shared",
        "the lock on {path} (fd {fd} of PID {pid}) is held by process {other} outside the tree, too: there is no "
        "restore until that lets go",
        "",
    ),
    Cause(
        "sealed",
        "PID {pid} has sealed memory (mseal), at {start} for one; after a restore it can be changed and unmapped",
        "",
    ),
    Cause(
        "eventfd-semaphore",
        "fd {fd} of PID {pid} is an eventfd that counts like a semaphore; a restore makes it a plain one, of which one "
        "read takes all",
        "",
    ),
    Cause(
        "call-interrupted",
        "{call} of thread {tid} (PID {pid}) returns EINTR after the dump and after a restore",
        "",
    ),
    Cause(
        "call-interrupted-again",
        "a stop signal or a debugger interrupted the system call of thread {tid} (PID {pid}): it may return EINTR "
        "after the dump, and returns EINTR after a restore",
        "",
    ),
    Cause(
        "network-lock", "this CRIU cannot hold packets back by nftables, which --tcp keep needs", "scripts/install-criu"
    ),
    Cause(
        "pid-taken", "{kind} {pid} is taken by {comm} (PID {owner})", "end it, wait for it, or use --new-pid-namespace"
    ),
    Cause(
        "pid-ours",
        "{kind} {pid}, which the tree had, is by chance that of this command itself",
        "type it again: it gets another one",
    ),
    Cause(
        "pid-unreaped",
        "{kind} {pid} is taken by {comm}, which has ended, but which its parent {parent} has not reaped",
        "end the parent, or use --new-pid-namespace",
    ),
    Cause(
        "bpf-map-support",
        "fd {fd} of PID {pid} is a BPF map, which only a CRIU that was built with libbpf can save (Debian's is not)",
        "close it in the program, or take such a CRIU: --criu PATH",
    ),
    Cause("file-missing", "{path} is missing ({use})", "put it back"),
    Cause(
        "file-grown",
        "{path} grew from {size} to {now} bytes since the checkpoint, last at {since} ({use})",
        "--grown rewind cuts it back (what came after is kept beside it); --grown keep is only for files that the "
        "program opened for appending",
    ),
    Cause(
        "log-grown",
        "{path} grew from {size} to {now} bytes since the checkpoint, last at {since} ({use}, append only)",
        "--grown rewind cuts it back (what came after is kept beside it), --grown keep goes on after the new lines",
    ),
    Cause("log-kept", "{path} grew from {size} to {now} bytes since the checkpoint ({use}) and is left as it is", ""),
    Cause(
        "file-rewound",
        "{path} grew from {size} to {now} bytes since the checkpoint ({use}) and is cut back",
        "what came after is kept beside it",
    ),
    Cause(
        "file-being-written",
        "{path} grew from {size} to {now} bytes since the checkpoint ({use}), and {comm} (PID {writer}) has it open "
        "for writing: it cannot be cut back",
        "end that program first: it may be the one that was checkpointed",
    ),
    Cause(
        "file-linked",
        "{path} grew from {size} to {now} bytes since the checkpoint ({use}), and is reached through a symbolic link "
        "now: it is not cut back",
        "put the file itself there",
    ),
    Cause(
        "program-grown",
        "{path} grew from {size} to {now} bytes since the checkpoint, last at {since} ({use}): it is another build",
        "put back the file as it was at {created}",
    ),
    Cause(
        "file-shrunk",
        "{path} has {now} bytes since {since}, at the checkpoint it had {size} ({use})",
        "put back the file as it was at {created}",
    ),
    Cause(
        "file-replaced",
        "{path} is another build than at the checkpoint, since {since} ({use})",
        "install the build with id {build_id} again",
    ),
    Cause(
        "file-kind",
        "{path} is a {now} since {since}, at the checkpoint it was a {was} ({use})",
        "put back what was there",
    ),
    Cause("file-mode", "{path} has mode {now} since {since}, at the checkpoint it had {mode}", "chmod {mode} {path}"),
    Cause(
        "file-written", "{path} was written after the checkpoint, at {when} ({use}): memory and file may disagree", ""
    ),
    Cause(
        "port-taken",
        "{protocol} port {address} is taken by another program",
        "end it: ss {options} 'sport = :{port}'",
    ),
    Cause(
        "namespace-rehearsed",
        "the tree has a {kind} namespace of its own, which cannot be made a second time inside another",
        "look whether it can be restored: crckpt restore REF --dry-run",
    ),
    Cause(
        "interface-rehearsed",
        "a socket of the tree ({socket}) is bound to the interface {interface}, which a rehearsal does not have",
        "look whether it can be restored: crckpt restore REF --dry-run",
    ),
    Cause(
        "terminal-rehearsed",
        "the tree was started from a terminal and wants one, which a rehearsal does not have",
        "look whether it can be restored: crckpt restore REF --dry-run",
    ),
    Cause(
        "memory-rehearsed",
        "a rehearsal takes about {needed} of memory ({memory} of the tree, {files} of files that it has open for "
        "writing), and {free} are free",
        "end something else, or rehearse it on a larger machine",
    ),
    Cause(
        "file-cut-rehearsed",
        "{path} grew since the checkpoint; in the rehearsal, and only there, it is cut back to {size} bytes",
        "a restore needs --grown",
    ),
    Cause(
        "parent-death",
        "process {pid} no longer gets signal {signal} when its parent ends (PR_SET_PDEATHSIG): its parent is now "
        "an init",
        "",
    ),
    Cause(
        "root-ended",
        "the root, process {pid}, was restored and has ended with status 0",
        "",
    ),
    Cause(
        "terminal-of-another",
        "the tree runs as user {user} and wants a terminal, but this terminal belongs to user {owner}: the program "
        "could type commands into it",
        "restore it from a terminal of user {user}, or in one of its own: "
        "script -c 'crckpt restore REF --allow-weaker' /dev/null",
    ),
    Cause(
        "console-of-another",
        "the tree runs as user {user} and has {path} open, which belongs to user {owner} now: the program could read "
        "what is typed there, or type itself",
        "log in there as user {user}, or accept it with --allow-weaker",
    ),
    Cause(
        "terminal-group-outside",
        "the first process of the tree is on a terminal and leads no process group, which CRIU cannot restore in a new "
        "PID namespace",
        "restore it without --new-pid-namespace",
    ),
    Cause(
        "terminal",
        "the tree was started from a terminal and wants one",
        "restore it from a terminal, without --detach",
    ),
)
