"""Needs for CPU, kernel, control groups and space, for the images of a real tree and hosts written by hand."""

from __future__ import annotations

import socket

import pytest
from checkout import TESTS
from msgspec.structs import replace
from restore_plans import CREATED

from crckpt.host.process.cgroups import TasksLeft
from crckpt.images.core import Core
from crckpt.images.mm import GUARD, SHADOW_STACK, Vma
from crckpt.images.other_files import OtherFile
from crckpt.images.sockets import INET, InetSocket, PacketSocket
from crckpt.images.tree import ImageTree
from crckpt.preflight.restore.checks import judge_restore
from crckpt.preflight.restore.host import (
    DiskSpace,
    HostResources,
    HostState,
    HugePages,
    Need,
    PlannedRestore,
    find_needed_features,
    judge_requirements,
    kernel_needs,
)

IMAGES = TESTS / "data/images/tree"
NAMES = frozenset(path.name for path in IMAGES.iterdir())
MEBIBYTE = 1 << 20
HERE = HostResources(
    arch="x86_64",
    cpu_features=frozenset({"avx2", "sse2", "pti"}),
    missing=(),
    pid_limit=1 << 22,
    tasks=None,
    memory=40 * MEBIBYTE,
    free_memory=40 * MEBIBYTE,
    disks=(DiskSpace("/srv", 40 * MEBIBYTE, 40 * MEBIBYTE),),
    huge_pages=(),
)


def describe_blockers(
    tree: ImageTree, here: HostResources, recorded: tuple[str, ...] = ("avx2", "sse2"), largest: int = 9000
) -> str:
    """Return the only finding; empty if there is none."""
    planned = PlannedRestore(tree, CREATED, recorded, False, {}, "refuse", False, False, ("4.2.1", "4.2.1"))
    found = list(judge_requirements(planned, largest, here))
    assert len(found) <= 1
    assert "?" not in "".join(map(str, found))
    return "".join(f"{finding.key}: {finding}" for finding in found)


def of_core(tree: ImageTree, **changes: object) -> ImageTree:
    """Return the tree with the last thread of its last process changed."""
    last = tree.processes[-1]
    core: Core = replace(last.threads[-1].core, **changes)
    threads = (*last.threads[:-1], replace(last.threads[-1], core=core))
    return replace(tree, processes=(*tree.processes[:-1], replace(last, threads=threads)))


def with_vma(tree: ImageTree, status: int) -> ImageTree:
    """Return the tree with one more mapping in its root."""
    memory = tree.root.memory
    assert memory is not None
    more = replace(memory, vmas=(*memory.vmas, Vma(4096, 8192, 0, 0, 0, 0, status)))
    return replace(tree, processes=(replace(tree.root, memory=more), *tree.processes[1:]))


def test_suitable_host_lacks_nothing_that_a_restore_needs(tree: ImageTree) -> None:
    assert describe_blockers(tree, HERE) == ""


def test_missing_cpu_instructions_are_named(tree: ImageTree) -> None:
    blockers = describe_blockers(tree, HERE, recorded=("sse2", "avx512f", "amx_tile", "nopl", "retpoline"))
    assert blockers.startswith("cpu: this CPU lacks amx_tile, avx512f: ")


def test_restore_does_not_need_cpu_flags_set_by_the_kernel(tree: ImageTree) -> None:
    """The flags differ between kernel versions and options on the same machine."""
    assert (
        find_needed_features(tree, ("pti", "ibrs", "rep_good", "constant_tsc", "hypervisor", "user_shstk"))
        == frozenset()
    )


def test_unknown_cpu_features_are_not_reported_as_missing(tree: ImageTree) -> None:
    assert describe_blockers(tree, replace(HERE, cpu_features=frozenset())) == ""
    assert describe_blockers(tree, HERE, recorded=()) == ""


def test_shadow_stacks_need_a_cpu_with_them(tree: ImageTree) -> None:
    assert describe_blockers(with_vma(tree, SHADOW_STACK), HERE).startswith("cpu: this CPU lacks user_shstk: ")


def test_only_the_architecture_is_reported_for_images_of_another_one(tree: ImageTree) -> None:
    blockers = describe_blockers(of_core(tree, arch="aarch64"), replace(HERE, pid_limit=5))
    assert blockers.startswith("images-arch: the images are of aarch64, and this machine is x86_64: ")


def test_restore_of_an_id_above_the_pid_limit_is_refused(tree: ImageTree) -> None:
    assert describe_blockers(tree, replace(HERE, pid_limit=9001)) == ""
    blockers = describe_blockers(tree, replace(HERE, pid_limit=9000))
    assert blockers.startswith("pid-limit: PID 9000 is above the PID limit of this host: sysctl -w kernel.pid_max=")


