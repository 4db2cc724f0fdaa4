"""Attributes and protections that a restored program loses. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

_ALLOW = "restore it with less protection: --allow-weaker; or start the program anew"

ATTRIBUTES = (
    Cause(
        "landlock-lost",
        "process {pid} ({comm}) has a Landlock domain, which a restore cannot bring back",
        _ALLOW,
    ),
    Cause(
        # A system call in the process finds it out. One that dispatches its own calls (prctl(2)), or does not get to
        # run, makes none.
        "unasked-lost",
        "process {pid} ({comm}) may be confined by Landlock or PR_SET_MDWE; the dump could not find out, and a restore "
        "would not confine it",
        _ALLOW,
    ),
    Cause(
        "cgroup-namespace-lost",
        "process {pid} ({comm}) has its own cgroup namespace, which a restore cannot bring back",
        _ALLOW,
    ),
    Cause(
        "label-lost",
        "process {pid} ({comm}) has set {name} to {label} for its security module, and a restore cannot bring that "
        "back",
        _ALLOW,
    ),
    Cause(
        # SO_PEERCRED of unix(7): CRIU makes all sockets while its tasks are still root's, and nothing can change the
        # answer.
        "peer-lost",
        "fd {fd} of process {pid} ({comm}) is connected to a process of user {user}; after a restore, that peer "
        "would look like root",
        _ALLOW,
    ),
    Cause(
        "tcp-keys-lost",
        "fd {fd} of process {pid} ({comm}) accepts only signed TCP segments (TCP_MD5SIG), and CRIU loses the keys",
        _ALLOW,
    ),
    Cause(
        "not-asked",
        "crckpt cannot find out whether process {pid} ({comm}) uses Landlock, PR_SET_MDWE or mlockall ({why}); a "
        "restore loses them",
        "",
    ),
    Cause(
        "keys-lost",
        "process {pid} ({comm}) had {keys} keys in its session keyring; its session keyring is now a new, empty one",
        "make the program request its keys again",
    ),
    Cause(
        "cpus-missing",
        "this host has no CPU {missing}: thread {tid} runs only on CPU {left}",
        "choose other CPUs: taskset -p",
    ),
    Cause(
        "no-cpu-left",
        "this host has no CPU {missing}: thread {tid} runs on any CPU",
        "choose other CPUs: taskset -p",
    ),
    Cause(
        "attribute-lost",
        "crckpt cannot restore {title} of thread {tid}: {why}",
        "",
    ),
    Cause(
        "socket-option-lost",
        "crckpt cannot restore {title} of descriptor {fd} of process {pid}: {why}",
        "",
    ),
    Cause(
        "protection-lost",
        "crckpt cannot restore {title} of process {pid}: {why}",
        _ALLOW,
    ),
    Cause(
        "needs-allow-weaker",
        "process {pid} ({comm}) is confined by {what}, which a restore cannot bring back",
        "restore it later with --allow-weaker",
    ),
    Cause(
        "file-planted",
        "{path}, a file of process {pid} ({comm}), is {found} now, and belongs to {user}, who did not own it at the "
        "checkpoint: that user may have put it there to control the program",
        "check it: ls -ld {path}; if it is the right file: --allow-weaker",
    ),
    Cause(
        "kernel-file",
        "process {pid} ({comm}) would have {path} open as root has it: the kernel would let it do with this file what "
        "only root may",
        "let the program open it again after the restore, and close it before a dump; or give it that right: "
        "--allow-weaker",
    ),
    Cause(
        "kernel-file-open",
        "process {pid} ({comm}) has {path} open at fd {fd}; after a restore, the kernel would let it do with this file "
        "what only root may: a restore is refused without --allow-weaker",
        "leave out --stop, so that the tree runs on; or end it anyway: --force",
    ),
    Cause(
        "file-exchanged",
        "somebody may have replaced {path}, a file of process {pid} ({comm}): it is {found} now, which the program or "
        "a user who can change the path ({user}) may not open",
        "check it: ls -ld {path}; if it is the right file: --allow-weaker",
    ),
)
