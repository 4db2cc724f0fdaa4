"""Disk space and memory for a dump. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

SPACE = (
    Cause(
        "disk",
        "the images of the tree need about {needed}, but {directory} has only {free} free",
        "free space (crckpt rm, crckpt gc), or put the images elsewhere: --staging DIR",
    ),
    Cause(
        "store-read-only", "{directory} is on a read-only mount", "use another directory: --store DIR, --staging DIR"
    ),
    Cause(
        "memory",
        "the dump needs about {needed} of memory, but only {free} are free (images go to {directory})",
        "end another program, or put the images on a disk: --staging DIR",
    ),
)
