"""The library that CRIU gets for a dump.

It keeps system calls from being interrupted (restart.c), and enters the mounts of a tree (enter.c). In a dump that
tracks it stops CRIU before CRIU resets what was written, and lets it do so on write protection (preload.c).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt import __version__
from crckpt.errors import HostCannot
from crckpt.host.process import run
from crckpt.host.versions import read_criu_version
from crckpt.model import criu_release

LIBRARY: Final = Path(__file__).with_name("libpreload.so")
"""Compiled from preload.c and its neighbours when the package is built."""


RESTORE_LIBRARY: Final = LIBRARY.with_name("librestore.so")
"""Compiled from links.c, ghosts.c, trusted.c and sockets.c: what CRIU gets for a restore."""
ENTERED: Final = "crckpt's preload: entered the mounts of the tree"
"""What the library writes to CRIU's stderr when CRIU is where it was to go."""
_NO_TRACKER: Final = "no tracker of this name"
_NO_PID: Final = "no PID was given"
_NO_LIBRARY: Final = "crckpt was installed without a C compiler: install gcc and libc6-dev, then crckpt again"


def refusal(criu: Path, tracker: str) -> str:
    """Why this CRIU does not track with the library, found by asking it, and what to do about it; or nothing.

    Where the kernel tracks, CRIU would do without it. It is not let: what writes unseen in its freeze would be missed.
    """
    if not LIBRARY.exists():
        return _NO_LIBRARY
    # Where the kernel has the bits CRIU says yes without the library too, which shows by what it refuses.
    if _NO_TRACKER not in _asked(criu, "").output:
        reason = "it runs without it"
    elif (said := _asked(criu, tracker)).ok:
        return ""
    else:
        reason = (said.output.strip().splitlines() or [f"status {said.status}"])[-1]
    return f"{criu} does not take crckpt's preload library: {reason}"


def why_not_entering(criu: Path) -> str:
    """Say why this CRIU does not enter mounts with the library, found by asking it; or nothing."""
    if not LIBRARY.exists():
        return _NO_LIBRARY
    words = untracked_words(criu, enter=0)
    if _NO_PID in run.run([*words, criu, "check", "--no-default-config", "--feature", "mem_dirty_track"]).output:
        return ""
    return f"{criu} does not take crckpt's preload library: see scripts/install-criu for one that does"


def _asked(criu: Path, tracker: str) -> run.Finished:
    words = (f"{name}={value}" for name, value in environment(criu, tracker).items())
    return run.run(["env", *words, criu, "check", "--no-default-config", "--feature", "mem_dirty_track"])


def release_of(criu: Path) -> tuple[int, int] | None:
    """Which release of CRIU it says that it is; None if it says none."""
    with suppress(HostCannot):
        return criu_release(read_criu_version(criu))
    return None


def restarts_calls() -> bool:
    """Whether a dump leaves system calls uninterrupted: crckpt was installed with a C compiler, for x86-64."""
    return LIBRARY.exists() and os.uname().machine == "x86_64"


def untracked_words(criu: Path, *, enter: int | None = None) -> tuple[str, ...]:
    """What comes before the command line of this CRIU for a dump that tracks nothing; none without the library.

    With `enter` CRIU enters the mounts of the process that it knows by that PID (enter.c).
    """
    if not LIBRARY.exists():
        return ()
    return ("env", f"{_variable(criu)}={LIBRARY}", *((f"CRCKPT_ENTER={enter}",) if enter is not None else ()))


def restore_words(criu: Path) -> tuple[str, ...]:
    """What comes before the command line of this CRIU for a restore (trusted.c); none without the library."""
    return ("env", f"{_variable(criu)}={RESTORE_LIBRARY}") if RESTORE_LIBRARY.exists() else ()


def environment(criu: Path, tracker: str) -> Mapping[str, str]:
    """What to add to this CRIU's environment for a dump that tracks by the tracker of this name."""
    return {_variable(criu): str(LIBRARY), "CRCKPT_TRACKER": tracker}


def _variable(criu: Path) -> str:
    # The script of a private prefix hands it to its own loader: not to the shell that runs it.
    with criu.open("rb") as file:
        is_script = file.read(2) == b"#!"
    return "CRCKPT_CRIU_PRELOAD" if is_script else "LD_PRELOAD"


def identity(criu: Path) -> str:
    """What stands for this crckpt, its library, and this CRIU: it differs when one of them was exchanged."""
    # OpenSSL takes its time: not every dump needs it before the tree runs again.
    import hashlib

    found = criu.stat()
    told = (__version__, str(LIBRARY), str(criu), str(found.st_ino), str(found.st_mtime_ns), str(found.st_size))
    library = LIBRARY.read_bytes() if LIBRARY.exists() else b""
    return hashlib.sha256("\n".join(told).encode() + library).hexdigest()
