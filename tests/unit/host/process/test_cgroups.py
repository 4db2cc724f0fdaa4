"""The room left by limits of control groups, in handmade directories of version 1 and 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from crckpt.host.disk import space
from crckpt.host.process import cgroups
from crckpt.host.process.cgroups import parse_cgroups

BOTH_CGROUP_VERSIONS = "4:memory:/outer/inner\n3:pids:/outer/inner\n0::/\n"
CGROUP_VERSION_2 = "0::/outer/inner\n"


def write(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name.replace("_", ".", 1)).write_text(content)


@pytest.fixture(params=["memory", ""], ids=["v1", "v2"])
def own_group(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of our group, without any limit yet."""
    _in_group(monkeypatch, tmp_path, BOTH_CGROUP_VERSIONS if request.param else CGROUP_VERSION_2)
    directory = tmp_path / "fs" / str(request.param) / "outer/inner"
    directory.mkdir(parents=True)
    return directory


def _in_group(monkeypatch: pytest.MonkeyPatch, place: Path, text: str) -> None:
    """Let crckpt read `said` of its own groups, and find their files below `fs`."""
    # A real kernel has one version only for each controller, and says nothing of the other.
    monkeypatch.setattr(cgroups, "read_cgroups", lambda _pid: parse_cgroups(text.splitlines()))
    monkeypatch.setattr(cgroups, "_MOUNTS", place / "fs")


def limit_memory(group: Path, most: str, used: str) -> None:
    stat = "anon 1000\nactive_file 500\ninactive_file 300\n"
    if "fs/memory" in str(group):
        totals = stat.replace("active", "total_active").replace("intotal_active", "total_inactive")
        write(group, memory_limit_in_bytes=most.replace("max", str(1 << 62)), memory_usage_in_bytes=used)
        write(group, memory_stat=stat.replace("500", "7") + totals)
    else:
        write(group, memory_max=most, memory_current=used, memory_stat=stat)


def test_control_groups_without_limits_leave_memory_and_tasks_unlimited(own_group: Path) -> None:
    assert list(cgroups.memory_left()) == []
    assert cgroups.tasks_left() is None
    assert space.free_memory() > 1 << 20


def test_page_cache_of_a_control_group_counts_as_free_memory(own_group: Path) -> None:
    limit_memory(own_group, "2000", "1900")
    assert list(cgroups.memory_left()) == [900]
    assert space.free_memory() == 900


def test_memory_left_is_that_of_the_control_group_with_the_tightest_limit(own_group: Path) -> None:
    limit_memory(own_group, "9000", "1900")
    limit_memory(own_group.parent, "3000", "2900")
    assert space.free_memory() == 900


def test_allowed_swap_of_a_control_group_counts_as_free_memory(own_group: Path) -> None:
    limit_memory(own_group, "2000", "1900")
    assert list(cgroups.memory_left(swap=5000)) == [5900]
    (own_group / "memory.swap.max").write_text("100\n")
    (own_group / "memory.swap.current").write_text("30\n")
    assert list(cgroups.memory_left(swap=5000)) == [970]


def test_number_of_pids_left_is_that_of_the_control_group_with_the_tightest_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_group(monkeypatch, tmp_path, BOTH_CGROUP_VERSIONS)
    write(tmp_path / "fs/pids", pids_max="max", pids_current="70")
    write(tmp_path / "fs/pids/outer", pids_max="100", pids_current="60")
    write(tmp_path / "fs/pids/outer/inner", pids_max="90", pids_current="40")
    assert cgroups.tasks_left() == cgroups.TasksLeft(str(tmp_path / "fs/pids/outer"), 40)


@pytest.mark.parametrize("path", ["/../../etc", "/a/../..", "a", "", "/./a", "/nowhere-at-all"])
def test_path_outside_the_control_groups_has_no_directory(path: str) -> None:
    assert cgroups.group_directory("pids", path) is None
    assert cgroups.group_directory("", path) is None
    assert cgroups.group_directory("../../etc", "/") is None
