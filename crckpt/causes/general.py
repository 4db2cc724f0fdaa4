"""What is said when no line names a cause of its own: consequences, and what the kernel answered. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

GENERAL = (
    Cause(
        "script",
        "an action script of CRIU failed",
        "try it by hand; the environment variable CRTOOLS_SCRIPT_ACTION says for what it was called",
        "Script .+ exited with|One of more action scripts failed|script failed with"
        "|RPC client reported script error|-re(?:store|sume) script ret code",
        "criu/action-scripts.c",
    ),
    Cause(
        "killed",
        "process {pid} was killed by signal {signal} before it was restored",
        "with signal 9 see whether memory ran out (journalctl -k -g oom), with 11 check the images: crckpt verify REF",
        r"\b(?P<pid>\d+) killed by signal (?P<signal>\d+)",
        "criu/cr-restore.c",
    ),
    Cause(
        "killed-frozen",
        "process {pid} was killed by signal {signal} while CRIU worked in it",
        "see whether memory ran out: journalctl -k -g oom; else try again",
        r"\b(?P<pid>\d+) was killed by (?P<signal>\d+) unexpectedly",
        "compel/src/lib/infect.c",
    ),
    Cause(
        "ended-early",
        "a process ended before the restore was whole",
        "see which and why: crckpt explain -v LOG",
        r"Child \d+ died too early|\d+ exited, status=\d+|Restorer fail |Failed to wait on helpers and zombies",
        "criu/cr-restore.c",
    ),
    Cause(
        "not-run-inside",
        "CRIU could not run its code inside process {pid}",
        "see whether something forbids it: journalctl -k -g denied",
        r"Can't infect \(pid: (?P<pid>\d+)\) with parasite",
        "criu/cr-dump.c",
    ),
    Cause(
        "kernel-probe",
        "CRIU could not find out what this kernel can do ({what})",
        "run crckpt as root; if that is so already: scripts/install-criu",
        r"(?P<what>\w+) (?:has )?failed when initializing kerndat"
        "|Could not initialize kernel features detection",
        "criu/kerndat.c",
    ),
    Cause(
        "enter-namespace",
        "CRIU may not enter the {kind} namespace of the tree",
        "run crckpt as root of the host",
        r"Can't setns \d+/(?P<kind>\w+)",
        "criu/namespaces.c",
    ),
    Cause(
        "read-only",
        "a file system is read only",
        "make it writable: mount -o remount,rw DIRECTORY",
        "Read-only file system$",
        "errno EROFS",
    ),
    Cause(
        "device-error",
        "a disk cannot be read or written",
        "see what the kernel says: dmesg",
        "Input/output error$",
        "errno EIO",
    ),
    Cause(
        "not-permitted",
        "the kernel does not permit it",
        "run crckpt as root; in a container: with more capabilities, and without its seccomp profile",
        "(?:Operation not permitted|Permission denied)$",
        "errno EPERM, EACCES",
    ),
    Cause(
        "process-gone",
        "a process ended while CRIU worked on it",
        "try again",
        r"^(?!.*Unable to detach from).*No such process$",
        "errno ESRCH",
    ),
    Cause(
        "kernel-lacks",
        "this kernel lacks a function that CRIU needs",
        "crckpt doctor says which; boot a newer kernel",
        "Function not implemented$",
        "errno ENOSYS",
    ),
)

WARNED = (
    Cause(
        "cannot-trace",
        "process {pid} cannot be stopped: {why}",
        "look at it: grep -E 'State|TracerPid|Uid' /proc/{pid}/status",
        r"Unable to interrupt task: (?P<pid>\d+) \((?P<why>.*)\)",
        "compel/src/lib/infect.c",
    ),
)
"""Said of every process that ends while the tree is frozen too: it counts only where nothing else was said."""
