"""Which crckpt and which CRIU."""

from __future__ import annotations

import os

from crckpt import __version__
from crckpt.criu.cache import candidates, recall
from crckpt.errors import HostCannot


def version() -> str:
    """Two lines: crckpt's version, and the version and path of the CRIU that it would use, as far as that is known.

    No trial is made for this: a CRIU that never worked here is named as not tried yet.
    """
    lines = [f"crckpt {__version__}"]
    present = [candidate for candidate in candidates(None, None) if os.access(candidate.path, os.X_OK)]
    known = ((candidate.path, recall(candidate.path)) for candidate in present)
    for path, facts in known:
        if facts:
            return "\n".join([*lines, f"CRIU {facts.version} ({path})"])
    # Only where none is remembered: what starts programs takes its time to load.
    from crckpt.host.versions import version_of

    for candidate in present:
        try:
            return "\n".join([*lines, f"CRIU {version_of(candidate.path)} ({candidate.path}, not tried yet)"])
        except HostCannot:
            continue
    return "\n".join([*lines, "CRIU not found (scripts/install-criu gets one)"])
