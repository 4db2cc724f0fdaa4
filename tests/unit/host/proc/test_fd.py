"""Open descriptors, read from /proc/PID/fd and fdinfo."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from crckpt.errors import PreflightRefused
from crckpt.host import proc
from crckpt.host.observe.sockets import read_descriptors
from crckpt.host.proc import fd as fd_module

EFD_SEMAPHORE = 1


def descriptor(fd: int) -> proc.Descriptor:
    """A descriptor of this process."""
    (found,) = (found for found in proc.descriptors(os.getpid()) if found.fd == fd)
    return found


def test_open_files_are_read_with_path_position_and_flags(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/log-\xff (deleted)"
    fd = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        os.write(fd, b"12345")
        found = descriptor(fd)
        assert os.fsencode(found.target) == name
        assert (found.size, found.pos, found.links, stat.S_IMODE(found.mode)) == (5, 5, 1, 0o640)
        assert found.is_append_only
        Path(os.fsdecode(name)).unlink()
        assert (descriptor(fd).target, descriptor(fd).links) == (found.target + " (deleted)", 0)
    finally:
        os.close(fd)


def test_only_appending_writers_are_append_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_APPEND):
        fd = os.open(tmp_path / "file", flags)
        assert not descriptor(fd).is_append_only
        os.close(fd)


def test_descriptors_of_every_kind_are_described(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    left, right = socket.socketpair()
    event = os.eventfd(3, EFD_SEMAPHORE)
    poll = select.epoll()
    poll.register(left)
    memory = os.memfd_create("scratch")
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert descriptor(reading).target == descriptor(writing).target
        assert [descriptor(fd).flags & os.O_ACCMODE for fd in (reading, writing)] == [os.O_RDONLY, os.O_WRONLY]
        assert descriptor(left.fileno()).target == f"socket:[{os.fstat(left.fileno()).st_ino}]"
        assert "eventfd-semaphore: 1" in descriptor(event).info
        assert descriptor(poll.fileno()).target == "anon_inode:[eventpoll]"
        assert descriptor(memory).target == "/memfd:scratch (deleted)"
        assert stat.S_ISDIR(descriptor(directory).mode)
        numbers = [found.fd for found in proc.descriptors(os.getpid())]
        assert numbers == sorted(numbers)
    finally:
        left.close()
        right.close()
        poll.close()
        for fd in (reading, writing, event, memory, directory):
            os.close(fd)


def test_file_lock_is_read_from_fdinfo(tmp_path: Path) -> None:
    with (tmp_path / "locked").open("w") as file:
        assert "\nlock:" not in descriptor(file.fileno()).info
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "\nlock:" in descriptor(file.fileno()).info


@pytest.fixture
def descriptor_without_a_server(tmp_path: Path) -> Iterator[int]:
    """A descriptor on a file system whose server is dead."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    place = os.fsencode(tmp_path)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"test", place, b"fuse", 0, options) != 0:
        os.close(server)
        pytest.skip(f"FUSE cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    fd = os.open(tmp_path, os.O_PATH)
    os.close(server)
    yield fd
    os.close(fd)
    assert libc.umount2(place, 2) == 0


def test_file_on_an_unanswering_file_system_has_only_its_path(descriptor_without_a_server: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not connected"):
        os.fstat(descriptor_without_a_server)
    found = descriptor(descriptor_without_a_server)
    assert (found.target, found.mode, found.size, found.links) == (str(tmp_path), 0, 0, 0)


def test_details_of_an_epoll_are_kept_once_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lists what an epoll watches for each of its descriptors: any user may have thousands of them."""
    with select.epoll() as epoll, ExitStack() as opened:
        for _ in range(500):
            watched = os.eventfd(0)
            opened.callback(os.close, watched)
            epoll.register(watched)
        for _ in range(50):
            opened.callback(os.close, os.dup(epoll.fileno()))
        found = [each for each in proc.descriptors(os.getpid()) if each.target == "anon_inode:[eventpoll]"]
        assert len({id(each.info) for each in found if each.info.count("tfd:") == 500}) == 1
        monkeypatch.setattr(fd_module, "_MOST_KEPT", len(descriptor(epoll.fileno()).info) - 1)
        with pytest.raises(OSError, match="File too large"):
            proc.descriptors(os.getpid())
        own = proc.read_process(os.getpid())
        assert own is not None
        tree = proc.read_tree(own)
        with pytest.raises(PreflightRefused, match="watch or lock more than crckpt examines"):
            read_descriptors(tree)
