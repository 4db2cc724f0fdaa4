"""Files of /proc, /sys and control groups that a restored unprivileged program keeps open."""

from __future__ import annotations

import os
import stat

import pytest
from msgspec.structs import replace

from crckpt.host.observe.files import KernelFile
from crckpt.images.core import Rights
from crckpt.preflight.kernel_files import PROC, SYSFS, make_judge, may_keep, may_trace_of

CGROUP2, DEBUGFS, EXT4 = 0x63677270, 0x64626720, 0xEF53
READS, WRITES = os.O_RDONLY, os.O_WRONLY
OWN, CHILD, STRONGER, OUTSIDE = 10, 11, 12, 99
ALL_CAPABILITIES = 0b111


def rights(uid: int = 1000, effective: int = 0, permitted: int = 0) -> Rights:
    return Rights(
        (uid,) * 4, (uid,) * 4, frozenset(), (0, permitted or effective, effective, ALL_CAPABILITIES, 0), False
    )


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
def test_files_of_a_process_with_more_rights_are_not_opened(theirs: Rights, may: bool) -> None:
    assert may_trace_of(OWN, {OWN: rights(), CHILD: theirs}, ())(CHILD) == may


ROOT, USER, BY_USER = rights(0, ALL_CAPABILITIES), rights(), replace(rights(0, ALL_CAPABILITIES), uids=(1000, 0, 0, 0))
AMBIENT = replace(rights(), capabilities=(0b1, 0b1, 0b1, ALL_CAPABILITIES, 0b1))
IN_GROUP = replace(rights(), gids=(1000, 5, 5, 5))


@pytest.mark.parametrize(
    ("tree", "keeps_memory"),
    [
        ((USER,), True),
        ((AMBIENT,), True),
        ((ROOT, USER), True),  # a daemon's worker
        ((rights(0, 0b11),), True),  # a service of root without some capabilities
        ((rights(effective=0b1),), False),  # has executed a program with a file capability
        ((BY_USER,), False),
        ((IN_GROUP,), False),
        ((USER, BY_USER, ROOT), False),  # by sudo
        ((rights(1001), USER), False),
    ],
)
def test_process_with_more_rights_than_its_user_does_not_keep_its_memory(
    tree: tuple[Rights, ...], keeps_memory: bool
) -> None:
    """The process may have the file from that user, who opened it before this program was executed."""
    pid = len(tree)
    judge = make_judge(pid, dict(enumerate(tree, 1)), (), range(3), {each: each - 1 for each in range(1, pid + 1)})
    assert judge is not None
    for name in ("auxv", "environ", "maps", "mem", "numa_maps", "smaps", "smaps_rollup"):
        assert judge(KernelFile(PROC, f"/proc/{pid}/{name}", READS, stat.S_IFREG | 0o444)) == keeps_memory
    assert judge(KernelFile(PROC, f"/proc/{pid}/mem", os.O_RDWR, stat.S_IFREG | 0o600)) == keeps_memory
    assert judge(KernelFile(PROC, f"/proc/{pid}/fdinfo", READS, stat.S_IFDIR | 0o555))


def test_process_that_its_user_may_not_trace_loses_its_open_proc_mem() -> None:
    judge = make_judge(pid=OWN, rights={OWN: USER}, undumpable={OWN}, capabilities=range(3), parents={})
    assert judge is not None
    assert not judge(KernelFile(PROC, f"/proc/{OWN}/mem", os.O_RDWR, stat.S_IFREG | 0o600))


def test_only_root_that_was_not_started_by_a_user_keeps_every_kernel_file() -> None:
    parents = {OWN: CHILD, CHILD: OUTSIDE}
    assert make_judge(OWN, {OWN: ROOT, CHILD: ROOT}, (), range(3), parents) is None
    for tree in ({OWN: BY_USER}, {OWN: ROOT, CHILD: USER}):
        judge = make_judge(OWN, tree, (), range(3), parents)
        assert judge is not None
        assert not judge(KernelFile(CGROUP2, "/sys/fs/cgroup/cgroup.procs", WRITES, stat.S_IFREG | 0o644))


def test_only_root_with_all_of_our_capabilities_keeps_all_files() -> None:
    for found, is_root in (
        (rights(0, ALL_CAPABILITIES), True),
        (rights(0, 0b11), False),
        (rights(1000, ALL_CAPABILITIES), False),
    ):
        assert (make_judge(OWN, {OWN: found}, (), range(3), {}) is None) is is_root
