"""How quickly CRIU dumps here: it dumps a small tree of ours, each of whose processes has more of one thing.

How long it takes for each of them stands in its log.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.criu.command import Paths, dump_command
from crckpt.criu.engine import follow
from crckpt.criu.explain import explain
from crckpt.errors import HostCannot
from crckpt.host import run
from crckpt.images.stats import read_dump_stats
from crckpt.model import Options

KINDS: Final = ("plain", "memory", "maps", "descriptors", "threads")

PROCESSES: Final = 6
"""Those, and the root of the tree."""

THREADS: Final = 16
"""Beside the main ones."""

_PROGRAM: Final = """
import mmap, os, signal, threading
signal.alarm(60)  # should crckpt be killed meanwhile, it ends by itself, and its children with it

def more(memory=0, maps=0, descriptors=0, threads=0):
    kept = [mmap.mmap(-1, 4096, mmap.MAP_PRIVATE, (mmap.PROT_WRITE, mmap.PROT_WRITE | mmap.PROT_EXEC)[n % 2])
            for n in range(maps)]
    for one in kept:
        one[0] = 1
    for n in range(descriptors):
        os.open("/dev/null", os.O_RDONLY)
    for n in range(threads):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    return kept, b"1" * memory

shapes = ({}, {"memory": 24 << 20}, {"maps": 200}, {"descriptors": 200}, {"threads": 16})
reading, writing = os.pipe()
told, telling = os.pipe()
pids = []
for shape in shapes:
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        kept = more(**shape)
        os.write(telling, b"1")
        os.close(telling)
        os.read(reading, 1)
        os._exit(0)
    pids.append(pid)
for shape in shapes:
    os.read(told, 1)
signal.signal(signal.SIGTERM, lambda *_: os.close(writing))
with open("ready.new", "w") as file:
    file.write(" ".join(map(str, pids)))
os.rename("ready.new", "ready")
for pid in pids:
    os.waitpid(pid, 0)
"""

_TASK: Final = re.compile(r"^\((\d+\.\d+)\) Dumping (?:task|pstree|file-locks)(?: \(pid: (\d+))?", re.MULTILINE)
_LOOK_S: Final = 0.003


class Dumped(Struct, frozen=True):
    """One dump of the trial's tree: where its images are, and milliseconds, of `tasks` by PID."""

    images: Path
    dump_ms: float
    frozen_ms: float
    tasks: dict[int, float]


class Subject(Struct, frozen=True):
    """The trial's tree: `pids` of its processes by kind, beside the root, which makes one more."""

    criu: Path
    work: Path
    root: int
    pids: dict[str, int]

    def dump(self, name: str, meanwhile: Callable[[], None]) -> Dumped:
        """Dump it into a directory of that name. Raises HostCannot if CRIU fails or its log tells no times."""
        work = self.work / name
        images = work / "images"
        images.mkdir(parents=True, mode=0o700)
        argv = dump_command(self.criu, self.root, Paths(images, work), Options(), leave_running=True)
        outcome = follow(argv, work / "dump.log", meanwhile=meanwhile)
        if not outcome.ok:
            told = explain(outcome.log)
            raise HostCannot(f"a trial dump fails: {told.finding.what if told.finding else outcome.status}")
        frozen_ms = read_dump_stats((work / "stats-dump").read_bytes()).frozen_time / 1000
        return Dumped(images, (outcome.ended - outcome.started) * 1000, frozen_ms, task_times(outcome.log))


def task_times(log: str) -> dict[int, float]:
    """Milliseconds that a dump took for each process, by PID, from CRIU's log."""
    found = [(float(seconds) * 1000, pid) for seconds, pid in _TASK.findall(log)]
    pairs = pairwise(found)
    return {int(pid): after - began for (began, pid), (after, _) in pairs if pid}


@contextmanager
def subject(criu: Path, work: Path) -> Iterator[Subject]:
    """A tree to dump with this CRIU into the private directory `work`; ended after the block. Raises HostCannot."""
    program = [sys.executable, "-S", "-E", "-c", f"import os; os.chdir({str(work)!r})\n{_PROGRAM}"]
    child = run.start(program, output=work / "program.out")
    try:
        ready = work / "ready"
        while not ready.exists():
            if child.ends_within(_LOOK_S):
                said = (work / "program.out").read_text(errors="replace").strip()
                raise HostCannot(f"the trial's program does not start: {said}")
        pids = (int(word) for word in ready.read_text().split())
        yield Subject(criu, work, child.pid, dict(zip(KINDS, pids, strict=True)))
    finally:
        os.kill(child.pid, signal.SIGTERM)
        child.wait()
