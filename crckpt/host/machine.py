"""This machine: what a manifest remembers of the host, and clocks."""

from __future__ import annotations

import mmap
import platform
from pathlib import Path

from crckpt.model import Host


def host(criu_version: str, criu_digest: str) -> Host:
    """This host, with the CRIU that makes the checkpoint."""
    return Host(
        hostname=platform.node(),
        kernel=platform.release(),
        arch=platform.machine(),
        page_size=mmap.PAGESIZE,
        cpu_features=_cpu_features(),
        criu_version=criu_version,
        criu_digest=criu_digest,
    )


def _cpu_features() -> tuple[str, ...]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return tuple(sorted(value.split()))
    return ()
