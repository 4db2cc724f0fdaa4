"""The restore that is planned: what the checkpoint knows and what the user chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct

from crckpt.images.tree import ImageTree

Grown = Literal["refuse", "keep", "rewind"]
"""What to do with files that only grew since the checkpoint, and with logs that were rotated."""

Written = Literal["refuse", "keep"]
"""What to do with files that the program writes in place, and that somebody wrote since the checkpoint."""

TerminalChoice = Literal["ours", "new", "null", "file"]
"""What a tree gets in the place of a terminal outside it: our terminal, a new one, nothing, or a file."""


class PlannedRestore(Struct, frozen=True):
    """A planned restore: what the checkpoint knows and what the user chose.

    - `append_sizes`: the sizes of files opened for appending, which CRIU does not record
    - `inodes`, `owners`: the inodes and owners of the tree's files, by path; `heads`, `times`: of those that it writes,
      digests of the first bytes, and when they were written last; not known of an imported checkpoint, or one of an
      older crckpt
    - `cpu_features`: the features of the CPU of the dump
    - `keeps_connections`: TCP connections continue
    - `crius`: the versions of the CRIU that dumped it and of the CRIU that restores it
    - `cpu_seconds`: the CPU time that the tree had used; not known of an older checkpoint
    - `closed_pipes`: inodes of pipes of which nobody had the other end; not known of a checkpoint that was imported, or
      made by an older crckpt
    - `sockets`: which of our descriptors for the tree's output, 1 and 2, are sockets
    - `terminal_owner`: the user who owns the terminal that the tree gets; None if the owner does not matter
    - `tty`: what the tree gets in the place of its terminal
    - `is_rehearsal`: what it writes to files is lost with it
    - `still_runs`: the tree runs on, and goes on writing its files: this only checks
    - `shares_kernel`: it still is on another host with this kernel, maybe in the same directories
    - `may_have_consoles`: the owner of a console that the tree had open does not matter
    """

    tree: ImageTree
    created: datetime
    cpu_features: tuple[str, ...]
    keeps_connections: bool
    append_sizes: dict[str, int]
    grown: Grown
    new_pid_namespace: bool
    has_terminal: bool
    crius: tuple[str, str]
    closed_pipes: frozenset[int] = frozenset()
    is_orphan: bool = False
    sockets: frozenset[int] = frozenset()
    terminal_owner: int | None = None
    may_have_consoles: bool = False
    tty: TerminalChoice = "ours"
    still_runs: bool = False
    shares_kernel: bool = False
    written: Written = "refuse"
    is_rehearsal: bool = False
    inodes: Mapping[str, frozenset[int]] = {}
    owners: Mapping[str, Sequence[int]] = {}
    heads: Mapping[str, str] = {}
    times: Mapping[str, float] = {}
    cpu_seconds: float = 0
