"""The description of this host in a manifest."""

from __future__ import annotations

import os
from pathlib import Path

from crckpt.host import machine


def test_description_of_the_host_matches_the_kernel() -> None:
    found = machine.describe_host("4.2.1", "ab" * 32)
    system = os.uname()
    assert (found.hostname, found.kernel, found.arch) == (system.nodename, system.release, system.machine)
    assert found.page_size == os.sysconf("SC_PAGE_SIZE")
    assert (found.criu_version, found.criu_digest) == ("4.2.1", "ab" * 32)
    listed = Path("/proc/cpuinfo").read_text()
    assert found.cpu_features
    assert list(found.cpu_features) == sorted(found.cpu_features)
    assert all(f" {feature}" in listed for feature in found.cpu_features)
