"""Control groups whose devices or network a BPF program restricts."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from own_process import descriptors

from crckpt.host.process.cgroups import group_programs
from crckpt.host.syscalls.libc import syscall

# linux/bpf.h
PROG_LOAD, PROG_ATTACH = 5, 8
KINDS = {"devices": (15, 6), "network": (8, 0)}  # type of program, place where it is attached
# r0 = 1 (allow); exit
INSTRUCTIONS = struct.pack("<BBhi", 0xB7, 0, 0, 1) + struct.pack("<BBhi", 0x95, 0, 0, 0)


@pytest.fixture
def group() -> Iterator[Path]:
    """An empty control group, with an inner group."""
    mounts = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
    mount = next((path for path in mounts if (path / "cgroup.controllers").exists()), None)
    if mount is None or not os.access(mount, os.W_OK):
        pytest.skip("there is no control group (version 2) that we may change")
    path = mount / f"crckpt-bpf-{os.getpid()}"
    (path / "inner").mkdir(parents=True)
    yield path
    (path / "inner").rmdir()
    path.rmdir()


@contextmanager
def restricted(group: Path, kind: str) -> Iterator[None]:
    """A program that allows everything is attached. It goes with its group."""
    of_type, at = KINDS[kind]
    instructions, terms = ctypes.create_string_buffer(INSTRUCTIONS), ctypes.create_string_buffer(b"GPL")
    load = struct.pack("<IIQQ", of_type, 2, ctypes.addressof(instructions), ctypes.addressof(terms)).ljust(128, b"\0")
    directory = os.open(group, os.O_RDONLY | os.O_DIRECTORY)
    try:
        loaded = syscall("bpf", PROG_LOAD, ctypes.create_string_buffer(load, 128), 128)
    except OSError as error:
        os.close(directory)
        pytest.skip(f"bpf(2): {error.strerror}")
    try:
        attach = struct.pack("<IIII", directory, loaded, at, 0).ljust(128, b"\0")
        syscall("bpf", PROG_ATTACH, ctypes.create_string_buffer(attach, 128), 128)
        yield
    finally:
        os.close(loaded)
        os.close(directory)


@pytest.mark.parametrize("kind", KINDS)
def test_bpf_program_restricts_its_control_group_and_those_below(group: Path, kind: str) -> None:
    before = list(group_programs(group))
    if kind in before:
        pytest.skip("a program of a group above restricts it already")
    with restricted(group, kind):
        opened = descriptors()
        assert list(group_programs(group)) == sorted([*before, kind])
        assert list(group_programs(group / "inner")) == sorted([*before, kind])
        assert list(group_programs(group.parent)) == before
        assert descriptors() == opened


@pytest.mark.parametrize("path", ["/nonexistent", "/proc/self", "/etc/passwd"])
def test_directory_outside_the_control_groups_has_no_bpf_programs(path: str) -> None:
    assert list(group_programs(Path(path))) == []
