"""Disk space and memory for a dump. Pure."""

from __future__ import annotations

from typing import Final

from crckpt.causes.cause import Cause

_LARGER_STORE: Final = "free space (crckpt rm, crckpt gc), or use a store on a larger disk: --store DIR"
_OTHER_STAGING: Final = "free space there, or name a directory on a larger disk: --staging DIR"
_BOTH_NEED: Final = (
    "a dump needs about {needed} ({images} of images until the checkpoint is stored, and {growth} that it adds to the "
    "store), but {directory} has only {free} free"
)

SPACE = (
    Cause(
        "disk",
        _BOTH_NEED,
        f"{_LARGER_STORE}; or put the images on another disk: --staging DIR",
    ),
    Cause("store-small", _BOTH_NEED, _LARGER_STORE),
    Cause(
        "store-growth",
        "the checkpoint adds about {growth} to the store, but {directory} has only {free} free",
        _LARGER_STORE,
    ),
    Cause(
        "disk-tight",
        f"the disk of the store will probably be full during the dump: {_BOTH_NEED}",
        f"{_LARGER_STORE}; or put the images on another disk: --staging DIR",
    ),
    Cause(
        "store-tight",
        "the store will probably be full during the dump: the checkpoint adds about {growth}, but {directory} has only "
        "{free} free",
        _LARGER_STORE,
    ),
    Cause(
        "file-size-limit",
        "crckpt may write files of {limit} at most (ulimit -f), and the images of the tree need about {images}",
        "raise the limit: ulimit -f unlimited; or run crckpt with CAP_SYS_RESOURCE, which lifts it",
    ),
    Cause(
        "staging-small",
        "the images of the tree need about {images}, but {directory} has only {free} free",
        _OTHER_STAGING,
    ),
    Cause("store-full", "no space is left in {directory}, the store", _LARGER_STORE),
    Cause("staging-full", "no space is left in {directory}, the directory for images", _OTHER_STAGING),
    Cause(
        "store-read-only",
        "{directory} cannot be written (a read-only mount, or no permission)",
        "use another directory: --store DIR, --staging DIR",
    ),
    Cause(
        "memory",
        "the dump needs about {needed} of memory, but only {free} are free (images go to {directory})",
        "end another program, or put the images on a disk: --staging DIR",
    ),
)
