"""Files of /proc, /sys and control groups that a restored unprivileged program keeps open."""

from __future__ import annotations

import os
import stat

import pytest

from crckpt.host.observe.files import KernelFile
from crckpt.images.core import Rights
from crckpt.preflight.kernel_files import PROC, SYSFS, is_root, may_keep, may_trace_of

CGROUP2, DEBUGFS, EXT4 = 0x63677270, 0x64626720, 0xEF53
READS, WRITES = os.O_RDONLY, os.O_WRONLY
OWN, CHILD, STRONGER, OUTSIDE = 10, 11, 12, 99
EVERYTHING = 0b111


def rights(uid: int = 1000, effective: int = 0, permitted: int = 0) -> Rights:
    return Rights((uid,) * 4, (uid,) * 4, frozenset(), (0, permitted or effective, effective, EVERYTHING, 0), False)


TREE = {OWN: rights(), CHILD: rights(), STRONGER: rights(permitted=0b10)}


def keeps(magic: int, path: str, flags: int = READS, mode: int = 0o444) -> bool:
    file = KernelFile(magic, path, flags, stat.S_IFREG | mode)
    return may_keep(file, may_trace_of(OWN, TREE, {STRONGER}))


@pytest.mark.parametrize(
    ("magic", "path", "flags"),
    [
        (EXT4, "/etc/shadow", os.O_RDWR),  # judged by path, owner and mode
        (PROC, "/proc/meminfo", READS),
        (PROC, "/proc/sys/kernel/pid_max", READS),
        (PROC, "/proc", READS),
        (PROC, f"/proc/{OWN}/maps", READS),
        (PROC, f"/proc/{OWN}/mem", os.O_RDWR),
        (PROC, f"/proc/{OWN}/task/17/comm", WRITES),
        (PROC, f"/proc/{OWN}/net/tcp", READS),
        (PROC, f"/proc/{CHILD}/smaps", READS),
        (PROC, f"/proc/{OUTSIDE}/stat", READS),
        (PROC, f"/proc/{OUTSIDE}/mem", os.O_PATH),
        (SYSFS, "/sys/devices/system/cpu/online", READS),
        (SYSFS, "/sys/devices/virtual/net/lo/statistics/rx_bytes", READS),
        (CGROUP2, "/sys/fs/cgroup/mine/memory.current", READS),
    ],
)
def test_harmless_kernel_file_is_kept(magic: int, path: str, flags: int) -> None:
    assert keeps(magic, path, flags)


@pytest.mark.parametrize(
    ("magic", "path", "flags", "mode"),
    [
        (PROC, f"/proc/{OWN}/pagemap", READS, 0o400),  # page frames
        (PROC, f"/proc/{OWN}/stack", READS, 0o400),  # kernel addresses
        (PROC, f"/proc/{OWN}/uid_map", WRITES, 0o644),
        (PROC, f"/proc/{STRONGER}/mem", os.O_RDWR, 0o600),
        (PROC, f"/proc/{STRONGER}/maps", READS, 0o444),
        (PROC, f"/proc/{OUTSIDE}/environ", READS, 0o400),
        (PROC, f"/proc/{OUTSIDE}/task/100/maps", READS, 0o444),
        (PROC, "/proc/kallsyms", READS, 0o444),
        (PROC, "/proc/keys", READS, 0o444),
        (PROC, "/proc/kcore", READS, 0o400),
        (PROC, "/proc/pressure/cpu", os.O_RDWR, 0o666),
        (PROC, "/srv/other/proc/meminfo", READS, 0o444),  # of another PID namespace, perhaps
        (SYSFS, "/sys/devices/pci0000:00/0000:00:01.0/config", READS, 0o644),
        (SYSFS, "/sys/module/ext4/sections/.text", READS, 0o400),
        (CGROUP2, "/sys/fs/cgroup/mine/cgroup.procs", WRITES, 0o644),
        (DEBUGFS, "/sys/kernel/debug/sched/debug", READS, 0o444),
    ],
)
def test_privileged_kernel_file_is_not_kept(magic: int, path: str, flags: int, mode: int) -> None:
    assert not keeps(magic, path, flags, mode)


@pytest.mark.parametrize(
    ("theirs", "may"),
    [
        (rights(), True),
        (rights(0), False),
        (Rights((1000, 1000, 0, 1000), (1000,) * 4, frozenset(), (0,) * 5, False), False),  # may become root again
        (
            Rights((1000,) * 4, (1000, 5, 5, 5), frozenset(), (0,) * 5, False),
            False,
        ),  # has executed a set-group-id program
        (rights(permitted=1), False),
    ],
)
def test_process_with_more_rights_is_not_opened(theirs: Rights, may: bool) -> None:
    assert may_trace_of(OWN, {OWN: rights(), CHILD: theirs}, ())(CHILD) == may


def test_root_has_all_of_our_capabilities() -> None:
    assert is_root(rights(0, EVERYTHING), EVERYTHING)
    assert not is_root(rights(0, 0b11), EVERYTHING)
    assert not is_root(rights(1000, EVERYTHING), EVERYTHING)
