"""Attributes that the kernel keeps for a program, set for the process and, with other values, for a second thread.

`attributes.py WORKDIR NAME...` sets the named attributes, and reports at every tick what its own system calls return
for each: `process` in the first thread, `thread` in the second.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import resource
import stat
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from selfcheck import Program
from system_calls import LIBC, call

# asm/unistd_64.h of x86-64
PRCTL, PERSONALITY, SETHOSTNAME = 157, 135, 170
SCHED_SETATTR, SCHED_GETATTR, IOPRIO_SET, IOPRIO_GET = 314, 315, 251, 252
SET_MEMPOLICY, GET_MEMPOLICY, KEYCTL = 238, 239, 250
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
# linux/prctl.h
GET_DUMPABLE, SET_DUMPABLE, SET_SECCOMP, GET_SECUREBITS, SET_SECUREBITS = 3, 4, 22, 27, 28
SET_TIMERSLACK, GET_TIMERSLACK, MCE_KILL, MCE_KILL_GET = 29, 30, 33, 34
SET_CHILD_SUBREAPER, GET_CHILD_SUBREAPER, SET_NO_NEW_PRIVS, GET_NO_NEW_PRIVS = 36, 37, 38, 39
SET_THP_DISABLE, GET_THP_DISABLE, CAPBSET_DROP = 41, 42, 24
SET_DISPATCH, SET_MDWE, GET_MDWE, SET_MERGE, GET_MERGE = 59, 65, 66, 67, 68
# linux/keyctl.h
KEYCTL_JOIN, KEYCTL_DESCRIBE = 1, 6
SESSION = -3
MAKE_BLOCK = 1 << 11  # linux/landlock.h: LANDLOCK_ACCESS_FS_MAKE_BLOCK
MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4
NO_RANDOM_ADDRESSES, UNAME26 = 0x0040000, 0x0020000
OTHER, FIFO, BATCH, DEADLINE = 0, 1, 3, 6


class Attribute(NamedTuple):
    """`set_process` and `set_thread` are called in the first and in the second thread, `read` in each."""

    set_process: Callable[[], object]
    set_thread: Callable[[], object]
    read: Callable[[], object]


def prctl(*arguments: int) -> int:
    """prctl(2)."""
    return call(PRCTL, *(ctypes.c_ulong(word) for word in (*arguments, 0, 0, 0, 0)[:5]))


def nothing() -> None:
    """Set nothing: an attribute of the whole process, or one that this thread leaves alone."""


def set_scheduling(policy: int, **more: int) -> None:
    """sched_setattr(2) of this thread."""
    fields = {"flags": 0, "nice": 0, "priority": 0, "runtime": 0, "deadline": 0, "period": 0} | more
    packed = struct.pack("<IIQiIQQQ", 48, policy, *fields.values())
    call(SCHED_SETATTR, 0, packed, 0)


def scheduling() -> dict[str, int]:
    """sched_getattr(2) of this thread, without its niceness for policies that have none."""
    buffer = ctypes.create_string_buffer(56)
    call(SCHED_GETATTR, 0, buffer, 56, 0)
    names = ("size", "policy", "flags", "nice", "priority", "runtime", "deadline", "period")
    found = dict(zip(names, struct.unpack_from("<IIQiIQQQ", buffer), strict=True))
    return {name: found[name] for name in names[1:]}


def read_once(path: str) -> Callable[[], str]:
    """Read a file of /proc for this thread or its process."""
    return lambda: Path(path.replace("@", str(threading.get_native_id()))).read_text().strip()


def status_line(name: str) -> Callable[[], str]:
    """Return a line of this thread's own /proc/.../status."""
    text = read_once("/proc/self/task/@/status")
    return lambda: re.search(rf"^{name}:\s*(.*)$", text(), re.MULTILINE)[1]  # type: ignore[index]


def locked_when_mapped() -> str:
    """Return whether and how a new map is locked, from the flags of a map made for that."""
    with mmap.mmap(-1, 3 * mmap.PAGESIZE) as fresh:
        address = ctypes.addressof(ctypes.c_char.from_buffer(fresh))
        entry, flags = "", ""
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                entry = line if start <= address < end else ""
            elif entry and line.startswith(("Locked:", "VmFlags:", "Rss:")):
                flags += line + " "
    locked = "lo" in flags.split()
    return "no" if not locked else "at once" if int(re.search(r"Rss:\s*(\d+)", flags)[1]) else "when used"  # type: ignore[index]


def mempolicy() -> tuple[int, int]:
    """get_mempolicy(2) of this thread."""
    mode, nodes = ctypes.c_int(), ctypes.create_string_buffer(128)
    call(GET_MEMPOLICY, ctypes.byref(mode), nodes, 1024, 0, 0)
    return mode.value, int.from_bytes(nodes.raw, "little")


