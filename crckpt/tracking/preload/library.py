"""The preload libraries of CRIU: their files, the environment that loads them, and whether a CRIU loads them.

That for a dump keeps system calls from being interrupted (restart.c), and enters the mounts of a tree (enter.c). If the
dump tracks, it stops CRIU before CRIU resets what was written (gate.c), and answers by write protection
(written_pages.c).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt import __version__
from crckpt.causes.releases import find_release
from crckpt.errors import HostCannot
from crckpt.host.machine import read_criu_version
from crckpt.host.process import run
from crckpt.model import criu_release

LIBRARY: Final = Path(__file__).with_name("libpreload.so")
"""For dumps. scripts/build-preload compiles it when the package is built."""
RESTORE_LIBRARY: Final = LIBRARY.with_name("librestore.so")
"""For restores."""
ENTERED: Final = "crckpt's preload: entered the mounts of the tree"
"""The library writes this to CRIU's stderr when CRIU has entered the mounts."""
NO_TRACKER: Final = "no tracker of this name"
_SAFE: Final = (4, 2, 1)
_SYSCALL_INFO: Final = (5, 3)  # the kernel of PTRACE_GET_SYSCALL_INFO
_NO_PID: Final = "no PID was given"
NO_LIBRARY: Final = (
    "crckpt was installed without a C compiler: apt-get install gcc libc6-dev, then install crckpt again"
)


def find_enter_refusal(criu: Path) -> str:
    """Return why this CRIU does not enter mounts with the library, or an empty string."""
    if not LIBRARY.exists():
        return NO_LIBRARY
    # The library refuses PID 0: only its message shows that it was loaded.
    words = dump_words(criu, enter=0)
    if _NO_PID in run.run([*words, criu, "check", "--no-default-config", "--feature", "mem_dirty_track"]).output:
        return ""
    return f"{criu} does not load crckpt's preload library; install one that does: crckpt install-criu"


def check_feature(criu: Path, tracker: str) -> run.Finished:
    """Run `criu check` with the library, for the tracker of this name."""
    words = (f"{name}={value}" for name, value in environment(criu, tracker).items())
    return run.run(["env", *words, criu, "check", "--no-default-config", "--feature", "mem_dirty_track"])


def read_release(criu: Path) -> tuple[int, int] | None:
    """Return the release of CRIU that this program reports; None if it reports none."""
    with suppress(HostCannot):
        return criu_release(read_criu_version(criu))
    return None


def lets_programs_take_over(version: str) -> bool:
    """Return whether programs can take control of what a CRIU of this version runs in them (CVE-2026-18107)."""
    # The library keeps every CRIU from that. One that a distribution has repaired may say an older number.
    return not restarts_calls() and (find_release(f"Version: {version}") or _SAFE) < _SAFE


def restarts_calls() -> bool:
    """Return whether a dump leaves system calls uninterrupted: crckpt was installed with a C compiler, for x86-64."""
    return LIBRARY.exists() and os.uname().machine == "x86_64"


def dump_words(criu: Path, *, enter: int | None = None) -> tuple[str, ...]:
    """Return the words before CRIU's for a dump that tracks nothing; it may `enter` that process's mounts."""
    if not LIBRARY.exists():
        return ()
    return ("env", f"{_variable(criu)}={LIBRARY}", *((f"CRCKPT_ENTER={enter}",) if enter is not None else ()))


def makes_last_calls() -> bool:
    """Return whether the library for restores sets what CRIU must not set (last_calls.c)."""
    kernel = re.match(r"(\d+)\.(\d+)", os.uname().release)
    has_requests = kernel is not None and tuple(map(int, kernel.groups())) >= _SYSCALL_INFO
    return RESTORE_LIBRARY.exists() and os.uname().machine == "x86_64" and has_requests


def restore_words(criu: Path, holders: Path, last_calls: Path) -> tuple[str, ...]:
    """Return the words before CRIU's for a restore.

    `holders` is the file that says whose things are made, `last_calls` says what is done before the tree runs.
    """
    if not RESTORE_LIBRARY.exists():
        return ()
    files = (f"CRCKPT_HOLDERS={holders}", f"CRCKPT_LAST_CALLS={last_calls}")
    return ("env", f"{_variable(criu)}={RESTORE_LIBRARY}", *files)


def environment(criu: Path, tracker: str) -> Mapping[str, str]:
    """Return what to add to this CRIU's environment for a dump that tracks by the tracker of this name."""
    return {_variable(criu): str(LIBRARY), "CRCKPT_TRACKER": tracker}


def _variable(criu: Path) -> str:
    # The script of a private prefix passes the library to its own loader, and must not load it into its shell.
    with criu.open("rb") as file:
        is_script = file.read(2) == b"#!"
    return "CRCKPT_CRIU_PRELOAD" if is_script else "LD_PRELOAD"


def identity(criu: Path) -> str:
    """Return a digest of this crckpt, its library and this CRIU: it changes when one of them is replaced."""
    # OpenSSL is slow to load, and most dumps do not need it while the tree is frozen.
    import hashlib

    found = criu.stat()
    facts = (__version__, str(LIBRARY), str(criu), str(found.st_ino), str(found.st_mtime_ns), str(found.st_size))
    library = LIBRARY.read_bytes() if LIBRARY.exists() else b""
    return hashlib.sha256("\n".join(facts).encode() + library).hexdigest()
