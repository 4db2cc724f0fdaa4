"""The base of the test programs: a loop that checks itself and reports its status.

A program holds memory that must not change, and a ledger of pages of which one is written at every tick: a lost page,
or one that is older than the rest, is noticed at the next tick.

Its status is in WORKDIR/status.json (WORKDIR/status-PART.json for a further process), a symbolic link whose text is
the JSON. A link is replaced atomically and needs no open descriptor, so that no checkpoint catches a half-written file.
When WORKDIR/verify appears, it makes the checks that can be made only once; when WORKDIR is gone, it ends.
"""

import hashlib
import json
import mmap
import os
import random
import struct
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

TICK_S: Final = 0.025
VERIFY_S: Final = 30.0
LIFETIME_TICKS: Final = 60_000
PAGE: Final = mmap.PAGESIZE
LEDGER_PAGES: Final = 128
BLOCK_BYTES: Final = 256 * 1024


class Program:
    """One process of a tree: its counter, its facts and the first check that failed, written out at every tick."""

    def __init__(self, workdir: Path, part: str = "", parts: tuple[str, ...] = (), memory: int = BLOCK_BYTES) -> None:
        """Prepare the status of `part` (empty: the root, which names the other parts); `memory` is in bytes."""
        self.workdir = workdir
        self.counter = 0
        self.error = ""
        self.ready = True
        self.verified = False
        self.waiting_for = ""
        self.facts: dict[str, object] = {}
        self._status = workdir / (f"status-{part}.json" if part else "status.json")
        self._parts = parts
        self._verify_calls = 0
        self._block = random.Random(part).randbytes(memory)
        self._digest = digest(self._block)
        self._ledger = mmap.mmap(-1, LEDGER_PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def expect(self, holds: bool, message: str) -> None:
        """Record `message` as the program's error, for good, unless `holds` or something failed before."""
        if not holds and not self.error:
            self.error = message

    def tick(self, step: Callable[[], None], verify: Callable[[], bool] = lambda: True) -> None:
        """Count, check memory, do one step, verify on request, and publish."""
        self.counter += 1
        try:
            self._check_memory()
            step()
            self._verify_when_asked(verify)
        except Exception:
            self.expect(False, traceback.format_exc(limit=-2)[-600:])
        self._publish()

    def run(self, step: Callable[[], None], verify: Callable[[], bool] = lambda: True) -> NoReturn:
        """Tick until WORKDIR is gone or the lifetime is over. `verify` is called until it returns True."""
        while self.counter < LIFETIME_TICKS:
            self.tick(step, verify)
            time.sleep(TICK_S)
        os._exit(1)

    def _check_memory(self) -> None:
        self.facts["memory"] = digest(self._block)
        self.expect(self.facts["memory"] == self._digest, "memory that never changes has changed")
        struct.pack_into("<Q", self._ledger, self.counter % LEDGER_PAGES * PAGE, self.counter)
        for page in range(LEDGER_PAGES):
            newest = max(0, self.counter - (self.counter - page) % LEDGER_PAGES)
            (found,) = struct.unpack_from("<Q", self._ledger, page * PAGE)
            if found != newest:
                self.expect(False, f"ledger page {page} holds {found}, not {newest}, at {self.counter}")

    def _verify_when_asked(self, verify: Callable[[], bool]) -> None:
        if self.verified or not (self.workdir / "verify").exists():
            return
        self._verify_calls += 1
        self.verified = verify()
        late = not self.verified and self._verify_calls * TICK_S > VERIFY_S
        self.expect(not late, f"a check was still waiting when its time was over: {self.waiting_for}")

    def _publish(self) -> None:
        status = {
            "pid": os.getpid(),
            "counter": self.counter,
            "ok": not self.error,
            "error": self.error,
            "ready": self.ready,
            "verified": self.verified,
            "parts": self._parts,
            "facts": self.facts,
        }
        # Escaped slashes: pathlib would tidy the text of the link as if it were a path.
        text = json.dumps(status).replace("/", "\\u002f")
        beside = self._status.with_suffix(".new")
        # A tree that goes back in time may find the name taken or gone: the next tick sets that right.
        with suppress(FileExistsError, FileNotFoundError):
            beside.unlink(missing_ok=True)
            beside.symlink_to(text)
            beside.rename(self._status)
        if not self.workdir.exists():
            os._exit(0)


def digest(content: bytes | bytearray | memoryview | mmap.mmap) -> str:
    """Return the first 16 digits of the SHA-256 of `content`."""
    return hashlib.sha256(content).hexdigest()[:16]


def pattern(name: str, length: int) -> bytes:
    """Return the same `length` bytes each time for the same `name`."""
    return random.Random(name).randbytes(length)


def fork(child: Callable[[], NoReturn]) -> int:
    """Start `child` in a new process and return its PID; an exception in it ends it with status 70."""
    pid = os.fork()
    if pid:
        return pid
    try:
        child()
    finally:
        os._exit(70)
