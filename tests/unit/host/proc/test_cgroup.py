"""Control groups of processes, of version 1 and 2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_programs import free_pid

from crckpt.host.process.cgroups import parse_cgroups, read_cgroups


def test_cgroup_names_may_have_colons() -> None:
    lines = ["4:cpu,cpuacct:/a:b/c", "1:name=systemd:/", "0::/user.slice/:x"]
    assert parse_cgroups(lines) == (("cpu,cpuacct", "/a:b/c"), ("name=systemd", "/"), ("", "/user.slice/:x"))


def test_own_cgroups_match_proc() -> None:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    found = read_cgroups(os.getpid())
    assert read_cgroups("self") == found
    assert [f"{controllers}:{path}" for controllers, path in found] == [line.split(":", 1)[1] for line in lines]
    assert found


def test_ended_process_has_no_cgroups() -> None:
    with pytest.raises(OSError, match="No such"):
        read_cgroups(free_pid())
