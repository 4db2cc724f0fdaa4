"""The catalogue of what stops a dump or a restore: words and remedies, once, for preflight and explanations. Pure.

`pattern` is what CRIU writes to its log when it meets the cause (source file of CRIU 4.2 beside it); its groups fill
the sentence. A cause without a pattern is seen by the preflight only.
"""

from __future__ import annotations

from msgspec import Struct


class Cause(Struct, frozen=True):
    """What stops us, said to a person: `says` and `remedy` are templates over the pattern's groups.

    `{name}` is filled in, `{name|other words}` too, or by the other words where it is not known.
    """

    key: str
    says: str
    remedy: str
    pattern: str = ""
    source: str = ""

    def told(self, **values: object) -> Finding:
        """This cause with its names filled in; what is not known is shown as `?`."""
        known = _Known(values)
        return Finding(self.key, self.says.format_map(known), self.remedy.format_map(known))


class _Known(dict[str, object]):
    def __missing__(self, key: str) -> object:
        name, _, otherwise = key.partition("|")
        return self.get(name, otherwise or "?")


class Finding(Struct, frozen=True):
    """A cause that was met: `what` is a sentence, `remedy` what to do about it."""

    key: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}" if self.remedy else self.what


def cause(key: str) -> Cause:
    """The cause of that key."""
    return _BY_KEY[key]


_ONLY_PREFLIGHT = (
    Cause("gone", "there is no process {pid}", "look for it: ps -e -o pid,args | grep NAME"),
    Cause("ourselves", "process {pid} is crckpt itself", "give the PID of the program that you want to keep"),
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
        "being-dumped",
        "process {pid} ({comm}) is being checkpointed or restored by process {tracer} (criu) already",
        "try again when that is done",
    ),
    Cause(
        "container",
        "process {pid} ({comm}) is the init of a container (a pid namespace of its own)",
        "checkpoint it with its container engine, for example: podman container checkpoint",
    ),
    Cause(
        "mount-namespace",
        "process {pid} ({comm}) lives in a mount namespace of its own, which a restore could not rebuild here",
        "start it without one (systemd: PrivateTmp=no, ProtectSystem=no ...), or use its container engine",
    ),
    Cause(
        "nested-namespace",
        "process {pid} has a {kind} namespace of its own inside the tree",
        "checkpoint the program inside that namespace by itself",
        r"Can't dump nested (?P<kind>\w+) namespace for (?P<pid>\d+)",
        "criu/namespaces.c:460",
    ),
    Cause(
        "tcp",
        "PID {pid} has fd {fd} connected over TCP: {local} -> {remote} ({status})",
        "choose: --tcp keep (the connection is frozen and goes on) or --tcp close (the program sees it closed)",
    ),
    Cause(
        "outside-pipe",
        "fd {fd} of PID {pid} is a pipe to a process outside the tree; after a restore its other end is {end}",
        "",
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
        "eventfd-semaphore",
        "fd {fd} of PID {pid} is an eventfd that counts like a semaphore; a restore makes it a plain one, of which one "
        "read takes all",
        "",
    ),
    Cause(
        "network-lock", "this CRIU cannot hold packets back by nftables, which --tcp keep needs", "scripts/install-criu"
    ),
    Cause(
        "pid-taken", "{kind} {pid} is taken by {comm} (PID {owner})", "end it, wait for it, or use --new-pid-namespace"
    ),
    Cause(
        "pid-unreaped",
        "{kind} {pid} is taken by {comm}, which has ended, but which its parent {parent} has not reaped",
        "end the parent, or use --new-pid-namespace",
    ),
    Cause("file-missing", "{path} is missing ({use})", "put it back"),
    Cause(
        "file-grown",
        "{path} grew from {size} to {now} bytes since the checkpoint ({use})",
        "--grown rewind cuts it back (what came after is kept beside it)",
    ),
    Cause(
        "log-grown",
        "{path} grew from {size} to {now} bytes since the checkpoint ({use}, append only)",
        "--grown rewind cuts it back (what came after is kept beside it), --grown keep goes on after the new lines",
    ),
    Cause("log-kept", "{path} grew from {size} to {now} bytes since the checkpoint ({use}) and is left as it is", ""),
    Cause(
        "file-rewound",
        "{path} grew from {size} to {now} bytes since the checkpoint ({use}) and is cut back",
        "what came after is kept beside it",
    ),
    Cause(
        "file-shrunk",
        "{path} has {now} bytes, at the checkpoint it had {size} ({use})",
        "put back the file as it was at {created}",
    ),
    Cause(
        "file-replaced",
        "{path} is another build than at the checkpoint ({use})",
        "install the build with id {build_id} again",
    ),
    Cause("file-kind", "{path} is a {now} now, at the checkpoint it was a {was} ({use})", "put back what was there"),
    Cause("file-mode", "{path} has mode {now}, at the checkpoint it had {mode}", "chmod {mode} {path}"),
    Cause(
        "file-written", "{path} was written after the checkpoint, at {when} ({use}): memory and file may disagree", ""
    ),
    Cause("port-taken", "TCP port {address} is taken by another program", "end it: ss -ltnp 'sport = :{port}'"),
    Cause(
        "terminal",
        "the tree was started from a terminal and wants one",
        "restore it from a terminal, without --detach",
    ),
)

