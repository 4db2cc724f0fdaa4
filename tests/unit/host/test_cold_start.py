"""Modules of a command are read ahead if they are not in memory, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

from crckpt.host import cold_start

COMMAND = "restore"
WITHIN_S = 60


@pytest.fixture
def list_directory(tmp_path: Path) -> Path:
    """The directory of the lists."""
    return tmp_path


@pytest.fixture
def bytecode_file(list_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The compiled file of a module that is loaded."""
    path = list_directory / "module.pyc"
    path.write_bytes(bytes(1 << 20))
    module = ModuleType("of_this_test")
    vars(module)["__cached__"] = str(path)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return path


def noted(place: Path) -> Path:
    (path,) = place.glob(f"{COMMAND}-*")
    return path


def forget(*paths: Path) -> None:
    """Take files out of the kernel's memory."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if is_in_memory(path):
            pytest.skip(f"{path} lies on a file system that is memory")


def is_in_memory(path: Path) -> bool:
    """Whether a part of the file is in memory: a read, even without waiting, would load it."""
    result = subprocess.run(["fincore", "--bytes", "--noheadings", path], capture_output=True, text=True, check=True)
    return int(result.stdout.split()[0]) > 0


def test_modules_of_the_last_run_are_read_ahead(list_directory: Path, bytecode_file: Path) -> None:
    cold_start.note(COMMAND, list_directory, may_write=True)
    assert str(bytecode_file) in noted(list_directory).read_text().split("\n")
    forget(bytecode_file, noted(list_directory))
    cold_start.read_ahead(COMMAND, list_directory)
    until = time.monotonic() + WITHIN_S
    while not is_in_memory(bytecode_file):
        assert time.monotonic() < until, "the module was not read"
        time.sleep(0.002)


def test_modules_are_not_read_ahead_if_their_list_is_already_in_memory(
    list_directory: Path, bytecode_file: Path
) -> None:
    cold_start.note(COMMAND, list_directory, may_write=True)
    forget(bytecode_file)
    assert is_in_memory(noted(list_directory))
    before = threading.enumerate()
    cold_start.read_ahead(COMMAND, list_directory)
    assert threading.enumerate() == before
    assert not is_in_memory(bytecode_file)


@pytest.mark.parametrize(("count", "stays"), [(100_000, True), (10, False)])
def test_list_of_modules_is_replaced_only_by_a_longer_one(list_directory: Path, count: int, *, stays: bool) -> None:
    cold_start.note(COMMAND, list_directory, may_write=True)
    path = noted(list_directory)
    before = b"\n".join([b"/gone/module.pyc"] * count)
    path.write_bytes(before)
    cold_start.note(COMMAND, list_directory, may_write=True)
    assert (path.read_bytes() == before) == stays
    assert [*list_directory.iterdir()] == [path]


def test_list_of_modules_is_not_recorded_without_bytecode_files(list_directory: Path) -> None:
    cold_start.note(COMMAND, list_directory, may_write=False)
    assert [*list_directory.iterdir()] == []


def test_damaged_list_of_modules_is_ignored(list_directory: Path) -> None:
    cold_start.note(COMMAND, list_directory, may_write=True)
    path = noted(list_directory)
    path.write_bytes(b"\0\n\xff\n/nowhere\n" + os.fsencode(list_directory) + b"\n")
    forget(path)
    cold_start.read_ahead(COMMAND, list_directory)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.daemon:
            thread.join(WITHIN_S)


def test_list_of_modules_is_neither_recorded_nor_read_without_a_directory() -> None:
    cold_start.note(COMMAND, Path("/proc/1/nowhere"), may_write=True)
    cold_start.read_ahead(COMMAND, Path("/proc/1/nowhere"))


def test_list_of_modules_is_private_and_ignored_if_others_can_write_it(list_directory: Path) -> None:
    cold_start.note(COMMAND, list_directory, may_write=True)
    path = noted(list_directory)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o666)
    path.write_text("/dev/zero\n" * 100_000)
    forget(path)
    before = threading.enumerate()
    cold_start.read_ahead(COMMAND, list_directory)
    assert threading.enumerate() == before
    assert not is_in_memory(path)
    # The list is replaced although it names more modules.
    cold_start.note(COMMAND, list_directory, may_write=True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert "/dev/zero" not in path.read_text()
