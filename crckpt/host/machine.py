"""The host, as a manifest records it."""

from __future__ import annotations

import mmap
import platform
from contextlib import suppress
from pathlib import Path

from crckpt.host.probes.kernel import cpu_features
from crckpt.model import Host


def read_machine_id() -> str:
    """Read what identifies this installation (machine-id(5)); empty if there is none."""
    with suppress(OSError):
        return Path("/etc/machine-id").read_text(errors="replace").strip()[:64]
    return ""


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
