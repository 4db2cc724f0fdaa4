"""Rules of the packet filter that match a control group."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from control_groups import make_group

from crckpt.host.network.packet_filter import read_packet_rules
from crckpt.host.process.cgroups import group_directory

pytestmark = pytest.mark.skipif(shutil.which("nft") is None, reason="there is no nft")


def test_packet_rules_added_after_a_dump_are_seen_by_the_next() -> None:
    """One process may make many dumps: `migrate --all`, or a service."""
    above = group_directory("", "/")
    if above is None:
        pytest.skip("there are no control groups of version 2")
    group = make_group(above)
    name = str(group.relative_to("/sys/fs/cgroup"))
    rule = f'socket cgroupv2 level 1 "{name}" counter'
    try:
        assert f"packets of {group.name}" not in find(group)
        chain = f"chain sent {{ type filter hook output priority 0\n{rule}\n}}"
        subprocess.run(("nft", f"table inet groups {{\n{chain}\n}}"), check=True)
        assert f"packets of {group.name}" in find(group)
    finally:
        subprocess.run(("nft", "delete", "table", "inet", "groups"), check=False)
        group.rmdir()


def find(group: Path) -> dict[str, int]:
    """Find what the group restricts."""
    return read_packet_rules().find_restrictions("", f"/{group.name}")