def session_keyring() -> str:
    """keyctl(2): description of this thread's session keyring."""
    buffer = ctypes.create_string_buffer(256)
    call(KEYCTL, KEYCTL_DESCRIBE, SESSION, buffer, 256)
    return buffer.value.decode()


def refuse_host_names(error: int) -> None:
    """Set a system call filter for this thread that answers sethostname(2) with this error."""
    instructions = ((0x20, 0, 0, 0), (0x15, 0, 1, SETHOSTNAME), (6, 0, 0, 0x50000 | error), (6, 0, 0, 0x7FFF0000))
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in instructions))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(instructions), ctypes.addressof(program)))
    prctl(SET_NO_NEW_PRIVS, 1)
    prctl(SET_SECCOMP, 2, ctypes.addressof(head))


def host_name_error() -> int:
    """Return the error of sethostname(2) with a name that is too long."""
    LIBC.syscall(SETHOSTNAME, b"", ctypes.c_size_t(1 << 20))
    return ctypes.get_errno()


SELECTOR: Final = ctypes.c_char(0)
"""Where the kernel looks whether a system call is to be dispatched: none is."""


def dispatch() -> None:
    """Let this thread catch its own system calls."""
    prctl(SET_DISPATCH, 1, 0, 0, ctypes.addressof(SELECTOR))


