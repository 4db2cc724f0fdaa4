"""Return the versions of crckpt and CRIU as text."""

from __future__ import annotations

import os
from contextlib import suppress

from crckpt import __version__
from crckpt.criu.candidates import candidates, recall
from crckpt.errors import HostCannot


def version() -> str:
    """Return two lines: crckpt's version, and version and path of the CRIU that crckpt would use, as far as known.

    It tries no CRIU out: one that has not been tried here is marked as `not tried yet`.
    """
    crckpt = f"crckpt {__version__}\n"
    present = [each.path for each in candidates(None, None) if os.access(each.path, os.X_OK)]
    # These are in the order in which a dump tries them: it takes the first that has worked before.
    for path in present:
        if facts := recall(path):
            return f"{crckpt}CRIU {facts.version} ({path})"
    # Only if none is remembered: what starts programs is slow to load.
    from crckpt.host.machine import read_criu_version

    for path in present:
        with suppress(HostCannot):
            return f"{crckpt}CRIU {read_criu_version(path)} ({path}, not tried yet)"
    return f"{crckpt}CRIU not found (install it: crckpt install-criu)"
