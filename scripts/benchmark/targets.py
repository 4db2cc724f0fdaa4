"""The processes that are checkpointed: a Python heap, a redis, a JVM, filled to a size and written to on request.

Python and JVM share a file of 64-bit numbers with us, their board: 0 is 1 when they are ready; 1 is the number of
requested changes, 2 that of changes made; 3 counts ticks of a millisecond; 4 counts gaps, and from 8 on are start and
end of the last 200 gaps (CLOCK_MONOTONIC, ns).
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

import numpy as np

from benchmark.setting import MEBIBYTE, Setting

_HERE: Final = Path(__file__).parent
_PAGE: Final = 4096
_MEMORY: Final = "/dev/shm"  # on a disk, a write to a mapped file would wait whenever a store is synced
_GAPS: Final = 200
_READY_S: Final = 300.0
_LOOK_S: Final = 0.002
_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h


@dataclass(frozen=True)
class Gap:
    """A time in which a target did not run, in seconds of CLOCK_MONOTONIC."""

    began: float
    ended: float

    @property
    def length(self) -> float:
        """Its length in seconds."""
        return self.ended - self.began


class Board:
    """A program that shares its board with us: heap.py or Heap.java."""

    def __init__(self, program: tuple[str, ...], changes_per_page: float) -> None:
        """`changes_per_page`: how many changes write one page, on average."""
        self.changes_per_page = changes_per_page
        self._program = program
        self._board = NamedTemporaryFile(prefix="crckpt-board-", dir=_MEMORY)  # noqa: SIM115 (it is open as long as the object)
        self._numbers = np.zeros(0, np.uint64)

    def argv(self, _directory: Path, mebibytes: int) -> list[str]:
        """Return the command that starts it."""
        path = self._board.name
        os.truncate(path, _PAGE)
        self._numbers = np.memmap(path, np.uint64, "r+")
        return [*(word.format(heap=mebibytes + 200) for word in self._program), path, str(mebibytes)]

    def fill(self, mebibytes: int) -> None:
        """Wait until it has this size."""
        wait_for(lambda: self._numbers[0] == 1, f"{self._program[0]} to fill {mebibytes} MiB")

    def write(self, changes: int) -> None:
        """Let it make this many changes."""
        self._numbers[1] += np.uint64(changes)
        wait_for(lambda: self._numbers[2] == self._numbers[1], "changes to be made")

    def beats(self) -> int:
        """Return a number that grows as long as it runs."""
        return int(self._numbers[3])

    def ask(self, *, pages: int, works: bool = False) -> None:
        """Let a `writer` write this many pages per second from now on, and work if it `works`."""
        self._numbers[5:7] = pages, works

    @property
    def written(self) -> int:
        """Return how many pages a `writer` has written."""
        return int(self._numbers[7])

    def gap(self, began: float, ended: float) -> Gap:
        """Return the longest gap between these times."""
        gaps = (self._numbers[8 : 8 + 2 * _GAPS] / 1e9).reshape(-1, 2)
        inside = gaps[(gaps[:, 1] > began) & (gaps[:, 0] < ended)]
        longest = inside[np.argmax(inside[:, 1] - inside[:, 0])]
        return Gap(float(longest[0]), float(longest[1]))


class Redis:
    """A redis full of small documents. No connection to it stays open."""

    changes_per_page = 0.35
    _KEY_BYTES: Final = 340
    _FILL: Final = """
    for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
        redis.call('SET', 'session:' .. i, '{"user": ' .. i * 7919 .. ', "token": "' .. redis.sha1hex(i) ..
            redis.sha1hex(-i) .. '", "page": "/shop/' .. i % 1009 .. '", "basket": [{"article": ' .. i * 31 % 50021 ..
            ', "count": 1}], "agent": "Mozilla/5.0 (X11; Linux x86_64; rv:109.0)"}')
    end"""

    def __init__(self) -> None:
        """Send no request yet."""
        self._socket = ""
        self._keys = 0
        self._random = random.Random(1)

    def argv(self, directory: Path, mebibytes: int) -> list[str]:
        """Return the command that starts it."""
        self._socket = str(directory / "redis.sock")
        off = ["--save", "", "--appendonly", "no", "--port", "0", "--activedefrag", "no"]
        return ["redis-server", *off, "--dir", str(directory), "--unixsocket", self._socket]

    def fill(self, mebibytes: int) -> None:
        """Wait until it has this size."""
        wait_for(self._answers, "redis to listen")
        while self._count_used_bytes() < mebibytes * MEBIBYTE:
            left = (mebibytes * MEBIBYTE - self._count_used_bytes()) // self._KEY_BYTES
            to = self._keys + max(1000, min(left, 50_000))
            self._ask("EVAL", self._FILL, "0", str(self._keys + 1), str(to))
            self._keys = to

    def write(self, changes: int) -> None:
        """Let it make this many changes."""
        for _ in range(changes):
            key = f"session:{self._random.randint(1, self._keys)}"
            token, page = self._random.getrandbits(320), self._random.randrange(1009)
            self._ask("SET", key, f'{{"user": 1, "token": "{token:080x}", "page": "/shop/{page}", "basket": []}}')

    def beats(self) -> int:
        """Return a number that grows as long as it runs."""
        self._ask("PING")
        return time.monotonic_ns()

    def _answers(self) -> bool:
        # Its socket exists a moment before it listens.
        with suppress(FileNotFoundError, ConnectionRefusedError):
            self._ask("PING")
            return True
        return False

    def _count_used_bytes(self) -> int:
        info = self._ask("INFO", "memory")
        return int(info.partition("used_memory:")[2].split()[0])

    def _ask(self, *words: str) -> str:
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(60)
            asked.connect(self._socket)
            encoded = [word.encode() for word in words]
            asked.sendall(
                b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)])
            )
            with asked.makefile("rb") as answer:
                first = answer.readline().decode()
                if first.startswith("-"):
                    raise OSError(f"redis: {first}")
                size = int(first[1:]) if first.startswith("$") else -1
                return answer.read(size).decode() if size > 0 else first


Load = Board | Redis
"""How to start a program, fill it, write to it, and check that it runs."""

KINDS: Final = ("python", "redis", "jvm")
STAMPING: Final = ("python", "jvm")
"""The targets that record their gaps."""


class Target:
    """A running process: our child at first, and again, since we adopt orphans, after a restore."""

    def __init__(self, load: Load, directory: Path, mebibytes: int) -> None:
        """Start it in its own session, without our descriptors."""
        self.load = load
        self._directory = directory
        self._mebibytes = mebibytes
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(
            load.argv(directory, mebibytes),
            stdin=null,
            stdout=null,
            stderr=null,
            cwd=directory,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self.pid = self._process.pid

    def write(self, share: float) -> None:
        """Let it write about this share of its pages."""
        pages = share * self._mebibytes * MEBIBYTE / _PAGE
        self.load.write(round(pages * self.load.changes_per_page))

    def gap(self, began: float, ended: float) -> Gap:
        """Return the longest gap that it recorded between these times."""
        self.wait_alive()
        assert isinstance(self.load, Board)
        return self.load.gap(began, ended)

    def wait_alive(self) -> None:
        """Wait until it runs again."""
        since = self.load.beats()
        wait_for(lambda: self.load.beats() > since + 2, f"PID {self.pid} to go on")

    def end(self) -> None:
        """Kill it and wait until its PID is free."""
        with suppress(FileNotFoundError, ProcessLookupError):
            # Check that it is ours: another process may have got its PID.
            if Path(f"/proc/{self.pid}/cwd").readlink() == self._directory:
                os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        # Popen must not wait for the next process with this PID.
        self._process.returncode = -signal.SIGKILL
        wait_for(lambda: not Path(f"/proc/{self.pid}").exists(), f"PID {self.pid} to be free")


@contextmanager
def started(setting: Setting, kind: str, mebibytes: int) -> Iterator[Target]:
    """Run a filled target of this kind and size for the block."""
    with running(setting, _load(kind), mebibytes) as target:
        yield target


@contextmanager
def running(setting: Setting, load: Load, mebibytes: int) -> Iterator[Target]:
    """Run a filled target with this load and size for the block."""
    with setting.fresh() as directory:
        target = Target(load, directory, mebibytes)
        try:
            target.load.fill(mebibytes)
            yield target
        finally:
            target.end()


def writer(children: int = 0) -> Board:
    """Return a program that writes pages at a steady rate, with this many child processes."""
    words = (str(children),) if children else ()
    return Board((sys.executable, str(_HERE / "writer.py"), *words), 1.0)


def available() -> tuple[str, ...]:
    """Return the kinds of targets that this machine can run."""
    return tuple(kind for kind in KINDS if kind != "jvm" or (shutil.which("java") and shutil.which("javac")))


def adopt_orphans() -> None:
    """Adopt restored trees, so that waiting for them frees their PIDs."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot adopt orphans")


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Poll every few milliseconds until it is true. Raises TimeoutError."""
    deadline = time.monotonic() + _READY_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_READY_S:.0f} s for {what}")
        time.sleep(_LOOK_S)


def _load(kind: str) -> Load:
    match kind:
        case "redis":
            return Redis()
        case "jvm":
            options = ("-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx{heap}m")
            return Board(("java", *options, str(_HERE / "Heap.java")), 1.0)
        case _:
            return Board((sys.executable, str(_HERE / "heap.py")), 0.35)