def test_more_tasks_than_the_cgroup_allows_are_a_blocker(tree: ImageTree) -> None:
    count = len(tree.threads)
    assert count > len(tree.processes)
    assert describe_blockers(tree, replace(HERE, tasks=TasksLeft("/sys/fs/cgroup/a", count))) == ""
    blockers = describe_blockers(tree, replace(HERE, tasks=TasksLeft("/sys/fs/cgroup/a", count - 1)))
    assert (
        f"has {count} processes and threads, but control group /sys/fs/cgroup/a allows only {count - 1} more"
        in blockers
    )


def test_missing_memory_and_space_are_reported_with_numbers(tree: ImageTree) -> None:
    blockers = describe_blockers(tree, replace(HERE, free_memory=39 * MEBIBYTE))
    assert blockers.startswith("tree-memory: the tree needs 40 MiB of memory, but only 39 MiB are free: ")
    assert "but only 0.0 MiB are free" in describe_blockers(tree, replace(HERE, free_memory=-5))
    blockers = describe_blockers(
        tree, replace(HERE, disks=(*HERE.disks, DiskSpace("/run/x", 3 * MEBIBYTE, MEBIBYTE // 2)))
    )
    assert blockers.startswith(
        "restore-space: a restore writes 3.0 MiB to the file system of /run/x, which has only 0.5 MiB free"
    )


def test_too_few_reserved_huge_pages_are_a_blocker(tree: ImageTree) -> None:
    enough = HugePages(1 << 30, 2, 2)
    assert describe_blockers(tree, replace(HERE, huge_pages=(enough,))) == ""
    blockers = describe_blockers(tree, replace(HERE, huge_pages=(enough, HugePages(2 << 20, 4, 3))))
    assert blockers == (
        "huge-pages: the tree needs 4 reserved huge pages (2.0 MiB each), but only 3 are free: "
        "reserve more: /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    )
    assert "but only 0 are free" in describe_blockers(tree, replace(HERE, huge_pages=(HugePages(2 << 20, 4, -1),)))


@pytest.mark.parametrize(
    "need",
    [
        Need("no-address-family", "IPv6", socket.AF_INET6),
        Need("no-tcp-repair"),
        Need("no-tun"),
        Need("seccomp-again"),
        Need("no-guard-pages"),
        Need("security-module", "apparmor"),
    ],
    ids=lambda need: need.key,
)
def test_missing_kernel_needs_are_reported(tree: ImageTree, need: Need) -> None:
    here = replace(HERE, missing=(need,))
    assert describe_blockers(tree, here).startswith(f"{need.key}: ")


def test_time_namespace_difference_is_a_warning(planned_restore: PlannedRestore, host: HostState) -> None:
    here = replace(host, resources=replace(host.resources, missing=(Need("clocks-jump"),)))
    verdict = judge_restore(planned_restore, here)
    assert (verdict.blockers, [finding.key for finding in verdict.warnings]) == ((), ["clocks-jump"])


def asked(tree: ImageTree, *, names: frozenset[str] = frozenset(), keeps: bool = False) -> set[str]:
    found = kernel_needs(tree, names, keeps_connections=keeps)
    assert len(found) == len(set(found))
    return {need.key for need in found}


def test_kernel_needs_come_from_the_images(tree: ImageTree) -> None:
    assert tree.inet_sockets
    plain = replace(tree, files=tuple(file for file in tree.files if not isinstance(file, InetSocket)))
    assert asked(plain, keeps=True) == set()
    assert asked(of_core(plain, has_seccomp_filter=True)) == {"seccomp-again"}
    assert asked(with_vma(plain, GUARD)) == {"no-guard-pages"}
    assert asked(plain, names=NAMES | {"timens-0.img"}) == {"clocks-jump"}
    assert asked(replace(plain, files=(*plain.files, OtherFile(999, "tun device", 0)))) == {"no-tun"}
    packet = PacketSocket(999, "raw", 3, 0, 0)
    assert asked(replace(plain, files=(*plain.files, packet))) == {"no-address-family"}


def test_only_sockets_need_ipv6_and_repair(tree: ImageTree) -> None:
    four = tuple(file for file in tree.files if not isinstance(file, InetSocket) or file.family == INET)
    assert asked(tree) == {"no-address-family"}
    assert asked(replace(tree, files=four)) == set()
    assert asked(replace(tree, files=four), keeps=True) <= {"no-tcp-repair"}
    assert "no-tcp-repair" in asked(tree, keeps=True)


def test_security_profile_needs_its_module(tree: ImageTree) -> None:
    confined = of_core(tree, security_profile="usr.sbin.mysqld")
    assert asked(confined) == asked(tree), "the images say that there was no module"
    with_module = replace(confined, inventory=replace(tree.inventory, lsm=2))
    (need,) = set(kernel_needs(with_module, (), keeps_connections=False)) - set(
        kernel_needs(tree, (), keeps_connections=False)
    )
    assert (need.key, need.name) == ("security-module", "apparmor")
    assert asked(replace(tree, inventory=replace(tree.inventory, lsm=2))) == asked(tree), "nobody was confined"
