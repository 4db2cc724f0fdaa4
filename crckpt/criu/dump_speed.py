"""Measure how fast CRIU dumps on this host, with a small tree in which one of two processes has more of everything."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.criu.command import Paths, dump_command
from crckpt.criu.engine import run_criu
from crckpt.errors import HostCannot
from crckpt.host.process import run
from crckpt.images.inventory import read_dump_stats
from crckpt.model import DumpOptions

_PROGRAM: Final = """
import _signal, _thread, mmap, posix  # of a larger program there would be more to dump
posix.chdir({work!r})
_signal.alarm(60)  # should crckpt be killed meanwhile, it ends by itself, and its child with it
reading, writing = posix.pipe()
told, telling = posix.pipe()
child = posix.fork()
if child == 0:
    posix.close(writing)
    kept = [b"1" * (8 << 20)]
    for number in range(100):
        access = mmap.PROT_WRITE | (number % 2 and mmap.PROT_EXEC)  # what is alike would be one map
        kept.append(mmap.mmap(-1, 4096, mmap.MAP_PRIVATE, access))
        kept[-1][0] = 1
        posix.open("/dev/null", posix.O_RDONLY)
    for number in range(8):
        kept.append(_thread.allocate_lock())
        kept[-1].acquire()
        _thread.start_new_thread(kept[-1].acquire, ())
    posix.write(telling, b"1")
    posix.read(reading, 1)
    posix._exit(0)
posix.read(told, 1)
# Wait without a handler: CRIU restarts the call that waits, and a signal just before that would not end it.
_signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGTERM])
with open("ready.new", "w") as file:
    file.write(str(child))
posix.rename("ready.new", "ready")
_signal.sigwait([_signal.SIGTERM])
posix.close(writing)
posix.waitpid(child, 0)
"""

_LOOK_S: Final = 0.003


class TrialDump(Struct, frozen=True):
    """One dump of the trial's tree: its images, and milliseconds: of the dump, of the freeze, and in it of memory."""

    images: Path
    dump_ms: float
    frozen_ms: float
    memory_ms: float


class TrialTree(Struct, frozen=True):
    """The trial's tree, by PID: its root and the child."""

    criu: Path
    work: Path
    root: int
    child: int

    def dump(self, name: str) -> TrialDump:
        """Dump it into a directory of that name. Raises HostCannot if CRIU fails."""
        work = self.work / name
        images = work / "images"
        work.mkdir(mode=0o700)
        images.mkdir(mode=0o700)
        argv = dump_command(self.criu, self.root, Paths(images, work), DumpOptions(), leave_running=True)
        outcome = run_criu(argv, work / "dump.log")
        if not outcome.ok:
            # Rarely needed and slow to import.
            from crckpt.criu.explain import explain

            finding = explain(outcome.log).finding
            raise HostCannot(f"a trial dump fails: {finding.what if finding else outcome.status}")
        stats = read_dump_stats((work / "stats-dump").read_bytes())
        dump_ms = (outcome.ended - outcome.started) * 1000
        # Writing pages alone: finding them takes as long for each process and map, however many pages there are.
        return TrialDump(images, dump_ms, stats.frozen_time / 1000, stats.memwrite_time / 1000)


@contextmanager
def running_trial_tree(criu: Path, work: Path) -> Iterator[TrialTree]:
    """A tree to dump with this CRIU into the private directory `work`; ended after the block. Raises HostCannot."""
    program = [sys.executable, "-I", "-S", "-c", _PROGRAM.format(work=str(work))]
    root = run.start(program, output=work / "program.out")
    try:
        ready = work / "ready"
        while not ready.exists():
            if root.ends_within(_LOOK_S):
                said = (work / "program.out").read_text(errors="replace").strip()
                raise HostCannot(f"the trial's program does not start: {said}")
        yield TrialTree(criu, work, root.pid, int(ready.read_text()))
    finally:
        root.terminate()
        root.wait()
