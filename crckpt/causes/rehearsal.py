"""The obstacles to a rehearsal, and how it differs from a restore. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

REHEARSAL = (
    Cause(
        "namespace-rehearsed",
        "the tree has its own {kind} namespace, and a rehearsal cannot nest another one",
        "check whether it can be restored: crckpt restore REF --dry-run",
    ),
    Cause(
        "interface-rehearsed",
        "a socket of the tree ({socket}) is bound to the interface {interface}, which a rehearsal does not have",
        "check whether it can be restored: crckpt restore REF --dry-run",
    ),
    Cause(
        "terminal-rehearsed",
        "the tree was started from a terminal and needs one, which a rehearsal does not have",
        "check whether it can be restored: crckpt restore REF --dry-run",
    ),
    Cause(
        "memory-rehearsed",
        "a rehearsal needs about {needed} of memory ({memory} for the tree, {files} for files that it has open for "
        "writing), but only {free} are free",
        "end another program, or rehearse it on a larger machine",
    ),
    Cause(
        "file-cut-rehearsed",
        "{path} grew since the checkpoint; this rehearsal cuts its copy back to {size} bytes",
        "a restore needs --grown",
    ),
)
