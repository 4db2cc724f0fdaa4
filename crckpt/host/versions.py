"""Versions of programs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host.process import run

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
