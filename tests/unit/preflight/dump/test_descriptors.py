"""Descriptors that CRIU does not save."""

from __future__ import annotations

import os
import stat

import pytest
from dump_plans import FILE, blocker_keys, plan, with_files
from msgspec.structs import replace
from observations import PLAIN

from crckpt.host.proc import Descriptor
from crckpt.host.proc.maps import UnsavableMap


def test_dump_warns_of_an_eventfd_in_semaphore_mode() -> None:
    plain = replace(FILE, target="anon_inode:[eventfd]", info="eventfd-count: 3 eventfd-id: 1 eventfd-semaphore: 0\n")
    assert plan(with_files(plain)).warnings == ()
    (warning,) = plan(with_files(replace(plain, info=plain.info.replace("phore: 0", "phore: 1")))).warnings
    assert warning.key == "eventfd-semaphore"
    assert "fd 3 of PID 100" in warning.what


def device(target: str, major: int, minor: int, kind: int = stat.S_IFCHR) -> Descriptor:
    return Descriptor(100, 7, target, kind, 0, 1, os.O_RDWR, 0, "pos:\t0\n", os.makedev(major, minor))


@pytest.mark.parametrize(
    "held",
    [
        device("/dev/null", 1, 3),
        device("/dev/kmsg", 1, 11),
        device("/dev/tty", 5, 0),
        device("/dev/console", 5, 1),
        device("/dev/ptmx", 5, 2),
        device("/dev/tty1", 4, 1),
        device("/dev/pts/3", 136, 3),
        device("/dev/ttyUSB0", 188, 0),
        device("/dev/autofs", 10, 235),
        device("/dev/nvidia0", 195, 0),
        device("/dev/dri/renderD128", 226, 128),
    ],
    ids=lambda held: held.target,
)
def test_supported_devices_are_accepted(held: Descriptor) -> None:
    assert blocker_keys(replace(PLAIN, descriptors=(held,))) == []


@pytest.mark.parametrize(
    "held",
    [
        device("/dev/kvm", 10, 232),
        device("/dev/ttyS0", 4, 64),
        device("/dev/tty0", 4, 0),
        device("/dev/sda", 8, 0, stat.S_IFBLK),
    ],
    ids=lambda held: held.target,
)
def test_unsupported_devices_are_blockers(held: Descriptor) -> None:
    assert blocker_keys(replace(PLAIN, descriptors=(held,))) == ["device"]


def test_resources_in_own_namespaces_are_saved() -> None:
    """CRIU saves network devices and System V memory only in another namespace than its own."""
    held = replace(
        PLAIN,
        descriptors=(device("/dev/net/tun", 10, 200),),
        unsavable_maps=(UnsavableMap(100, 0x1000, "/SYSV00000000 (deleted)", "sysv"),),
    )
    assert blocker_keys(held) == ["tun", "sysv-shm"]
    elsewhere = (("pid", 1), ("mnt", 2), ("net", 33), ("ipc", 44), ("time", 8))
    assert blocker_keys(replace(held, own_namespaces=elsewhere)) == []


def test_descriptors_of_unknown_namespaces_are_blockers() -> None:
    known, strange = (replace(device(f"net:[{inode}]", 0, 0, stat.S_IFREG), fd=inode) for inode in (3, 77))
    assert blocker_keys(replace(PLAIN, descriptors=(known,))) == []
    assert blocker_keys(replace(PLAIN, descriptors=(strange,))) == ["namespace-outside"]
