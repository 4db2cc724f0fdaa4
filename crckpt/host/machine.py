"""The host, as a manifest records it, and the version of its CRIU."""

from __future__ import annotations

import mmap
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host.probes.kernel import cpu_features
from crckpt.host.process import run
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


# Of a shell for a program that it cannot execute or find, and of the loader for a library. Source: execve(2), ld.so.
_NOT_STARTED: Final = (126, 127)


def read_criu_version(criu: Path) -> str:
    """Read the number that `criu --version` prints. Raises HostCannot if it does not start, or is another program.

    The message begins with `it`: the caller names the program.
    """
    said = run.run([criu, "--version"])
    # `GitID: v4.2` may follow.
    if found := re.search(r"Version: (\S+)", said.output):
        return found[1]
    lines = said.output.strip().splitlines() or [f"status {said.status}"]
    # The loader's own complaint begins with the program that it cannot load, or ends with this status.
    is_started = said.ok or not (said.status in _NOT_STARTED or said.status < 0 or lines[0].startswith(f"{criu}:"))
    if is_started and said.output.strip():
        raise HostCannot(f"it is not CRIU: its --version says {lines[0]!r}")
    raise HostCannot("it is not CRIU: its --version says nothing" if said.ok else f"it does not start: {lines[-1]}")
