"""The parts of the oracle: a tree that churns, what it had while it was frozen, and what images hold of it."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from checkout import TESTS
from trees import wait_for

from crckpt.criu.command import Paths, pre_dump_command
from crckpt.criu.find import find
from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.images.pagemap import IN_PARENT, PRESENT, read_pagemap
from crckpt.tracking.choose_tracker import choose_tracker
from crckpt.tracking.dump_basis import DumpBasis, RoundBase
from crckpt.tracking.tracker import Tracker
from crckpt.tracking.uffd_wp import UffdWp

PROGRAMS = TESTS / "programs"
PAGE = 4096
CHANGES_BETWEEN_DUMPS = (20000, 100000, 2000)
"""Microseconds between two steps of a thread: from a round in which most pages are clean to one in which few are."""
MISSING_PAGE = "not found in parent"
"""How CRIU says that a page is clean which the dump before does not have."""
_NOTHING = bytes(PAGE)


def wrong_pages(images: Path, seen: Path) -> list[str]:
    """Find where the frozen tree had another page, and how many of its bytes were others, between which."""
    wrong = []
    for path in seen.iterdir():
        maps, had, beneath = pickle.loads(path.read_bytes())  # noqa: S301 (our own script wrote it)
        held = _pages_of(images, int(path.name))
        ours = {address for start, end in maps for address in range(start, end, PAGE)} & held.keys()
        assert had, "there was something to compare"
        assert held, f"the images hold pages of {path.name}"
        for address in ours | had.keys():
            other = beneath.get(address, _NOTHING)
            image, memory = held.get(address, other), had.get(address, other)
            if image != memory:
                places = [address + place for place in range(PAGE) if image[place] != memory[place]]
                wrong.append(f"{path.name}: {address:#x} ({len(places)} bytes, {places[0]:#x} to {places[-1]:#x})")
    assert any(seen.iterdir()), "the frozen tree was looked at"
    return wrong


def _pages_of(images: Path, pid: int) -> dict[int, bytes]:
    """Every page that these images hold of a process, those of their parents included."""
    path = images / f"pagemap-{pid}.img"
    if not path.exists():
        return {}
    pagemap = read_pagemap(path.read_bytes())
    before = _pages_of(images / "parent", pid) if any(entry.flags & IN_PARENT for entry in pagemap.entries) else {}
    found: dict[int, bytes] = {}
    with (images / pagemap.pages_name).open("rb") as file:
        for entry in pagemap.entries:
            for address in range(entry.vaddr, entry.vaddr + entry.pages * PAGE, PAGE):
                found[address] = file.read(PAGE) if entry.flags & PRESENT else before[address]
    return found


def pages_in_parent(images: Path) -> int:
    """Count the pages that these images leave to their parent."""
    maps = (read_pagemap(path.read_bytes()) for path in images.glob("pagemap-[0-9]*.img"))
    return sum(entry.pages for found in maps for entry in found.entries if entry.flags & IN_PARENT)


def seeing(script: Path, seen: Path) -> Path:
    """An action script for CRIU that leaves in `seen` what the frozen tree has."""
    seen.mkdir()
    python = f"exec {sys.executable} -I -S {PROGRAMS / 'save_memory.py'} {seen}"
    script.write_text(f'#!/bin/sh\n[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ] || {python}\n')
    script.chmod(0o755)
    return script


def compile_program(directory: Path, name: str = "churn") -> Path:
    """A program of tests/programs; skips if there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    built = directory / name
    subprocess.run(["gcc", "-O1", "-pthread", "-o", str(built), str(PROGRAMS / f"{name}.c")], check=True)
    return built


def find_criu() -> Path:
    """CRIU; skips if there is none."""
    try:
        return find(None, None).path
    except HostCannot as error:
        pytest.skip(error.message)


NO_RSEQ: Final = {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}
"""There the kernel writes which CPU a thread is on, after CRIU has read it, too: it lets threads run in the freeze."""


@contextmanager
def churning(program: Path, work: Path, seed: int, between: int) -> Iterator[int]:
    """The PID of a tree that is at work."""
    work.mkdir()
    null = subprocess.DEVNULL
    argv = [str(program), str(work), str(seed), "2", str(between)]
    process = subprocess.Popen(argv, env=NO_RSEQ, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True)
    try:
        wait_for((work / "ready").exists, 60, "the tree to begin")
        yield process.pid
    finally:
        status = process.poll()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert status is None, f"the tree has ended: {status}"


def choose(pid: int, criu: Path, claims: Path) -> Tracker:
    """The tracker that works here; skips if none does."""
    root = proc.read_process(pid)
    assert root is not None
    tracker, why = choose_tracker(root, criu, claims)
    if tracker is None:
        pytest.skip(why)
    assert tracker.name == os.environ.get("CRCKPT_EXPECTED_TRACKER", tracker.name), why
    return tracker


