"""Never a wrong page: what a chain of incremental dumps holds is compared with what the frozen tree had, byte by byte.

The tree writes, maps, moves, drops, protects and forks at random all the while. CRCKPT_ORACLE_SEEDS says how many
trees there are to be.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import Crckpt
from trees import wait_for

from crckpt.criu.find import find
from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.images.pagemap import IN_PARENT, PRESENT, read_pagemap
from crckpt.model import CheckpointId
from crckpt.store import Repository, materialise
from crckpt.tracking.tracker import Tracker, choose

PROGRAM = Path(__file__).parent.parent / "programs/churn.c"
PAGE = 4096
_NOTHING = bytes(PAGE)
SEEDS = int(os.environ.get("CRCKPT_ORACLE_SEEDS", "4"))
ROUNDS = 5
BETWEEN = (10000, 50000, 200)
"""Microseconds between two steps of a thread: from a round in which most pages are clean to one in which few are."""

# Run by CRIU at post-dump, the tree frozen: each process's private anonymous maps, and what every page there holds.
_SEE = """
import array, os, pickle, sys
if os.environ["CRTOOLS_SCRIPT_ACTION"] != "post-dump":
    sys.exit()
sys.path[:0] = {places!r}
from crckpt.host import pagemap, proc
for process in proc.read_tree(proc.read_process(int(os.environ["CRTOOLS_INIT_PID"]))).processes:
    if process.state in ("zombie", "dead"):
        continue
    maps = [(one.start, one.end) for one in pagemap.private_anonymous(process.pid)]
    pages = {{}}
    with open(f"/proc/{{process.pid}}/mem", "rb", buffering=0) as memory, \\
         open(f"/proc/{{process.pid}}/pagemap", "rb", buffering=0) as entries:
        for start, end in maps:
            entries.seek(start // 4096 * 8)
            for number, entry in enumerate(array.array("Q", entries.read((end - start) // 4096 * 8))):
                if entry >> 62:
                    memory.seek(start + number * 4096)
                    pages[start + number * 4096] = memory.read(4096)
    with open(f"{seen}/{{process.pid}}", "wb") as file:
        pickle.dump((maps, pages), file)
"""


def pages_of(images: Path, pid: int) -> dict[int, bytes]:
    """Every page that these images hold of a process, those of their parents included."""
    path = images / f"pagemap-{pid}.img"
    if not path.exists():
        return {}
    pagemap = read_pagemap(path.read_bytes())
    before = pages_of(images / "parent", pid) if any(entry.flags & IN_PARENT for entry in pagemap.entries) else {}
    found: dict[int, bytes] = {}
    with (images / pagemap.pages_name).open("rb") as file:
        for entry in pagemap.entries:
            for address in range(entry.vaddr, entry.vaddr + entry.pages * PAGE, PAGE):
                found[address] = file.read(PAGE) if entry.flags & PRESENT else before[address]
    return found


def wrong_pages(images: Path, seen: Path) -> list[str]:
    """Pages that the frozen tree had otherwise."""
    wrong = []
    for path in seen.iterdir():
        pid = int(path.name)
        maps, had = pickle.loads(path.read_bytes())  # noqa: S301 (our own script wrote it)
        held = pages_of(images, pid)
        ours = {address for address in held if any(start <= address < end for start, end in maps)}
        assert had, "there was something to compare"
        for address in ours | had.keys():
            if held.get(address, _NOTHING) != had.get(address, _NOTHING):
                wrong.append(f"{pid}: {address:#x}")
    assert any(seen.iterdir()), "the frozen tree was looked at"
    return wrong


@contextmanager
def churning(program: Path, work: Path, seed: int, between: int) -> Iterator[int]:
    """The PID of a tree that is at work."""
    work.mkdir()
    null = subprocess.DEVNULL
    argv = [str(program), str(work), str(seed), "3", str(between)]
    # With rseq(2) the kernel itself writes a thread's memory when it lets it go on: also for CRIU, after the dump.
    environment = {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}
    process = subprocess.Popen(
        argv, env=environment, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True
    )
    try:
        wait_for((work / "ready").exists, 20, "the tree to begin")
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    built = tmp_path_factory.mktemp("churn") / "churn"
    subprocess.run(["gcc", "-O1", "-pthread", "-o", str(built), str(PROGRAM)], check=True)
    return built


@pytest.fixture(scope="module")
def criu() -> Path:
    try:
        return find(None, None).path
    except HostCannot as error:
        pytest.skip(error.message)


def chosen(pid: int, criu: Path, work: Path) -> Tracker:
    root = proc.read_process(pid)
    assert root is not None
    choice = choose(root, criu, work / "tracked")
    if choice.tracker is None:
        pytest.skip(choice.why)
    return choice.tracker


def dumped(tracker: Tracker, criu: Path, pid: int, images: Path, parent: Path | None) -> str:
    """The base of a round in which CRIU dumps. AssertionError if it cannot, or if the dump holds wrong pages."""
    seen = images.with_name(f"{images.name}-seen")
    images.mkdir()
    script = seeing(images.with_name(f"{images.name}-script"), seen)
    began = tracker.begin()
    words = ["dump", "--leave-running", "--tree", str(pid), "--images-dir", str(images), "--action-script", str(script)]
    words += ["--log-file", "log", "-v3", "--manage-cgroups=ignore", "--track-mem"]
    words += ["--prev-images-dir", f"../{parent.name}"] if began.base and parent else []
    environment = {"PATH": os.environ["PATH"], **tracker.environment(criu)}
    done = subprocess.run([str(criu), *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{(images / 'log').read_text()[-3000:]}"
    tracker.committed(images.name)
    wrong = wrong_pages(images, seen)
    shutil.rmtree(seen)
    assert not wrong, f"{images.name}: {len(wrong)} wrong pages, the first of {wrong[0]}"
    return began.base


def seeing(script: Path, seen: Path) -> Path:
    """An action script for CRIU that leaves in `seen` what the frozen tree has."""
    seen.mkdir()
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    text = _SEE.format(places=[str(Path(__file__).parents[2]), packages], seen=seen)
    script.write_text(f"#!{sys.executable}\n{text}")
    script.chmod(0o755)
    return script


def pages_in_parent(images: Path) -> int:
    """How many pages these images leave to their parent."""
    maps = (read_pagemap(path.read_bytes()) for path in images.glob("pagemap-[0-9]*.img"))
    return sum(entry.pages for found in maps for entry in found.entries if entry.flags & IN_PARENT)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_never_a_wrong_page(program: Path, criu: Path, tmp_path: Path, seed: int) -> None:
    with churning(program, tmp_path / "work", seed, BETWEEN[seed % len(BETWEEN)]) as pid:
        tracker = chosen(pid, criu, tmp_path)
        parent = None
        for number in range(ROUNDS):
            images = tmp_path / f"round-{number}"
            assert dumped(tracker, criu, pid, images, parent) == (parent.name if parent else "")
            assert bool(pages_in_parent(images)) == bool(parent), "there was something to get wrong"
            parent = images
        tracker.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_never_a_wrong_page_in_the_store(crckpt: Crckpt, program: Path, criu: Path, tmp_path: Path, seed: int) -> None:
    """By `crckpt dump`: a keeper tracks the tree, the parent is a checkpoint, and each is looked at alone."""
    seen, wrapper = tmp_path / "seen", tmp_path / "criu"
    script = seeing(tmp_path / "script", seen)
    # Before the hold of crckpt's own: in the order in which they are given.
    wrapper.write_text(f'#!/bin/sh\n[ "$1" != dump ] || set -- "$@" --action-script {script}\nexec {criu} "$@"\n')
    wrapper.chmod(0o755)
    crckpt.run("doctor", "--criu", str(wrapper))
    for path in seen.iterdir():
        path.unlink()
    kept: list[tuple[str, Path]] = []
    with churning(program, tmp_path / "work", 1000 + seed, BETWEEN[seed % len(BETWEEN)]) as pid:
        for number in range(ROUNDS):
            words = ("--incremental", "--json", "--criu", str(wrapper))
            result = crckpt.run("dump", str(pid), "job", *words).document["result"]
            if result["tracked"]["tracker"] == "":
                pytest.skip(result["tracked"]["why"])
            assert result["tracked"]["base"] == (kept[-1][0] if kept else None), result["tracked"]
            assert bool(result["checkpoint"]["statistics"]["inherited_pages"]) == bool(kept)
            kept.append((result["checkpoint"]["id"], tmp_path / f"seen-{number}"))
            shutil.copytree(seen, kept[-1][1])
            for path in seen.iterdir():
                path.unlink()
    for checkpoint, had in kept:
        repository = Repository.open(crckpt.store)
        images = tmp_path / checkpoint
        images.mkdir()
        materialise(repository, repository.get(CheckpointId(checkpoint)), images)
        wrong = wrong_pages(images, had)
        assert not wrong, f"{checkpoint}: {len(wrong)} wrong pages, the first of {wrong[0]}"
        crckpt.run("rm", checkpoint)
        crckpt.run("gc")
        shutil.rmtree(images)


def test_the_oracle_sees_a_reset_that_was_not_committed(program: Path, criu: Path, tmp_path: Path) -> None:
    """With the guard taken out: a dump resets the bits, is thrown away, and the next counts from the one before."""
    with churning(program, tmp_path / "work", 99, 20000) as pid:
        tracker = chosen(pid, criu, tmp_path)
        first, lost, third = (tmp_path / name for name in ("first", "lost", "third"))
        assert dumped(tracker, criu, pid, first, None) == ""
        assert dumped(tracker, criu, pid, lost, first) == "first"
        # A page that was new then is in neither: CRIU misses it in the parent. One that was not is an old one.
        with pytest.raises(AssertionError, match=r"not found in parent|wrong pages"):
            dumped(tracker, criu, pid, third, first)
        tracker.close()
