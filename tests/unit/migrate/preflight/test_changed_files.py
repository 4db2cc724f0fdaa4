"""Files that the check has compared are compared again in the freeze, and no others are refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from gates import answer_here, ask_about, report, target_at
from msgspec.structs import replace
from target_processes import StatementRunner

from crckpt.errors import PreflightRefused
from crckpt.migrate.preflight.answers import compare
from crckpt.migrate.preflight.recheck import ComparedFiles, refuse_changed_files

pytestmark = pytest.mark.usefixtures("is_root")

CONTENT = b"0123456789" * 1000
LARGE = (64 << 20) + 1
MAP = "import mmap; area = mmap.mmap(held.fileno(), 4096); area[0] = 48"


@pytest.fixture(params=["tmp", "/dev/shm"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file that has not changed for a while, on a disk, or in memory."""
    path = tmp_path / "data" if request.param == "tmp" else Path(f"/dev/shm/crckpt-{tmp_path.name}")
    path.write_bytes(CONTENT)
    yield path
    path.unlink(missing_ok=True)


def compared(target: StatementRunner, there: Path, *, is_shared: bool = False) -> ComparedFiles:
    """The files of a program that the check has compared: the other host has all of them."""
    plan = target_at(target.pid, there)
    questions = ask_about(plan)
    answers = answer_here(questions, there)
    shared = tuple(file.id for file in questions.files) if is_shared else ()
    found = report(plan, questions, replace(answers, shared=shared)).compared
    assert found is not None
    return found


def open_in(target: StatementRunner, path: Path, *, mode: str = "r+b") -> None:
    """Let the program open the file, long after it was last changed."""
    target.do(f"path = {str(path)!r}; held = open(path, {mode!r}, buffering=0)")


@pytest.mark.parametrize(
    ("before", "change", "words"),
    [
        ("", "held.write(b'x')", "was written to"),
        ("", "held.seek(0, 2); held.write(b'x')", "was written to"),
        # The kernel notes no time of a write to a page that was written before.
        (MAP, "area[1] = 0", "was written to"),
        (MAP, "area.close(); held.truncate(0); held.write(b'y' * 10000)", "was written to"),
        # A program can set one of the two times.
        ("", "s = os.stat(path); held.write(b'x'); os.utime(path, ns=(s.st_atime_ns, s.st_mtime_ns))", "written to"),
        ("", "held.write(b'x'); held.close()", "was written to"),
        ("", "os.rename(path, path + '.1')", "was removed or renamed"),
        ("", "os.unlink(path)", "was removed or renamed"),
        ("", "f = open(path + '.1', 'wb'); f.write(b'x' * 10000); f.close(); os.rename(path + '.1', path)", "replaced"),
        ("", "other = open(path + '.1', 'wb')", "was opened for writing"),
    ],
)
def test_write_to_an_open_file_after_the_check_of_a_move_is_refused(
    target: StatementRunner, destination_store: Path, data: Path, before: str, change: str, words: str
) -> None:
    open_in(target, data)
    target.do(before or "pass")
    found = compared(target, destination_store)
    refuse_changed_files([target.pid], found)
    try:
        target.do(f"import os; {change}")
        with pytest.raises(PreflightRefused, match=f"{data}.* {words} since the check; the program keeps running here"):
            refuse_changed_files([target.pid], found)
        refuse_changed_files([target.pid], compared(target, destination_store, is_shared=True))
    finally:
        Path(f"{data}.1").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "change",
    [
        "os.utime(path)",
        "os.chmod(path, 0o600); held.write(b'0')",
        "f = open(path + '.1', 'wb'); f.write(b'0123456789' * 1000); f.close(); os.rename(path + '.1', path)",
        "only_read = open('/etc/passwd'); memory = os.memfd_create('x'); os.write(memory, b'x')",
        "gone = open(path + '.1', 'wb'); os.unlink(path + '.1')",
    ],
)
def test_file_rewritten_with_equal_content_does_not_prevent_a_move(
    target: StatementRunner, destination_store: Path, data: Path, change: str
) -> None:
    open_in(target, data)
    found = compared(target, destination_store)
    target.do(f"import os; {change}")
    refuse_changed_files([target.pid], found)


def test_large_file_is_compared_by_its_times_at_the_freeze(
    target: StatementRunner, destination_store: Path, data: Path
) -> None:
    """Writes through a mapping do not change the times, so the check refuses a large file mapped for writing."""
    os.truncate(data, LARGE)
    open_in(target, data)
    found = compared(target, destination_store)
    target.do("pass")
    target.do("held.write(b'x')")
    with pytest.raises(PreflightRefused, match=f"{data} was written to since the check"):
        refuse_changed_files([target.pid], found)
    target.do(MAP)
    answers = answer_here(ask_about(target_at(target.pid, destination_store)), destination_store)
    assert [found.key for found in answers.blockers] == ["pid-taken", "file-mapped"]


def test_change_of_a_file_open_for_reading_is_found_at_the_freeze(
    target: StatementRunner, destination_store: Path, data: Path
) -> None:
    open_in(target, data, mode="rb")
    found = compared(target, destination_store)
    data.write_bytes(CONTENT + b"more")
    with pytest.raises(PreflightRefused, match=f"{data} was written to since the check"):
        refuse_changed_files([target.pid], found)
    data.unlink()
    refuse_changed_files([target.pid], found)


@pytest.mark.parametrize(
    ("size", "change"), [(5000, "held.write(b'x')"), (LARGE, "held.write(b'x')"), (5000, "area[1] = 0")]
)
def test_undeclared_shared_storage_is_recognized(
    target: StatementRunner, destination_store: Path, data: Path, size: int, change: str
) -> None:
    """The other host sees the change, too, if the storage is shared, or has only a copy of the earlier content."""
    os.truncate(data, size)
    copy = data.with_suffix(".copy")
    shutil.copy2(data, copy)
    open_in(target, data)
    if "area" in change:
        target.do(MAP)
    found = compared(target, destination_store)
    target.do(change)
    refuse_changed_files([target.pid], found, compare)
    with pytest.raises(PreflightRefused):
        refuse_changed_files(
            [target.pid],
            found,
            lambda files: compare(tuple(replace(file, path=os.fsencode(copy)) for file in files)),
        )
    copy.unlink()
