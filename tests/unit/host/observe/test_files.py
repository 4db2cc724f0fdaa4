"""Files whose name leads elsewhere, or nowhere, where a restore would look for them."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_programs import WAIT_STATEMENTS, program

from crckpt.host import proc
from crckpt.host.observe.files import (
    UnreachableFile,
    find_unlinked_files,
    find_unreachable_files,
    find_volatile_files,
)


def find(pid: int) -> tuple[UnreachableFile, ...]:
    return find_unreachable_files([pid], proc.descriptors(pid))


@pytest.fixture
def directory_to_hide(tmp_path: Path) -> Iterator[Path]:
    """A directory over which something is mounted as soon as `hide` is called."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "file").write_bytes(bytes(8192))
    yield place
    while os.path.ismount(place):
        subprocess.run(["umount", "--lazy", place], check=True)


def hide(place: Path) -> None:
    words = ["mount", "-t", "tmpfs", "test", str(place)]
    if subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")


def test_files_hidden_by_a_mount_are_found(directory_to_hide: Path) -> None:
    file = directory_to_hide / "file"
    code = f"""
import mmap
file = os.open({str(file)!r}, os.O_RDONLY)
memory = mmap.mmap(os.open({str(file)!r}, os.O_RDONLY), 4096, prot=mmap.PROT_READ)
os.closerange(file + 1, file + 3)
os.chdir({str(directory_to_hide)!r})
"""
    with program(code + WAIT_STATEMENTS) as process:
        assert find(process.pid) == ()
        hide(directory_to_hide)
        found = find(process.pid)
        assert {(each.path, each.why) for each in found if each.fd >= 0} == {(str(file), "hidden")}
        assert {each.path for each in found if each.fd < 0} == {str(file), str(directory_to_hide)}
        assert {each.pid for each in found} == {process.pid}


def test_file_whose_name_another_file_has_now_is_found(directory_to_hide: Path) -> None:
    """A deleted file is saved with its content."""
    code = f"file = os.open({str(directory_to_hide / 'file')!r}, os.O_RDONLY)\n"
    with program(code + WAIT_STATEMENTS) as process:
        hide(directory_to_hide)
        (directory_to_hide / "file").touch()
        assert [(each.path, each.why) for each in find(process.pid)] == [(str(directory_to_hide / "file"), "hidden")]
        subprocess.run(["umount", directory_to_hide], check=True)
        (directory_to_hide / "file").unlink()
        (directory_to_hide / "file").touch()
        assert find(process.pid) == ()


def test_file_of_an_unmounted_file_system_is_unreachable(directory_to_hide: Path) -> None:
    hide(directory_to_hide)
    (directory_to_hide / "file").touch()
    with program(f"file = os.open({str(directory_to_hide / 'file')!r}, os.O_RDONLY)\n{WAIT_STATEMENTS}") as process:
        assert find(process.pid) == ()
        subprocess.run(["umount", "--lazy", directory_to_hide], check=True)
        (found,) = find(process.pid)
        assert (found.pid, found.why) == (process.pid, "mount")


def test_device_of_an_unmounted_file_system_is_unreachable(directory_to_hide: Path) -> None:
    """A container's program may inherit /dev/null from another mount namespace."""
    hide(directory_to_hide)
    os.mknod(directory_to_hide / "null", 0o600 | stat.S_IFCHR, Path("/dev/null").stat().st_rdev)
    names = (str(directory_to_hide / "null"), "/dev/null")
    with program(f"files = [os.open(name, os.O_RDONLY) for name in {names!r}]\n{WAIT_STATEMENTS}") as process:
        assert find(process.pid) == ()
        subprocess.run(["umount", "--lazy", directory_to_hide], check=True)
        (found,) = find(process.pid)
        assert (found.pid, found.why) == (process.pid, "mount")


def test_open_memory_files_count_as_reachable() -> None:
    with program(
        f"file = os.memfd_create('x')\nother = os.open('/proc/self', os.O_RDONLY)\n{WAIT_STATEMENTS}"
    ) as process:
        assert find(process.pid) == ()


PROGRAM_WITH_REMOVED_NAMES = """
import mmap
def opened(name, other):
    file = os.open(name, os.O_RDWR | os.O_CREAT)
    os.truncate(file, 4096)
    if other: os.link(name, other)
    os.unlink(name)
    return file
os.chdir({0!r})
os.mkdir("inner")
beside, elsewhere, gone = opened("a", "b"), opened("c", "inner/d"), opened("e", None)
maps = mmap.mmap(opened("f", "inner/g"), 4096)
os.closerange(gone + 1, gone + 9)
"""


def test_files_that_lost_one_of_their_names_are_found(tmp_path: Path) -> None:
    """The files are open or mapped. A file without any name is in the checkpoint, and not listed."""
    with program(PROGRAM_WITH_REMOVED_NAMES.format(str(tmp_path)) + WAIT_STATEMENTS) as process:
        found = find_unlinked_files([process.pid], proc.descriptors(process.pid))
        assert found == (f"{tmp_path}/c", f"{tmp_path}/f")


def test_files_that_a_restore_needs_from_memory_file_systems_are_found(directory_to_hide: Path) -> None:
    """The directory itself and files in the checkpoint are not needed."""
    hide(directory_to_hide)
    with program(PROGRAM_WITH_REMOVED_NAMES.format(str(directory_to_hide)) + WAIT_STATEMENTS) as process:
        opened = proc.descriptors(process.pid)
        assert find_volatile_files([process.pid], opened, ()) == tuple(f"{directory_to_hide}/{name}" for name in "acf")
        names = (f"{directory_to_hide}/socket", f"{directory_to_hide}/inner/socket", "@abstract", "")
        assert find_volatile_files([], (), names) == (f"{directory_to_hide}/inner",)