def restrict() -> None:
    """Put this thread into a Landlock domain in which it cannot make block devices."""
    handled = struct.pack("<Q", MAKE_BLOCK)
    ruleset = call(LANDLOCK_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    call(LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def may_make_device() -> bool:
    """Return whether a block device can be made, which the domain forbids."""
    path = Path(sys.argv[1], f"device-{threading.get_native_id()}")
    try:
        os.mknod(path, stat.S_IFBLK, os.makedev(1, 1))
    except PermissionError:
        return False
    path.unlink()
    return True


def may_execute_what_was_written() -> bool:
    """Return whether writable memory may be made executable, which PR_SET_MDWE forbids."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as page:
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        answer: int = LIBC.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC)
    return answer == 0


ATTRIBUTES: Final = {
    "affinity": Attribute(
        lambda: os.sched_setaffinity(0, {0}),
        lambda: os.sched_setaffinity(0, {1}),
        lambda: sorted(os.sched_getaffinity(0)),
    ),
    "ioprio": Attribute(
        lambda: call(IOPRIO_SET, 1, 0, 2 << 13 | 6),
        lambda: call(IOPRIO_SET, 1, 0, 3 << 13 | 0),
        lambda: call(IOPRIO_GET, 1, 0),
    ),
    "timer_slack": Attribute(
        lambda: prctl(SET_TIMERSLACK, 123_000), lambda: prctl(SET_TIMERSLACK, 456_000), lambda: prctl(GET_TIMERSLACK)
    ),
    "nice": Attribute(
        lambda: os.setpriority(os.PRIO_PROCESS, 0, 3),
        lambda: os.setpriority(os.PRIO_PROCESS, 0, 7),
        lambda: os.getpriority(os.PRIO_PROCESS, 0),
    ),
    "policy": Attribute(lambda: set_scheduling(BATCH, nice=2), lambda: set_scheduling(FIFO, priority=5), scheduling),
    "reset_on_fork": Attribute(
        lambda: set_scheduling(OTHER, flags=1), lambda: set_scheduling(FIFO, priority=5, flags=1), scheduling
    ),
    "slice": Attribute(lambda: set_scheduling(OTHER, runtime=11_000_000), nothing, scheduling),
    "deadline": Attribute(
        nothing,
        lambda: set_scheduling(DEADLINE, runtime=2_000_000, deadline=20_000_000, period=40_000_000),
        scheduling,
    ),
    "personality": Attribute(
        lambda: call(PERSONALITY, NO_RANDOM_ADDRESSES),
        lambda: call(PERSONALITY, UNAME26),
        lambda: (call(PERSONALITY, 0xFFFFFFFF), os.uname().release.split(".")[0]),
    ),
    "coredump_filter": Attribute(
        lambda: Path("/proc/self/coredump_filter").write_text("0x7b"), nothing, read_once("/proc/self/coredump_filter")
    ),
    "oom_score_adj": Attribute(
        lambda: Path("/proc/self/oom_score_adj").write_text("321"), nothing, read_once("/proc/self/oom_score_adj")
    ),
    "autogroup": Attribute(
        lambda: Path("/proc/self/autogroup").write_text("5"),
        nothing,
        lambda: Path("/proc/self/autogroup").read_text().split()[-1],
    ),
    "dumpable": Attribute(lambda: prctl(SET_DUMPABLE, 0), nothing, lambda: prctl(GET_DUMPABLE)),
    "subreaper": Attribute(lambda: prctl(SET_CHILD_SUBREAPER, 1), nothing, lambda: answered(GET_CHILD_SUBREAPER)),
    "no_new_privs": Attribute(lambda: prctl(SET_NO_NEW_PRIVS, 1), nothing, lambda: prctl(GET_NO_NEW_PRIVS)),
    "securebits": Attribute(
        lambda: prctl(SET_SECUREBITS, 0b10), lambda: prctl(SET_SECUREBITS, 0b1), lambda: prctl(GET_SECUREBITS)
    ),
    "bounding_set": Attribute(lambda: prctl(CAPBSET_DROP, 22), nothing, status_line("CapBnd")),
    "thp_disable": Attribute(lambda: prctl(SET_THP_DISABLE, 1), nothing, lambda: prctl(GET_THP_DISABLE)),
    "mce_kill": Attribute(lambda: prctl(MCE_KILL, 1, 1), lambda: prctl(MCE_KILL, 1, 0), lambda: prctl(MCE_KILL_GET)),
    "seccomp": Attribute(lambda: refuse_host_names(99), lambda: refuse_host_names(98), host_name_error),
    "mempolicy": Attribute(
        lambda: call(SET_MEMPOLICY, 2, struct.pack("<Q", 1), 64),
        lambda: call(SET_MEMPOLICY, 3, struct.pack("<Q", 1), 64),
        mempolicy,
    ),
    "session_keyring": Attribute(lambda: call(KEYCTL, KEYCTL_JOIN, b"crckpt-test"), nothing, session_keyring),
    "own_keyring": Attribute(lambda: call(KEYCTL, KEYCTL_JOIN, 0), nothing, session_keyring),
    "mlock_future": Attribute(lambda: LIBC.mlockall(MCL_CURRENT | MCL_FUTURE), nothing, locked_when_mapped),
    "mlock_on_fault": Attribute(
        lambda: LIBC.mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT), nothing, locked_when_mapped
    ),
    "memory_merge": Attribute(lambda: prctl(SET_MERGE, 1), nothing, lambda: prctl(GET_MERGE)),
    "mdwe": Attribute(lambda: prctl(SET_MDWE, 1), nothing, lambda: (prctl(GET_MDWE), may_execute_what_was_written())),
    "mdwe_no_inherit": Attribute(
        lambda: prctl(SET_MDWE, 3), nothing, lambda: (prctl(GET_MDWE), may_execute_what_was_written())
    ),
    "rlimits": Attribute(
        lambda: resource.setrlimit(resource.RLIMIT_CORE, (4096, 8192)),
        nothing,
        lambda: [resource.getrlimit(number) for number in range(16)],
    ),
    "umask": Attribute(lambda: os.umask(0o137), nothing, status_line("Umask")),
    "groups": Attribute(lambda: os.setgroups([12, 34]), nothing, os.getgroups),
    "dispatch": Attribute(dispatch, nothing, nothing),
    "landlock": Attribute(restrict, nothing, may_make_device),
}


def answered(question: int) -> int:
    """Return what prctl(2) writes to its argument."""
    answer = ctypes.c_int()
    call(PRCTL, question, ctypes.byref(answer), 0, 0, 0)
    return answer.value


class SecondThread:
    """The second thread: it sets its attributes, and reads them on request."""

    def __init__(self, names: list[str]) -> None:
        """Start the thread."""
        self._names = names
        self._asked, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._found: dict[str, object] = {}
        threading.Thread(target=self._live, daemon=True).start()

    def _live(self) -> None:
        for name in self._names:
            ATTRIBUTES[name].set_thread()
        while True:
            self._found = read(self._names)
            self._done.release()
            self._asked.acquire()

    def read(self) -> dict[str, object]:
        """The values that the thread reads now."""
        self._done.acquire()
        found = self._found
        self._asked.release()
        return found


def read(names: list[str]) -> dict[str, object]:
    """What this thread says of each."""
    return {name: ATTRIBUTES[name].read() for name in names}


def main() -> None:
    """Set, and report."""
    program = Program(Path(sys.argv[1]))
    names = sys.argv[2:]
    second = SecondThread(names)
    for name in names:
        ATTRIBUTES[name].set_process()

    def step() -> None:
        # Where it gets other PIDs, a dump must not come when it has a file of /proc open.
        if not (program.workdir / "quiet").exists():
            program.facts["process"] = read(names)
            program.facts["thread"] = second.read()

    program.run(step)


if __name__ == "__main__":
    main()
