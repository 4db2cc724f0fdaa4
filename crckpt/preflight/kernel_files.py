"""Which files of the kernel's own file systems (/proc, /sys, control groups) a restored program may keep open.

CRIU opens them again, as root with all capabilities, and for many of them the kernel remembers who has opened them: it
judges what is read or written later by the rights of that user (`file->f_cred`), or it bound the file at its opening to
the memory that a process had then. A program that is not root would have gained rights. So it keeps only what is listed
here, where the kernel looks at nothing but the reader, or at what the program may open itself.

Sources: Linux 6.18, fs/proc/base.c, fs/proc/array.c, fs/seq_file.c, kernel/cgroup/cgroup.c, kernel/kallsyms.c,
drivers/pci/pci-sysfs.c.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from crckpt.host.observe.files import KernelFile
from crckpt.images.core import CAPABILITIES, Rights

PROC: Final = 0x9FA0
CONTROL_GROUPS: Final = frozenset({0x27E0EB, 0x63677270})
SYSFS: Final = 0x62656572
_OTHERS: Final = """
debugfs 64626720  tracefs 74726163  securityfs 73636673  bpf cafe4a11  configfs 62656570  pstore 6165676c
efivarfs de5e81e4  selinuxfs f97cff8c  smackfs 43415d53  binfmt_misc 42494e4d  apparmorfs 5a3c69f0  resctrl 07655821
"""
OTHERS: Final = frozenset(int(number, 16) for number in _OTHERS.split()[1::2])
"""Magic numbers of file systems (linux/magic.h) of which a program that is not root keeps nothing."""
KERNEL_FILE_SYSTEMS: Final = frozenset({PROC, SYSFS, *CONTROL_GROUPS, *OTHERS})
"""Magic numbers (statfs(2)) of all of these."""

_PERMITTED, _EFFECTIVE, _AMBIENT = (list(CAPABILITIES).index(name) for name in ("CapPrm", "CapEff", "CapAmb"))
_PROCESS: Final = re.compile(r"/proc/(\d+)(?:/task/\d+)?(/.*|)")

# What every user may read of every process, with the eyes of the reader.
_OF_ANY_PROCESS: Final = re.compile(
    r"(?:|/(?:cgroup|cmdline|comm|limits|mountinfo|mounts|oom_score|stat|statm|status|task))"
)
# What a process may read of itself, and of those that it could trace.
_OF_OWN_PROCESS: Final = re.compile(
    r"/(?:attr|attr/current|autogroup|auxv|coredump_filter|environ|fd|fdinfo|io|maps|mem|mountstats|net(?:/[a-z0-9_]+)?"
    r"|ns|numa_maps|oom_adj|oom_score_adj|sched|schedstat|smaps|smaps_rollup|syscall|timerslack_ns|wchan)"
)
# Of these, files that the kernel binds at their opening to the memory that the process has then.
_OF_MEMORY: Final = re.compile(r"/(?:auxv|environ|maps|mem|numa_maps|smaps|smaps_rollup)")
_WRITTEN_OF_OWN_PROCESS: Final = re.compile(r"/(?:comm|coredump_filter|mem|oom_score_adj|timerslack_ns)")
# Of the whole system.
_OF_SYSTEM: Final = re.compile(
    r"/proc(?:|/(?:buddyinfo|cmdline|cpuinfo|crypto|devices|diskstats|filesystems|interrupts|loadavg|meminfo|partitions"
    r"|softirqs|stat|swaps|uptime|version|vmstat|zoneinfo|pressure(?:/[a-z]+)?|sys(?:/.*)?))"
)
_OF_SYSFS: Final = re.compile(
    r"/sys(?:|/devices/system/(?:cpu|memory|node)(?:/.*)?|/kernel/mm(?:/.*)?|/devices/.*/net/[^/]+/statistics/[a-z_]+"
    r"|/devices/virtual/thermal/.*|/fs/cgroup)"
)


def may_keep(file: KernelFile, may_look_into: Callable[[int], bool], *, has_gained_rights: bool = False) -> bool:
    """Return whether a process that is not root may keep it open. `may_look_into`: the PIDs that it may trace.

    One that `has_gained_rights` by the program that it executes may have got the file from before: then the file leads
    to memory that is gone, and would lead to that of this program.
    """
    # With O_PATH nothing can be done but to open it again, as oneself.
    if file.magic not in KERNEL_FILE_SYSTEMS or file.flags & os.O_PATH:
        return True
    reads = file.flags & os.O_ACCMODE == os.O_RDONLY
    if file.magic != PROC:
        is_readable = file.magic not in OTHERS and reads and bool(file.mode & stat.S_IROTH)
        return is_readable and (file.magic in CONTROL_GROUPS or _OF_SYSFS.fullmatch(file.path) is not None)
    of_process = _PROCESS.fullmatch(file.path)
    if of_process is None:
        return reads and bool(file.mode & stat.S_IROTH) and _OF_SYSTEM.fullmatch(file.path) is not None
    whose, what = int(of_process[1]), of_process[2]
    if reads and _OF_ANY_PROCESS.fullmatch(what):
        return True
    if has_gained_rights and _OF_MEMORY.fullmatch(what):
        return False
    listed = _OF_OWN_PROCESS if reads else _WRITTEN_OF_OWN_PROCESS
    return listed.fullmatch(what) is not None and may_look_into(whose)


def may_trace_of(pid: int, rights: Mapping[int, Rights], undumpable: Collection[int]) -> Callable[[int], bool]:
    """Return a function that tells whether process `pid` may trace another of its tree: ptrace(2), access modes."""
    mine = rights[pid]

    def may_trace_it(other: int) -> bool:
        if other == pid or other not in rights or other in undumpable:
            return other == pid
        theirs = rights[other]
        return (
            {*theirs.uids[:3]} == {mine.uids[3]}
            and {*theirs.gids[:3]} == {mine.gids[3]}
            and not theirs.capabilities[_PERMITTED] & ~mine.capabilities[_EFFECTIVE]
        )

    return may_trace_it


def make_judge(
    pid: int,
    rights: Mapping[int, Rights],
    undumpable: Collection[int],
    capabilities: Iterable[int],
    parents: Mapping[int, int],
) -> Callable[[KernelFile], bool] | None:
    """Return a function that tells whether process `pid` may keep a file open; None if it may keep all.

    That is so for root with all our `capabilities` that no user has started, and where the rights of the process are
    not known. `parents`: those of the processes of the tree.
    """
    if pid not in rights:
        return None
    mine = rights[pid]
    is_started_by_another = has_rights_of_another(pid, rights, parents)
    lacks = sum(1 << number for number in capabilities) & ~mine.capabilities[_EFFECTIVE]
    if mine.uids[1] == 0 and not lacks and not is_started_by_another:
        return None
    # The capabilities of root are those of its user; ambient ones were there before the program was executed.
    has_gained = mine.uids[0] != 0 and mine.capabilities[_PERMITTED] & ~mine.capabilities[_AMBIENT]
    has_gained_rights = is_started_by_another or pid in undumpable or bool(has_gained)
    may_look_into = may_trace_of(pid, rights, undumpable)
    return lambda file: may_keep(file, may_look_into, has_gained_rights=has_gained_rights)


def has_rights_of_another(pid: int, rights: Mapping[int, Rights], parents: Mapping[int, int]) -> bool:
    """Return whether the user who started the process may be another than the one whose rights it has.

    It has executed a set-user-id or set-group-id program, or one of its ancestors in the tree is of another user.
    """
    mine, uid = rights[pid], rights[pid].uids[0]
    if {*mine.uids} != {uid} or {*mine.gids} != {mine.gids[0]}:
        return True
    passed = {pid}
    while (pid := parents.get(pid, 0)) in rights and pid not in passed:
        passed.add(pid)
        if {*rights[pid].uids} not in ({0}, {uid}):
            return True
    return False
