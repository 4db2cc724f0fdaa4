"""Processes to enter, in the states that they can be in."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import mmap
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from checkout import TESTS

from crckpt.errors import HostCannot
from crckpt.host.syscalls import memory_trials, pagemap

PROGRAMS = TESTS / "programs"
SOURCES: Final = PROGRAMS.parents[1] / "crckpt/tracking/preload"
RESTORE_SOURCES: Final = ("ghosts.c", "trusted.c", "sockets.c", "transport.c", "holders.c", "last_calls.c")
COMMON_SOURCES: Final = ("opens.c", "links.c", "names.c", "terminals.c", "thread_calls.c")
_OPTIONS: Final = ("-O2", "-fPIC", "-fvisibility=hidden", "-fno-stack-protector", "-ffreestanding", "-nostdlib")
_WITHIN_S = 60.0
LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PTRACE_DETACH, _PTRACE_SEIZE, _PTRACE_INTERRUPT, _WALL = 17, 0x4206, 0x4207, 0x40000000


def _no_write_protection() -> str:
    try:
        return "" if memory_trials.tracks_by_write_protection() else "a written page is not told"
    except HostCannot as error:
        return error.message


NO_WRITE_PROTECTION = _no_write_protection()
"""Why this kernel does not track by write protection, or nothing."""


def is_registered(pid: int, place: int) -> bool:
    """Return whether a userfaultfd write-protects the page there."""
    with Path(f"/proc/{pid}/pagemap").open("rb") as file:
        return pagemap.is_registered(file.fileno(), pagemap.AddressRange(place, place + mmap.PAGESIZE))


# Each page's categories: 8 for what is there, 128 for what counts as written.
_FIRST: Final = [8, 136, 136, 8, 8, 136, 8, 8]
ANSWERS_OF_ANOTHER_LIBRARY: Final = {
    "first": [5, _FIRST],
    "second": [5, _FIRST],
    "in parts": [_FIRST] * 3,
    "reset": 2,
    "left": [[1, 1], [3, 4]],
    "not registered": _FIRST,
    "read": [5 * 4096, [1, 1, ord("2"), 1, 0]],
    "still shared": [True, True, True],
    "read when it has ended": ["ESRCH", []],
}
"""What criu_queries.py is to be told of a process whose page 3 was written between the first scan and the reset."""


def compile_program(source: str, into: Path, *options: str) -> str:
    """The path of this program of tests/programs, compiled; the test is skipped where that cannot be done."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    executable = into / source.removesuffix(".c")
    subprocess.run([compiler, *options, "-o", str(executable), str(PROGRAMS / source)], check=True)
    return str(executable)


def preload_library(into: Path, old: str = "", new: str = "") -> Path:
    """Compile crckpt's preload library for dumps, with `new` in place of `old`, which is in its sources once."""
    names = {path.name for path in SOURCES.glob("*.c")} - {*RESTORE_SOURCES}
    return _library(into / "libpreload.so", _objects(frozenset(names)), old, new)


def restore_library(into: Path, old: str, new: str) -> Path:
    """Compile crckpt's preload library for restores, with `new` in place of `old`, which is in its sources once."""
    return _library(into / "librestore.so", _objects(frozenset({*RESTORE_SOURCES, *COMMON_SOURCES})), old, new)


def _library(library: Path, objects: tuple[tuple[str, str], ...], old: str, new: str) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    files, into = dict(objects), library.parent
    if old:
        (changed,) = (source for source in files if old in (SOURCES / source).read_text())
        text = (SOURCES / changed).read_text()
        assert text.count(old) == 1
        (into / changed).write_text(text.replace(old, new))
        files[changed] = str(into / changed)
    words = ["cc", *_OPTIONS, "-shared", f"-I{SOURCES}", *files.values(), "-o", str(library)]
    subprocess.run(words, check=True)
    return library


