"""Fills a small disk to every level, and does things to the store on it. Run by test_full_disk.

Usage, in a mount namespace of its own: full_disk.py DIRECTORY bytes|files. Says how often each act was refused.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from image_sets import described
from stages import ACTS, Act, build, check

from crckpt.store import Repository, ingest

BLOCK = 4096
TAG = Act("tag", "tag")
RM = Act("rm", "rm", removes=1)


@contextmanager
def _full_of_bytes(disk: Path, left: int) -> Iterator[None]:
    """A file system with only so many free blocks."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(BLOCK))
    os.truncate(ballast, (ballast.stat().st_size // BLOCK - left) * BLOCK)
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def _full_of_files(disk: Path, left: int) -> Iterator[None]:
    """A file system in which only so many files can be made."""
    ballast = disk / "ballast"
    ballast.mkdir()
    with suppress(OSError):
        for number in itertools.count():
            (ballast / str(number)).touch()
    for path in sorted(ballast.iterdir())[:left]:
        path.unlink()
    try:
        yield
    finally:
        shutil.rmtree(ballast)


FULL_DISKS = {"bytes": _full_of_bytes, "files": _full_of_files}


def _is_refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return True
    return False


def _try(disk: Path, kind: str, act: Act, perform: Callable[[], object]) -> None:
    """With more and more room, until it is not refused. The store is whole each time, though the disk is still full."""
    before = Repository.open(disk / "store").checkpoints()
    for left in itertools.count():
        with FULL_DISKS[kind](disk, left):
            refused = _is_refused(perform)
            check(disk / "store", before, act)
        if not refused:
            print(act.name, left)
            return


def main(directory: Path, kind: str) -> None:
    """Removing comes last: it must work on the fullest disk."""
    disk = directory / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m,nr_inodes=300,mode=700", "tmpfs", str(disk)]
    subprocess.run(mount, check=True)
    stage = build(disk)
    images = Path(shutil.move(stage.base / "sets", directory / "sets"), "next")
    for path in disk.glob("images-*"):
        shutil.rmtree(path)
    repository = Repository.open(stage.root)
    first = repository.checkpoints()[0]
    _try(disk, kind, TAG, lambda: repository.tag(first.id, "new"))
    _try(disk, kind, ACTS[0], lambda: ingest(repository, images, described()))
    _try(disk, kind, RM, lambda: repository.remove([first.id]))
    for left in itertools.count():
        with FULL_DISKS[kind](disk, left):
            refused = _is_refused(lambda: Repository.open(disk / "another", create=True))
        if not refused:
            break
    print("create", left)
    check(disk / "another", (), RM)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