_FROM_LOG = (
    Cause(
        "inside",
        "crckpt itself runs inside the tree: to freeze it would freeze crckpt",
        "start crckpt from elsewhere, for example with setsid --fork",
        r"The criu itself is within dumped tree",
        "compel/src/lib/infect.c:260",
    ),
    Cause(
        "io-uring",
        "the program uses io_uring, which cannot be checkpointed",
        "run it without io_uring (Node: UV_USE_IO_URING=0)",
        r"send_fds failed \(-22\)|anon_inode:\[io_uring\]",
        "criu/pie/parasite.c:588",
    ),
    Cause(
        "secretmem",
        "the program has secret memory (memfd_secret), which nobody else can read",
        "run it without secret memory",
        r"Unknown shit \d+ \(/secretmem",
        "criu/proc_parse.c:502",
    ),
    Cause(
        "device",
        "fd {fd} is a device or special file that CRIU cannot save: {what}",
        "close it in the program, or use a CRIU plugin for it",
        r"Can't dump file (?P<fd>\d+) of that type \[\d+\] \((?P<what>.*)\)",
        "criu/files-ext.c:94",
    ),
    Cause(
        "device-map",
        "PID {pid} maps a device at {address}",
        "use a CRIU plugin for the device (GPU), or unmap it",
        r"Can't handle non-regular mapping on (?P<pid>\d+)'s map (?P<address>[0-9a-f]+)",
        "criu/proc_parse.c:663",
    ),
    Cause(
        "map-gone",
        "a mapped file cannot be reached: {path}",
        "dump as root in the mount namespace of the program",
        r"Can't open mapped \[(?P<path>.*)\]|Can't open (?:\d+)'s mapfile link",
        "criu/proc_parse.c:738",
    ),
    Cause(
        "tcp-established",
        "the tree has an established TCP connection",
        "choose: --tcp keep or --tcp close",
        r"Connected TCP socket, consider using|Connected TCP socket in image|Need to set the --tcp-close",
        "criu/sk-inet.c:200",
    ),
    Cause(
        "tcp-in-flight",
        "a TCP connection waits to be accepted by the program",
        "try again in a moment",
        r"In-flight connection",
        "criu/sk-inet.c:185",
    ),
    Cause(
        "protocol",
        "a socket speaks IP protocol {number}, which CRIU cannot save (262 is MPTCP)",
        "for MPTCP in Go programs: GODEBUG=multipathtcp=0",
        r"Unsupported proto (?P<number>\d+)",
        "criu/sk-inet.c:137",
    ),
    Cause(
        "socket-family",
        "a socket of family {number} cannot be saved (40 vsock, 38 crypto, 29 CAN)",
        "close it in the program",
        r"Unknown socket collected \(family (?P<number>\d+)\)",
        "criu/sockets.c:767",
    ),
    Cause(
        "unix-outside",
        "{socket|a unix socket} is connected to a process outside the tree",
        "checkpoint the parent of both, or close the connection; of a service that writes to the journal of systemd:"
        " StandardOutput=append:/var/log/NAME.log",
        r"External socket is used|Can't dump half of stream unix connection|name-less external socket"
        r"|Unix socket \S+ with(?:out| unreachable) peer",
        "criu/sk-unix.c:874",
    ),
    Cause(
        "in-message-descriptors",
        "descriptors or credentials are under way in a unix socket",
        "try again in a moment",
        r"More than 1 SCM is not possible|Control messages in queue, not supported",
        "criu/sk-queue.c:55",
    ),
    Cause(
        "locks",
        "the tree holds file locks",
        "this is a bug in crckpt: it should have passed --file-locks",
        r"Some file locks are hold by dumping tasks",
        "criu/file-lock.c:110",
    ),
    Cause(
        "lock-outside",
        "PID {pid} shares a file lock with a process outside the tree",
        "checkpoint the process that holds it too",
        r"Unresolved lock found pid (?P<pid>\d+)",
        "criu/file-lock.c:102",
    ),
    Cause(
        "mount-lookup",
        "{path} (fd {fd}) lies on a mount that the program's mount namespace does not show",
        "close it, or start the program with no descriptors inherited from elsewhere",
        r"Can't lookup mount=-?\d+ for fd=(?P<fd>-?\d+) path=(?P<path>.*)",
        "criu/files-reg.c:1790",
    ),
    Cause(
        "file-hidden",
        "an open file can no longer be reached by its name",
        "put the file back where it was opened",
        r"Unaccessible path opened|Open files on overmounted mounts",
        "criu/files-reg.c:1444",
    ),
    Cause(
        "shell-job",
        "the tree belongs to a session outside it",
        "checkpoint the session leader, or start the program with setsid",
        r"is not a session leader\. Consider using --shell-job|Found dangling tty with sid",
        "criu/pstree.c:304",
    ),
    Cause(
        "terminal-outside",
        "the tree uses a terminal whose other side is outside it",
        "checkpoint the terminal's owner too (tmux, sshd), or redirect the program's input and output",
        r"without correspond master|Only one slave external peer is allowed",
        "criu/tty.c:410",
    ),
    Cause(
        "sysv-shm",
        "the tree has System V shared memory of the host",
        "start the program with an IPC namespace of its own: unshare --ipc PROGRAM",
        r"doesn't live in IPC ns",
        "criu/cr-dump.c:478",
    ),
    Cause(
        "cannot-trace",
        "process {pid} cannot be stopped: {why}",
        "look at it: grep -E 'State|TracerPid|Uid' /proc/{pid}/status",
        r"Unable to interrupt task: (?P<pid>\d+) \((?P<why>.*)\)",
        "compel/src/lib/infect.c:132",
    ),
    Cause(
        "freeze-timeout",
        "a thread of the tree did not stop within the time limit (uninterruptible sleep, or ever new processes)",
        "see which: ps -e -o pid,stat,wchan,comm | grep ' D', then try again",
        r"Timeout reached\. Try to interrupt",
        "criu/cr-dump.c:1655",
    ),
    Cause(
        "thread-leader-gone",
        "a process of the tree has ended its main thread while others go on",
        "wait until it has ended, or change the program",
        r"Zombie thread not supported|Zombies with threads are not supported|Individually stopped threads",
        "criu/seize.c:882",
    ),
    Cause(
        "target-ended",
        "the program ended while it was being frozen",
        "look whether it still runs",
        r"A root task is dead",
        "criu/cr-dump.c:1256",
    ),
    Cause(
        "pidfd-outside",
        "the tree holds a pidfd to process {pid} outside it",
        "close it in the program",
        r"pidfd pid (?P<pid>\d+) is not a part of process tree",
        "criu/pidfd.c:97",
    ),
    Cause(
        "watch",
        "an inotify or fanotify watch lies on a file system that cannot find it again",
        "watch a directory on a disk file system",
        r"Can't dump that handle|Can't find suitable path for handle",
        "criu/fsnotify.c:263",
    ),
    Cause(
        "no-space",
        "there is no space left",
        "free some, or use --store on a larger disk",
        r"No space left on device",
        "errno ENOSPC",
    ),
    Cause(
        "fork-pid",
        "PID {pid} is taken",
        "end its owner, wait for it, or use --new-pid-namespace",
        r"Can't fork for (?P<pid>\d+): File exists|(?:Can't|Unable to) (?:set|write) .*ns_last_pid",
        "criu/cr-restore.c:1237",
    ),
    Cause(
        "session-taken",
        "the session or group id of the tree is in use by others",
        "end those processes, or use --new-pid-namespace",
        r"Current (?:sid|gid) \d+ intersects with",
        "criu/pstree.c:386",
    ),
    Cause(
        "bad-size",
        "{path} has {now} bytes, the checkpoint expects {size}",
        "put the file back as it was, or use --grown rewind if it only grew",
        r"File (?P<path>.+) has bad size (?P<now>\d+) \(expect (?P<size>\d+)\)",
        "criu/files-reg.c:2175",
    ),
    Cause(
        "bad-build",
        "a program or library was replaced by another build",
        "install the former version again",
        r"has bad build-ID",
        "criu/files-reg.c:2146",
    ),
    Cause(
        "bad-mode",
        "a file has another mode than at the checkpoint",
        "chmod it back",
        r"has bad mode 0\d+ \(expect",
        "criu/files-reg.c:2294",
    ),
    Cause(
        "open-failed",
        "{path} is missing",
        "put it back",
        r"Can't open file (?P<path>.+) on restore: No such file",
        "criu/files-reg.c:2353",
    ),
    Cause(
        "address",
        "an address of the tree cannot be bound here",
        "free the port, or add the address to an interface",
        r"Can't bind inet socket|Cannot assign requested address|Address already in use",
        "criu/sk-inet.c:1020",
    ),
    Cause(
        "cpu",
        "this CPU lacks something that the checkpoint's had",
        "restore it on a machine like the one where it was made",
        r"CPU (?:instruction )?capabilities do not match|FPU feature required by image|xsave size mismatch",
        "criu/arch/x86/cpu.c:223",
    ),
    Cause(
        "cgroup",
        "cgroup directory {path} does not exist",
        "create it",
        r"Cgroup dir (?P<path>.+) doesn't exist",
        "criu/cgroup.c:1854",
    ),
    Cause(
        "no-privileges",
        "CRIU lacks privileges",
        "run crckpt as root",
        r"CRIU needs to have the CAP_SYS_ADMIN|Running as non-root requires",
        "criu/util.c check_caps",
    ),
    Cause(
        "vdso",
        "this CRIU is too old for the running kernel",
        "scripts/install-criu",
        r"vdso: Unexpected rt vDSO area bounds",
        "criu/vdso.c",
    ),
)

CATALOGUE = (*_ONLY_PREFLIGHT, *_FROM_LOG)
_BY_KEY = {entry.key: entry for entry in CATALOGUE}