@cache
def _objects(names: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """The object file of each source, compiled once for all the libraries of a run."""
    into = Path(tempfile.mkdtemp(prefix="crckpt-objects-"))
    atexit.register(shutil.rmtree, into, ignore_errors=True)
    found = [str(SOURCES / name) for name in names]
    subprocess.run(["cc", *_OPTIONS, f"-I{SOURCES}", "-c", *found], check=True, cwd=into)
    return tuple((name, str(into / f"{Path(name).stem}.o")) for name in names)


@contextmanager
def merging() -> Iterator[None]:
    """The kernel merges pages that are alike of who has advised it (KSM), at once; one test at a time."""
    settings = {"run": "1", "pages_to_scan": "10000", "sleep_millisecs": "1"}
    places = {name: Path("/sys/kernel/mm/ksm", name) for name in settings}
    if not all(os.access(path, os.W_OK) for path in places.values()):
        pytest.skip("this kernel merges no pages, or we may not let it")
    with places["run"].open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = {name: path.read_text() for name, path in places.items()}
        try:
            for name, value in settings.items():
                places[name].write_text(value)
            yield
        finally:
            for name, value in before.items():
                places[name].write_text(value)


@contextmanager
def running(*argv: str, ready: str = "ready", **options: object) -> Iterator[subprocess.Popen[str]]:
    """A program in a session of its own that has said it is `ready`; ended afterwards."""
    process = subprocess.Popen(  # type: ignore[call-overload]
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, bufsize=1, **options
    )
    try:
        if ready:
            assert process.stdout.readline().startswith(ready)
        yield process
    finally:
        # Its children hold its stdout.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


class Freezer(NamedTuple):
    """The way in which a version of control groups freezes: what is written where, and what reports that it is done."""

    mounts: tuple[str, ...]
    switch: str
    freeze: str
    thaw: str
    state_file: str
    done: str


FREEZERS = {
    2: Freezer(("unified", "."), "cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"),
    1: Freezer(("freezer",), "freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"),
}


@contextmanager
def frozen(pid: int, version: int = 2) -> Iterator[Path]:
    """The process, in a control group below one that is frozen: its directory. Thawed and gone afterwards."""
    freezer = FREEZERS[version]
    mounts = (Path("/sys/fs/cgroup") / name for name in freezer.mounts)
    core = "cgroup.controllers" if version == 2 else "release_agent"
    mount = next((mount for mount in mounts if (mount / core).exists()), None)
    if mount is None or not os.access(mount, os.W_OK):
        pytest.skip(f"there is no control group (version {version}) to be had")
    group = mount / f"crckpt\\x2dfrozen-{pid}"  # named as systemd escapes what a unit is of
    (group / "inner").mkdir(parents=True)
    try:
        (group / "inner/cgroup.procs").write_text(str(pid))
        (group / freezer.switch).write_text(freezer.freeze)
        wait_for(lambda: freezer.done in (group / freezer.state_file).read_text(), "the group to be frozen")
        yield group
    finally:
        (group / freezer.switch).write_text(freezer.thaw)
        (mount / "cgroup.procs").write_text(str(pid))
        (group / "inner").rmdir()
        group.rmdir()


def state(pid: int) -> str:
    """The state of the process as one letter, as in proc_pid_stat(5)."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 2]


def tracer(pid: int) -> int:
    """The PID of the process's tracer, or 0."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("TracerPid"))
    return int(line.split()[1])


def list_descriptors(pid: int) -> list[str]:
    """The targets of the process's descriptors."""
    return [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def wait_for(holds: Callable[[], bool], what: str) -> None:
    """Look every 5 ms until `holds`; AssertionError naming `what` after 20 s."""
    deadline = time.monotonic() + _WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {_WITHIN_S} s for {what}"
        time.sleep(0.005)


class StatementRunner:
    """tests/programs/statements.py, running."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def do(self, statement: str) -> int:
        """Let the process run this code, and return `result` of it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        assert answer[:1] == ["done"], f"{statement}: {answer}"
        return int(answer[1])


@contextmanager
def statement_runner(interpreter: str = "/usr/bin/python3") -> Iterator[StatementRunner]:
    """A process that runs the statements that it gets."""
    with running(interpreter, "-S", str(PROGRAMS / "statements.py")) as process:
        yield StatementRunner(process)


def reset(pid: int) -> None:
    """As CRIU's reset through crckpt's preload: every page that holds something is protected again (linux/fs.h)."""
    regions = ctypes.create_string_buffer(24 * 4096)
    with Path(f"/proc/{pid}/pagemap").open("rb") as file:
        place, end = 0, 2**47 - 4096
        while place < end:
            # WP_MATCHING; WRITTEN and not PFNZERO, and PRESENT or SWAPPED; a vector, else holes are marked too
            vector = (ctypes.addressof(regions), 4096)
            request = bytearray(struct.pack("<12Q", 96, 1, place, end, 0, *vector, 0, 32, 32 | 2, 8 | 16, 1))
            fcntl.ioctl(file, 0xC0606610, request)
            (place,) = struct.unpack_from("<Q", request, 32)


@contextmanager
def halted(pid: int, how: str) -> Iterator[None]:
    """While the block runs every thread of the process stands still: by SIGSTOP, or as a debugger does it (ptrace)."""
    if how == "SIGSTOP":
        os.kill(pid, signal.SIGSTOP)
        yield
        os.kill(pid, signal.SIGCONT)
        return
    threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    for thread in threads:
        for request in (_PTRACE_SEIZE, _PTRACE_INTERRUPT):
            if LIBC.ptrace(request, thread, None, None):
                raise OSError(ctypes.get_errno(), f"ptrace of {thread}")
        os.waitpid(thread, _WALL)
    yield
    for thread in threads:
        LIBC.ptrace(_PTRACE_DETACH, thread, None, None)
