"""Read and set attributes of processes and threads (scheduling, personality, policies ...) from outside.

Every value is a tuple of integers. Each reader takes a thread id as we see it; a reader of a process takes its PID.
Sources: proc(5), sched_setattr(2), sched_setaffinity(2), ioprio_set(2), prctl(2), set_mempolicy(2), linux/sched.h.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from crckpt.host.opened import opened
from crckpt.host.proc import procfs
from crckpt.host.proc.status import read_stat, read_status
from crckpt.host.syscalls import kcmp
from crckpt.host.syscalls.libc import syscall
from crckpt.host.syscalls.own_process import MCE_KILL_DEFAULT, MCE_KILL_EARLY, MCE_KILL_LATE

Value = tuple[int, ...]
Reader = Callable[[int], Value]

_IOPRIO_WHO_PROCESS: Final = 1  # it means a single thread, in spite of its name
# struct sched_attr, 56 bytes since Linux 5.3: the order of `_scheduling`.
_ATTRIBUTES: Final = struct.Struct("<IIQiIQQQII")
# SCHED_OTHER and SCHED_BATCH: a thread may request another slice than the default (Linux 6.12).
_SLICED: Final = (0, 3)
DEADLINE: Final = 6
NO_LOGIN_USER: Final = 0xFFFFFFFF
_MOST_UTILIZATION: Final = 1024
_UTILIZATION: Final = 0x60  # SCHED_FLAG_UTIL_CLAMP_MIN | SCHED_FLAG_UTIL_CLAMP_MAX

# Flags of a task, field 9 of its stat (linux/sched.h).
_MCE_PROCESS, _MCE_EARLY = 0x80, 0x08000000
_IO_FLUSHER: Final = 0x00080000 | 0x00100000  # PF_MEMALLOC_NOIO, PF_LOCAL_THROTTLE: what the option sets

# MPOL_..., by the names in numa_maps (mm/mempolicy.c: policy_modes).
_NAMED: Final = ("default", "prefer", "bind", "interleave", "local", "prefer (many)", "weighted interleave")
_POLICIES: Final = {name: number for number, name in enumerate(_NAMED)}
_POLICY_FLAGS: Final = {"static": 1 << 15, "relative": 1 << 14}


def _deadline(tid: int) -> Value:
    """Flags, runtime, deadline and period of a thread with SCHED_DEADLINE; nothing for any other."""
    found = _scheduling(tid)
    return (found[2], *found[5:8]) if found[1] == DEADLINE else ()


def _time_slice(tid: int) -> Value:
    """The time slice in nanoseconds that a thread requested; nothing if it has the default slice."""
    found = _scheduling(tid)
    own = found[5] if found[1] in _SLICED else 0
    return () if own in (0, _usual_slice()) else (own,)


def _set_time_slice(tid: int, value: Value) -> None:
    # Without changing the policy.
    _, policy, flags, nice, priority, *_ = _scheduling(tid)
    _set_scheduling(tid, policy, flags & ~_UTILIZATION, nice, priority, *(value or (0,)), 0, 0)


def _utilization(tid: int) -> Value:
    """The least and the most CPU performance that the scheduler assumes for a thread; nothing if it is not limited."""
    found = _scheduling(tid)
    return () if found[8:10] in ((0, 0), (0, _MOST_UTILIZATION)) else (found[8], found[9])


def _set_utilization(tid: int, value: Value) -> None:
    # Without changing the policy.
    _, policy, flags, nice, priority, *times = _scheduling(tid)
    least, most = value or (0, _MOST_UTILIZATION)
    _set_scheduling(tid, policy, flags | _UTILIZATION, nice, priority, *times[:3], least, most)


def _memory_errors(tid: int) -> Value:
    """The policy of a thread for memory errors (PR_MCE_KILL)."""
    flags = read_stat(tid).flags
    own = MCE_KILL_EARLY if flags & _MCE_EARLY else MCE_KILL_LATE
    return (own if flags & _MCE_PROCESS else MCE_KILL_DEFAULT,)


def _memory_policy(tid: int) -> Value:
    """Mode with flags, and nodes, as in set_mempolicy(2). Nothing if the host has only one node."""
    # The kernel lists it for each map without its own policy. Read only the first map: large maps take long.
    if not _has_nodes():
        return ()
    with opened(os.open(f"/proc/{tid}/numa_maps", os.O_RDONLY | os.O_CLOEXEC)) as file:
        line = os.read(file, 1).decode() + os.read(file, 4096).decode(errors="replace")
    return parse_memory_policy(line)


def parse_memory_policy(line: str) -> Value:
    """The policy that a line of /proc/PID/numa_maps shows. Source: mm/mempolicy.c: mpol_to_str."""
    found = re.match(r"[0-9a-f]+ ([a-z]+(?: \(many\)| interleave)?)(?:=([a-z|]+))?(?::([0-9,-]+))?", line)
    if found is None or found[1] not in _POLICIES:
        return ()
    mode = _POLICIES[found[1]]
    for flag in (found[2] or "").split("|"):
        mode |= _POLICY_FLAGS.get(flag, 0)
    return (mode, *_numbers(found[3] or ""))


def directories(tid: int) -> Value:
    """Umask, the length of the root's path, both paths in bytes, of a thread that has them for itself (CLONE_FS)."""
    status = read_status(tid)
    if int(status["Tgid"]) == tid or not kcmp.compare(tid, int(status["Tgid"]), kcmp.FS):
        return ()
    # /proc/TID is the thread, although /proc does not list it.
    root, work = (os.fsencode(Path(f"/proc/{tid}/{name}").readlink()) for name in ("root", "cwd"))
    return (int(status["Umask"], 8), len(root), *root, *work)


