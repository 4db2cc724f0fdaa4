"""State of descriptors is read of what they are, not of what has their path."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from crckpt.host import proc
from crckpt.host.attributes.descriptors import DescriptorRecord, read_descriptors, restore_descriptor

PROGRAM_WITH_AN_OPEN_FILE = (
    "import os, sys, time; os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY); print(flush=True); time.sleep(60)"
)


def read(path: str, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[DescriptorRecord, ...], list[int]]:
    """Read the state of what a process has open; also the types of the files that an ioctl(2) was for."""
    asked: list[int] = []

    def ask(descriptor: int, *_: object) -> bytes:
        asked.append(stat.S_IFMT(os.fstat(descriptor).st_mode))
        return bytes(4)

    monkeypatch.setattr("fcntl.ioctl", ask)
    with subprocess.Popen(
        ["python3", "-c", PROGRAM_WITH_AN_OPEN_FILE, path], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            found = [each for each in proc.descriptors(process.pid) if each.target == path]
            assert len(found) == 1
            return tuple(read_descriptors(found, {process.pid: 1})), asked
        finally:
            process.kill()


def test_file_with_the_path_of_a_terminal_gets_no_ioctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In mounts of its own, a program can put any file at that path."""
    path = Path("/dev/pts/crckpt-test")
    subprocess.run(["mount", "-t", "tmpfs", "none", "/dev/pts"], check=True)
    try:
        path.touch()
        assert read(str(path), monkeypatch) == ((), [])
    finally:
        subprocess.run(["umount", "/dev/pts"], check=True)


def test_terminal_is_made_exclusive_by_an_ioctl(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    try:
        assert read(os.ttyname(slave), monkeypatch) == ((), [stat.S_IFCHR])
    finally:
        os.close(master)
        os.close(slave)


def test_file_that_is_not_a_terminal_is_not_made_exclusive(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(OSError, match="ioctl"):
        restore_descriptor(file.fileno(), os.getpid(), DescriptorRecord(1, file.fileno(), is_exclusive=True))
