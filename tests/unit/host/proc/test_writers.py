"""Processes that can write to a file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crckpt.host.proc.file_users import FileWriter, find_writers

PROGRAM_WITH_AN_OPEN_FILE = "import sys, time; file = open(sys.argv[1], sys.argv[2]); print(flush=True); time.sleep(60)"


@contextmanager
def opened(path: Path, how: str) -> Iterator[int]:
    """The PID of a process that has the file open."""
    words = [sys.executable, "-c", PROGRAM_WITH_AN_OPEN_FILE, str(path), how]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file, with a second name."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    (tmp_path / "other").hardlink_to(path)
    return path


@pytest.mark.parametrize("how", ["a", "r+"])
def test_process_that_writes_to_a_file_is_found_under_any_name_of_the_file(file: Path, how: str) -> None:
    with opened(file.with_name("other"), how) as pid:
        found = find_writers([str(file), str(file.with_name("other")), str(file.parent / "none")])
    assert {path: writer.pid for path, writer in found.items()} == {str(file): pid, str(file.with_name("other")): pid}
    assert isinstance(found[str(file)], FileWriter)
    assert found[str(file)].comm.startswith("python")


def test_process_that_only_reads_a_file_is_not_found_as_a_writer(file: Path) -> None:
    with opened(file, "r"):
        assert find_writers([str(file)]) == {}


def test_process_with_a_writable_mapping_of_a_file_is_found_as_a_writer(file: Path) -> None:
    code = (
        "import mmap, sys, time; file = open(sys.argv[1], 'r+b'); there = mmap.mmap(file.fileno(), 1); file.close(); "
    )
    words = [sys.executable, "-c", f"{code}print(flush=True); time.sleep(60)", str(file)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = find_writers([str(file)])
        process.kill()
    assert found[str(file)].pid == process.pid


def test_output_to_which_crckpt_itself_appends_is_not_in_use(file: Path) -> None:
    """A unit with StandardOutput=append: has such output."""
    with file.open("a"):
        assert find_writers([str(file)]) == {}
    with file.open("r+"):
        assert find_writers([str(file)])[str(file)].pid == os.getpid()


def test_no_writers_are_found_for_no_files_or_an_unopened_file(file: Path) -> None:
    assert (find_writers([]), find_writers([str(file)])) == ({}, {})
