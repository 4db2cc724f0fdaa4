"""What a rehearsal cannot give. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

REHEARSAL = (
    Cause(
        "namespace-rehearsed",
        "the tree has a {kind} namespace of its own, which cannot be made a second time inside another",
        "look whether it can be restored: crckpt restore REF --dry-run",
    ),
    Cause(
        "interface-rehearsed",
        "a socket of the tree ({socket}) is bound to the interface {interface}, which a rehearsal does not have",
        "look whether it can be restored: crckpt restore REF --dry-run",
    ),
    Cause(
        "terminal-rehearsed",
        "the tree was started from a terminal and wants one, which a rehearsal does not have",
        "look whether it can be restored: crckpt restore REF --dry-run",
    ),
    Cause(
        "memory-rehearsed",
        "a rehearsal takes about {needed} of memory ({memory} of the tree, {files} of files that it has open for "
        "writing), and {free} are free",
        "end something else, or rehearse it on a larger machine",
    ),
    Cause(
        "file-cut-rehearsed",
        "{path} grew since the checkpoint; in the rehearsal, and only there, it is cut back to {size} bytes",
        "a restore needs --grown",
    ),
)
