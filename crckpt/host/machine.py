"""The host, as a manifest records it."""

from __future__ import annotations

import mmap
import platform

from crckpt.host.probes.kernel import cpu_features
from crckpt.model import Host


def describe_host(criu_version: str, criu_digest: str) -> Host:
    """Describe this host, and the CRIU that makes the checkpoint."""
    return Host(
        hostname=platform.node(),
        kernel=platform.release(),
        arch=platform.machine(),
        page_size=mmap.PAGESIZE,
        cpu_features=cpu_features(),
        criu_version=criu_version,
        criu_digest=criu_digest,
    )
