"""Versions of programs."""

from __future__ import annotations

import re
from pathlib import Path

from crckpt.errors import HostCannot
from crckpt.host.process import run


def read_criu_version(criu: Path) -> str:
    """Read the number that `criu --version` prints. Raises HostCannot if CRIU does not start."""
    said = run.run([criu, "--version"])
    # `GitID: v4.2` may follow. A program of another name prints something else, also with status 0.
    found = re.search(r"Version: (\S+)", said.output)
    if not found:
        last = (said.output.strip().splitlines() or [f"status {said.status}"])[-1]
        raise HostCannot(f"{criu} is not CRIU: {last}" if said.ok else f"{criu} does not start: {last}")
    return found[1]
