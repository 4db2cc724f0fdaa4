"""Dumps, restores, removals and collections at the same time, in processes of their own, one of which is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from checkout import SUPPORT
from image_sets import open_store, restore_files
from stages import superfluous

from crckpt.model import JobName
from crckpt.store import collect_garbage, verify
from crckpt.store.backend.flock import holders

PRELUDE = """
import random, select, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from image_sets import ImageSet, area, described, files_of, write_set
from crckpt.errors import NoSuchCheckpoint, StoreLocked
from crckpt.store import Repository, collect_garbage, details_of, ingest, materialise
repository = Repository.open(Path(sys.argv[1]))

def pause():
    # Nobody does this without a break, and who wants the store alone gets it only then.
    select.select([], [], [], random.uniform(0.02, 0.1))

def images(job, number):
    start = 1000 * (job == "two")
    return ImageSet({"pagemap-1.img": [area(0, *range(start + 1, start + 200), *range(number * 9, number * 9 + 30))]})
"""

DUMPING_PROGRAM = """
job = sys.argv[3]
for number in range(1, 16):
    with tempfile.TemporaryDirectory() as name:
        directory = write_set(Path(name, "set"), images(job, number))
        print(ingest(repository, directory, described(job, str(number).encode())).id, flush=True)
    pause()
"""

RESTORING_PROGRAM = """
while True:
    for job in ("one", "two", "three"):
        with tempfile.TemporaryDirectory() as name, repository.shared():
            try:
                found = repository.get(repository.resolve(job))
            except NoSuchCheckpoint:
                continue
            written, given = Path(name, "set"), Path(name, "given")
            given.mkdir()
            materialise(repository, found, given)
            write_set(written, images(job, int(details_of(repository, found))))
            assert files_of(written) == files_of(given), found.id
            print("restored", flush=True)
        pause()
"""

COLLECTING_PROGRAM = """
while True:
    try:
        with repository.exclusive(timeout=random.choice([0.05, 2])):
            for job in ("one", "two", "three"):
                repository.remove([old.id for old in repository.checkpoints(job)[:-2]])
            collect_garbage(repository)
        print("collected", flush=True)
    except StoreLocked as error:
        print(error, flush=True)
    pause()
"""


def _start(root: Path, program: str, *words: str, kill_at: str | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + program, str(root), str(SUPPORT), *words]
    environment = {**os.environ, **({"CRCKPT_KILL_AT": kill_at} if kill_at else {})}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def _ended(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    output, _ = process.communicate()
    return process.returncode, output.splitlines()


def _stopped(process: subprocess.Popen[str]) -> list[str]:
    """Kill a process that must still run, and return its output."""
    assert process.poll() is None
    process.kill()
    return _ended(process)[1]


def _read_until(process: subprocess.Popen[str], last: str) -> Iterator[str]:
    """Give the output before the line `last`."""
    assert process.stdout is not None
    for line in process.stdout:
        if line == f"{last}\n":
            return
        yield line.rstrip("\n")
    raise AssertionError(f"it ended, and has not {last}")


def test_concurrent_commands_keep_the_store_valid(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    dumping = {job: _start(repository.root, DUMPING_PROGRAM, job) for job in ("one", "two")}
    killed = _start(repository.root, DUMPING_PROGRAM, "three", kill_at="manifest-directory.rename:5")
    reading, collecting = _start(repository.root, RESTORING_PROGRAM), _start(repository.root, COLLECTING_PROGRAM)
    assert _ended(killed)[0] == -signal.SIGKILL
    made = {}
    for job, process in dumping.items():
        status, made[job] = _ended(process)
        assert (status, len(made[job])) == (0, 15)
    # On a busy machine, the other processes may not have done their work yet.
    refusals = [*_read_until(collecting, "collected")]
    assert [*_read_until(reading, "restored")] == []
    _stopped(reading)
    refusals += [line for line in _stopped(collecting) if line != "collected"]
    assert all(re.search(r"is locked by PID \d+ \(.*since|is locked$", line) for line in refusals), refusals
    assert holders(repository.root) == ()
    for job, ids in made.items():
        kept = repository.checkpoints(JobName(job))
        assert [checkpoint.id for checkpoint in kept] == ids[-len(kept) :]
        assert len(kept) >= 2
        assert restore_files(repository, kept[-1], tmp_path)
    assert verify(repository).damages == ()
    collect_garbage(repository)
    assert superfluous(repository) == set()
