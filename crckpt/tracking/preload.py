"""The library that lets CRIU's own incremental dumps run on write protection (preload.c), and how a CRIU gets it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from crckpt.host import run

LIBRARY: Final = Path(__file__).with_name("libpreload.so")
"""Compiled from preload.c when the package is built."""


def refusal(criu: Path) -> str:
    """Why this CRIU does not track with the library, found by asking it, and what to do about it; or nothing."""
    if not LIBRARY.exists():
        return "crckpt was installed without a C compiler: install gcc and libc6-dev, then crckpt again"
    words = (f"{name}={value}" for name, value in environment(criu).items())
    said = run.run(["env", *words, criu, "check", "--feature", "mem_dirty_track"])
    if said.ok:
        return ""
    reason = (said.output.strip().splitlines() or [f"status {said.status}"])[-1]
    return f"{criu} does not take crckpt's preload library: {reason}"


def environment(criu: Path) -> Mapping[str, str]:
    """What to add to this CRIU's environment for a dump that tracks."""
    # The script of a private prefix hands it to its own loader: not to the shell that runs it.
    with criu.open("rb") as file:
        is_script = file.read(2) == b"#!"
    return {"CRCKPT_CRIU_PRELOAD" if is_script else "LD_PRELOAD": str(LIBRARY)}
