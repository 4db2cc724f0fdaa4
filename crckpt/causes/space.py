"""Too little disk space or memory for a dump. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

SPACE = (
    Cause(
        "disk",
        "the images of the tree take about {needed}, and {directory} has {free} free",
        "free space (crckpt rm, crckpt gc), or let them lie elsewhere: --staging DIR",
    ),
    Cause("store-read-only", "{directory} lies on a read-only mount", "name another place: --store DIR, --staging DIR"),
    Cause(
        "memory",
        "the dump takes about {needed} of memory, and {free} are free (images go to {directory})",
        "end something else, or let the images lie on a disk: --staging DIR",
    ),
)
