"""Under a umask that forbids nothing, nothing that crckpt makes can be read or written by others."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from command import Crckpt
from incremental import keeper
from rounds import Target

import crckpt as package
from crckpt.host.disk.own_files import is_own

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

BYTECODE_DIRECTORY = Path(package.__file__).parent / "__pycache__"
RUNTIME_DIRECTORY = Path("/run/crckpt")
CACHE_DIRECTORY = Path("/var/cache/crckpt")
PERMISSIONS_OF_OTHERS = 0o077


def open_to_others(top: Path) -> Iterator[str]:
    """Files below a directory that are not private to their owner. Links have no mode."""
    for directory, names, files in os.walk(top):
        for name in (*names, *files):
            path = Path(directory, name)
            with suppress(FileNotFoundError, NotADirectoryError):
                mode = path.lstat().st_mode
                if not stat.S_ISLNK(mode) and mode & PERMISSIONS_OF_OTHERS:
                    yield f"{stat.filemode(mode)} {path.relative_to(top)}"


@contextmanager
def watched(top: Path) -> Iterator[set[str]]:
    """The files that are open to others at any time during the block: many of them are removed at its end."""
    open_paths: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            open_paths.update(open_to_others(top))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield open_paths
    finally:
        over.set()
        thread.join()
        open_paths.update(open_to_others(top))


@pytest.fixture
def crckpt_without_umask(tmp_path: Path) -> Crckpt:
    """The command with umask 000, and a store two directories below an existing one."""
    place = tmp_path / "made"
    place.mkdir(mode=0o700)
    return Crckpt(place / "above" / "store", before=("sh", "-c", 'umask 000; exec "$0" "$@"'))


def test_files_that_crckpt_creates_cannot_be_read_by_others_whatever_the_umask(
    crckpt_without_umask: Crckpt, target: Target
) -> None:
    top = crckpt_without_umask.store.parents[1]
    made = {name: str(top / name) for name in ("core", "report.tar.gz", "exports/one")}
    for note in BYTECODE_DIRECTORY.glob("*.loaded"):
        note.unlink()
    with watched(top) as seen:
        crckpt_without_umask.run("doctor")
        crckpt_without_umask.run("doctor", str(target.pid))
        crckpt_without_umask.run("dump", str(target.pid), "one")
        crckpt_without_umask.run("dump", str(target.pid), "one", "--incremental")
        assert keeper(crckpt_without_umask, target)
        crckpt_without_umask.run("list", PYTHONDONTWRITEBYTECODE="")
        crckpt_without_umask.run("show", "one")
        crckpt_without_umask.run("core", "one", "--output", made["core"])
        crckpt_without_umask.run("export", "one", made["exports/one"])
        crckpt_without_umask.run("report", "one", "--output", made["report.tar.gz"])
        crckpt_without_umask.run("rehearse", "one")
        target.end()
        crckpt_without_umask.run("restore", "one", "--detach")
    assert seen == set()
    assert all(Path(path).exists() for path in made.values())
    assert set(open_to_others(RUNTIME_DIRECTORY)) == set()
    assert RUNTIME_DIRECTORY.stat().st_mode & 0o022 == 0
    assert CACHE_DIRECTORY.stat().st_mode & 0o022 == 0
    notes = tuple(BYTECODE_DIRECTORY.glob("*.loaded"))
    assert notes
    assert all(note.stat().st_mode & PERMISSIONS_OF_OTHERS == 0 for note in notes)
    assert all(is_own(path.lstat()) for path in CACHE_DIRECTORY.glob("*"))
