"""Return the versions of crckpt and CRIU as text."""

from __future__ import annotations

import os

from crckpt import __version__
from crckpt.criu.cache import candidates, recall
from crckpt.errors import HostCannot


def version() -> str:
    """Return two lines: crckpt's version, and version and path of the CRIU that crckpt would use, as far as known.

    It tries no CRIU out: one that has not been tried here is marked as `not tried yet`.
    """
    lines = [f"crckpt {__version__}"]
    present = [candidate for candidate in candidates(None, None) if os.access(candidate.path, os.X_OK)]
    # These are in the order in which a dump tries them: it takes the first that has worked before.
    known = ((candidate.path, recall(candidate.path)) for candidate in present)
    for path, facts in known:
        if facts:
            return "\n".join([*lines, f"CRIU {facts.version} ({path})"])
    # Only if none is remembered: what starts programs is slow to load.
    from crckpt.host.machine import read_criu_version

    for candidate in present:
        try:
            return "\n".join([*lines, f"CRIU {read_criu_version(candidate.path)} ({candidate.path}, not tried yet)"])
        except HostCannot:
            continue
    return "\n".join([*lines, "CRIU not found (install it: crckpt install-criu)"])
