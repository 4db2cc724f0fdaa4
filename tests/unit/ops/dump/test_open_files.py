"""Open files of a live tree that users other than root could replace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dump_targets import observe_live
from msgspec.structs import replace
from other_user import NOBODY
from small_programs import WAIT_STATEMENTS, program, read

from crckpt.host import proc
from crckpt.host.disk.checked_files import digest_head
from crckpt.ops.dump.details import record_files

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
OPEN_STATEMENTS = "os.chdir({0!r}); files = [os.open(name, flags) for name, flags in {1!r}]"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory of another user, with files."""
    (tmp_path / "users").mkdir()
    for name in ("read", "written", "renamed", "mapped"):
        (tmp_path / "users" / name).write_bytes(b"x" * 4096)
    os.chown(tmp_path / "users", NOBODY, NOBODY)
    return tmp_path / "users"


@pytest.fixture
def root(place: Path) -> Iterator[proc.Process]:
    """A program that has the files open, one of them twice, and a file of root's."""
    files = [("read", os.O_RDONLY), ("written", os.O_RDWR), ("written", os.O_RDONLY), ("renamed", os.O_RDONLY)]
    code = OPEN_STATEMENTS.format(str(place), [*files, ("/etc/passwd", os.O_RDONLY)])
    maps = "import mmap; there = mmap.mmap(os.open('mapped', os.O_RDWR), 4096); os.rename('renamed', 'new')"
    with program(f"{code}\n{maps}\n{WAIT_STATEMENTS}") as process:
        yield read(process.pid)


NO_FILES: dict[str, dict[str, Any]] = {"files": {}, "file_owners": {}, "file_births": {}, "file_heads": {}}


def recorded(root: proc.Process, what: str = "files") -> dict[str, Any]:
    observed = observe_live(root)
    return record_files(observed.tree, observed.descriptors)[what]


def identity(path: Path, writes: int) -> tuple[int, int, int]:
    return (path.stat().st_dev, path.stat().st_ino, writes)


def test_open_files_are_recorded_by_path(root: proc.Process, place: Path) -> None:
    files = recorded(root)
    # The directory is the program's working directory.
    names = {Path(path).name for path in files if path.startswith(str(place))}
    assert names == {"users", "read", "written", "new", "mapped"}
    assert files["/etc/passwd"] == [identity(Path("/etc/passwd"), 0)]
    assert files[f"{place}/read"] == [identity(place / "read", 0)]
    assert files[f"{place}/written"] == [identity(place / "written", 0), identity(place / "written", 1)]
    # Its descriptor, and the map.
    assert files[f"{place}/mapped"] == [identity(place / "mapped", 1)]


def test_file_owners_are_recorded(root: proc.Process, place: Path) -> None:
    os.chown(place / "read", NOBODY, NOBODY)
    owners = recorded(root, "file_owners")
    assert owners[f"{place}/read"] == [NOBODY]
    assert owners[f"{place}/written"] == owners[f"{place}/mapped"] == [0]
    assert owners["/etc/passwd"] == [0]


def test_file_that_was_replaced_is_recorded_as_it_was(root: proc.Process, place: Path) -> None:
    """The name leads to another file now."""
    before = identity(place / "read", 0)
    (place / "other").write_bytes(b"other")
    (place / "other").rename(place / "read")
    files = recorded(root)
    assert f"{place}/read" not in files or identity(place / "read", 0) not in files[f"{place}/read"]
    assert files[f"{place}/read (deleted)"] == [before]


def test_files_of_a_process_that_may_be_another_are_not_recorded(root: proc.Process) -> None:
    observed = observe_live(root)
    unknown = tuple(replace(found, identity=(0, 0)) for found in observed.descriptors)
    other = replace(root, start=root.start + 1)  # another process has got its PID
    assert record_files(proc.Tree(other, (other,)), unknown) == NO_FILES


def test_files_of_an_ended_process_are_not_read(root: proc.Process) -> None:
    observed = observe_live(root)
    os.kill(root.pid, 9)
    os.waitid(os.P_PID, root.pid, os.WEXITED | os.WNOWAIT)
    assert record_files(observed.tree, ()) == NO_FILES


def test_writable_mapping_counts_as_writing(place: Path) -> None:
    """The descriptor of the file may have been closed after the mapping was made."""
    opens = "file = os.open({!r}, os.O_RDWR); {} = mmap.mmap(file, 4096, prot={}); os.close(file)\n"
    both, reads = "mmap.PROT_READ | mmap.PROT_WRITE", "mmap.PROT_READ"
    path = str(place / "mapped")
    code = opens.format(path, "one", reads) + opens.format(path, "other", both)
    with program(f"import mmap\n{code}{WAIT_STATEMENTS}") as process:
        assert recorded(read(process.pid))[path] == [identity(place / "mapped", 1)]


def test_first_bytes_of_written_files_are_recorded(root: proc.Process, place: Path) -> None:
    """A written file has a name, and a descriptor that may write to it."""
    heads = recorded(root, "file_heads")
    assert heads == {str(place / name): digest_head(b"x" * 512) for name in ("written", "mapped")}