def is_passing(log: str, root: int) -> bool:
    """Return whether CRIU refused what it would not a moment later: a process that ends, or whose program was replaced.

    The latter so late that its page map was not left out of the base: then it is its vdso that CRIU missed there.
    """
    if "Zombies with threads are not supported" in log:
        return True
    missing = re.findall(r"Missing ([0-9a-f]+) in parent", log)
    process = proc.read_process(root)
    assert process is not None
    children = (pid for pid in proc.read_tree(process).pids if pid != root)
    return bool(missing) and any(_has_vdso_at(pid, missing[-1]) for pid in children)


def _has_vdso_at(pid: int, address: str) -> bool:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False
    return re.search(rf"^{address}-.*\[vdso\]$", maps, re.MULTILINE) is not None


EVERY_PAGE_IS_NEW = "the tree has written all its pages since the base: none of them could be wrong"


class Oracle:
    """Dumps of one tree by CRIU itself, each compared with what the tree had."""

    def __init__(self, criu: Path, pid: int, work: Path) -> None:
        """Images go to `work`, where also is what the tree says of itself."""
        self.pid = pid
        self._criu = criu
        self._work = work
        self._parent: Path | None = None
        self._number = 0
        self.began_anew = 0
        """How often CRIU refused for what `is_passing`, so that the next dump was full."""
        self.tracker = choose(pid, criu, work / "tracked")

    def dump_round(self, *, tracker: Tracker | None = None) -> str:
        """The base of a round. AssertionError if CRIU cannot dump, or if the dump holds wrong pages.

        Of another `tracker` nobody counts from what is dumped.
        """
        images = self._next()
        seen = images.with_name(f"{images.name}-seen")
        script = seeing(images.with_name(f"{images.name}-script"), seen)
        asked = tracker or self.tracker
        began = asked.begin()
        tracks = ["--track-mem"] if began.tracks else []
        parent = ["--prev-images-dir", f"../{self._base(began).name}"] if began.base else []
        words = ["dump", "--leave-running", "--tree", str(self.pid), "--action-script", str(script), *tracks, *parent]
        words += ["--images-dir", str(images), "--log-file", "log", "-v3", "--manage-cgroups=ignore"]
        environment = {"PATH": os.environ["PATH"], **asked.environment(self._criu)}
        result = subprocess.run([str(self._criu), *words], env=environment, capture_output=True, text=True, check=False)
        log = (images / "log").read_text(errors="replace")
        if result.returncode and is_passing(log, self.pid):
            self.began_anew += 1
            return self.dump_round(tracker=tracker)
        assert result.returncode == 0, f"{result.stderr}\n{log[-3000:]}"
        asked.check_freeze()
        asked.commit(RoundBase(images))
        wrong = wrong_pages(images, seen)
        shutil.rmtree(seen)
        assert not wrong, f"{images.name}: {len(wrong)} wrong pages, the first of {wrong[0]}"
        assert bool(pages_in_parent(images)) == bool(began.base), EVERY_PAGE_IS_NEW
        return began.base.directory.name if isinstance(began.base, RoundBase) else ""

    def copy_round(self) -> None:
        """A round while the tree runs, for the next one to count from: what it holds shows in that."""
        images = self._next()
        began = self.tracker.begin()
        parent = f"../{self._base(began).name}" if began.base else None
        reads = self.tracker.name == UffdWp.name
        words = pre_dump_command(self._criu, self.pid, Paths(images, images), parent, reads=reads)
        environment = {"PATH": os.environ["PATH"], **self.tracker.environment(self._criu)}
        result = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        log = (images / "pre-dump.log").read_text(errors="replace")
        if result.returncode and is_passing(log, self.pid):
            self.began_anew += 1
            return
        assert result.returncode == 0, f"{result.stderr}\n{log[-3000:]}"
        self.tracker.check_freeze()
        self.tracker.commit(RoundBase(images))

    def _next(self) -> Path:
        self._number += 1
        images = self._work / f"round-{self._number}"
        images.mkdir()
        return images

    def _base(self, began: DumpBasis) -> Path:
        """Make the parent images as crckpt does: without the page maps of processes that are not in them."""
        base = self._work / f"base-{self._number}"
        base.mkdir()
        left_out = {f"pagemap-{process.pid}.img" for process in began.whole}
        assert isinstance(began.base, RoundBase)
        for path in began.base.directory.iterdir():
            if path.name not in left_out:
                (base / path.name).symlink_to(path)
        return base