def parse_directories(value: Value) -> tuple[int, bytes, bytes]:
    """Umask, root and working directory of that value."""
    umask, length, *paths = value
    return umask, bytes(paths[:length]), bytes(paths[length:])


def _login_uid(tid: int) -> Value:
    """The login user, as the kernel's audit log names them; NO_LOGIN_USER if nobody has logged in."""
    with suppress(FileNotFoundError):  # a kernel that audits no system calls
        return (int(procfs.text(f"/proc/{tid}/loginuid")),)
    return (NO_LOGIN_USER,)


def _autogroup_nice(pid: int) -> Value:
    """The nice value of the autogroup of a process; nothing if it is in none, or the kernel has no autogroups."""
    with suppress(FileNotFoundError):
        return parse_autogroup(procfs.text(f"/proc/{pid}/autogroup"))
    return ()


def parse_autogroup(said: str) -> Value:
    """The nice value that /proc/PID/autogroup shows. Source: kernel/sched/autogroup.c."""
    # The file is empty for a session that began before the first setsid: that of PID 1, also in a container.
    return (int(said.split()[-1]),) if said else ()


def _memory_merge(pid: int) -> Value:
    """Whether equal pages of its memory may be merged (PR_SET_MEMORY_MERGE); nothing on a kernel without ksm_stat."""
    with suppress(FileNotFoundError):
        said = procfs.text(f"/proc/{pid}/ksm_stat")
        # Older kernels have the file without this line.
        if "ksm_merge_any:" in said:
            return (int("ksm_merge_any: yes" in said),)
    return ()


OF_THREAD: Final[dict[str, Reader]] = {
    # The CPUs on which it may run.
    "affinity": lambda tid: tuple(sorted(os.sched_getaffinity(tid))),
    # Class and level in one number.
    "io_priority": lambda tid: (syscall("ioprio_get", _IOPRIO_WHO_PROCESS, tid),),
    # In nanoseconds. The kernel has it in /proc/TID, not in /proc/PID/task/TID.
    "timer_slack": lambda tid: (int(procfs.text(f"/proc/{tid}/timerslack_ns")),),
    "deadline": _deadline,
    "time_slice": _time_slice,
    "utilization": _utilization,
    # The execution domain, as in personality(2).
    "personality": lambda tid: (int(procfs.text(f"/proc/{tid}/personality"), 16),),
    "memory_errors": _memory_errors,
    # Whether it takes part in writing memory out (PR_SET_IO_FLUSHER).
    "io_flusher": lambda tid: (int(read_stat(tid).flags & _IO_FLUSHER == _IO_FLUSHER),),
    "memory_policy": _memory_policy,
    "directories": directories,
    "login_uid": _login_uid,
}
OF_PROCESS: Final[dict[str, Reader]] = {
    # Nothing for one that has no memory.
    "core_filter": lambda pid: tuple(int(word, 16) for word in procfs.text(f"/proc/{pid}/coredump_filter").split()),
    "autogroup_nice": _autogroup_nice,
    "memory_merge": _memory_merge,
}
# They raise OSError; EINVAL of the affinity: this host has none of the CPUs.
SETTERS: Final[dict[str, Callable[[int, Value], object]]] = {
    "affinity": os.sched_setaffinity,
    "io_priority": lambda tid, value: syscall("ioprio_set", _IOPRIO_WHO_PROCESS, tid, *value),
    "time_slice": _set_time_slice,
    "utilization": _set_utilization,
    "deadline": lambda tid, value: _set_scheduling(tid, DEADLINE, value[0], 0, 0, *value[1:]),
    "timer_slack": lambda tid, value: Path(f"/proc/{tid}/timerslack_ns").write_text(str(value[0])),
    # It is not known if the process was killed during the dump.
    "core_filter": lambda pid, value: value and Path(f"/proc/{pid}/coredump_filter").write_text(f"{value[0]:#x}"),
    "autogroup_nice": lambda pid, value: Path(f"/proc/{pid}/autogroup").write_text(str(value[0] if value else 0)),
}


def online_cpus() -> frozenset[int]:
    """The CPUs of this host that are online."""
    return frozenset(_numbers(procfs.text("/sys/devices/system/cpu/online").strip()))


def _numbers(listed: str) -> tuple[int, ...]:
    """Parse a list like `0-2,5`: 0, 1, 2, 5."""
    found: list[int] = []
    for part in listed.split(",") if listed else ():
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def _scheduling(tid: int) -> Value:
    """sched_getattr(2): size, policy, flags, nice, priority, runtime, deadline, period, least and most utilization."""
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    syscall("sched_getattr", tid, buffer, _ATTRIBUTES.size, 0)
    return _ATTRIBUTES.unpack(buffer.raw)


def _set_scheduling(tid: int, *fields: int) -> None:
    given = (*fields, 0, 0)[:9]
    syscall("sched_setattr", tid, _ATTRIBUTES.pack(_ATTRIBUTES.size, *given), 0)


@cache
def _has_nodes() -> bool:
    with suppress(OSError):
        return len(_numbers(procfs.text("/sys/devices/system/node/online").strip())) > 1
    return False


@cache
def _usual_slice() -> int:
    # Only debugfs shows the default. crckpt itself has requested no other.
    found = _scheduling(0)
    return found[5] if found[1] in _SLICED else 0
