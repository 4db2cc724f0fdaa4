"""Disk space and memory for a dump. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

SPACE = (
    Cause(
        "disk",
        "the images of the tree need about {needed}, but {directory} has only {free} free",
        "free space (crckpt rm, crckpt gc), or use a store on a larger disk: --store DIR; if the store has space for "
        "what a checkpoint adds to it, put only the images elsewhere: --staging DIR",
    ),
    Cause(
        "store-small",
        "the images of the tree and what the checkpoint adds to the store need about {needed}, but {directory} has "
        "only {free} free",
        "free space (crckpt rm, crckpt gc), or use a store on a larger disk: --store DIR",
    ),
    Cause(
        "store-growth",
        "the checkpoint adds about {needed} to the store, but {directory} has only {free} free",
        "free space (crckpt rm, crckpt gc), or use a store on a larger disk: --store DIR",
    ),
    Cause(
        "staging-small",
        "the images of the tree need about {needed}, but {directory} has only {free} free",
        "free space there, or name another directory: --staging DIR",
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
