"""Transactions: directories for what is in flight, each with the name of its owner."""

from __future__ import annotations

import os
import platform
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from crckpt.host.disk.checked_files import is_directory
from crckpt.host.disk.files import PRIVATE_DIRECTORY, make_private_directory, own_name, remove_tree
from crckpt.host.process.signals import interrupts_deferred
from crckpt.store.process_identity import read_identity, write_identity

STAGING = "staging"
"""The link in a transaction to where its images are, if they are not in the store."""

_STAGED = "crckpt-"
_OWNER = "owner.json"


class Transaction(Struct, frozen=True):
    """A private directory on the store's file system, gone when the transaction ends."""

    path: Path


@contextmanager
def transaction(directory: Path, prefix: str = "") -> Iterator[Transaction]:
    """A new transaction in `directory`, removed with all that is in it when the block ends."""
    path = directory / f"{prefix}{own_name()}"
    try:
        make_private_directory(path, "transaction")
        write_identity(path / _OWNER, time.time(), "owner")
        yield Transaction(path)
    except BaseException:
        with interrupts_deferred():
            _remove(path)
            raise
    with interrupts_deferred():
        _remove(path)


@contextmanager
def handed_over(directory: Path, pid: int, *, outside: bool = False) -> Iterator[Path]:
    """A new directory in `directory`, which process `pid` of ours is to remove; `outside` if that is not the store's.

    If the block fails it is removed here: the process does not know of it yet. If the process is killed, it is as that
    of any owner that has ended.
    """
    path = directory / f"{_STAGED if outside else ''}{own_name()}"
    try:
        make_private_directory(path, "transaction")
        write_identity(path / _OWNER, time.time(), "owner", pid=pid)
        yield path
    except BaseException:
        _remove(path)
        raise


def _remove(path: Path) -> None:
    # What cannot be removed now is removed by gc: it must not hide how the transaction ended.
    with suppress(OSError):
        remove_tree(path, "transaction")


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """A private directory in one that is not the store's, removed with all that is in it when the block ends.

    What crckpts that were killed have left there is removed first.
    """
    for path in directory.glob(f"{_STAGED}*"):
        if _is_abandoned(path):
            _remove(path)
    with transaction(directory, _STAGED) as begun:
        yield begun.path


def abandoned_staging(path: Path) -> tuple[Path, ...]:
    """What a dead transaction has left in a directory that is not the store's: where its link `staging` leads.

    Anybody can make such a link. So the directory must name the same process as the transaction does.
    """
    link = path / STAGING
    if not is_directory(path) or not link.is_symlink():
        return ()
    staging, owner = link.readlink(), read_identity(path / _OWNER)
    if owner is None or not staging.is_absolute() or not _is_abandoned(staging):
        return ()
    its = read_identity(staging / _OWNER)
    return (staging,) if its is not None and its.is_same(owner) else ()


def _is_abandoned(path: Path) -> bool:
    """Whether it was staged by a crckpt of ours that is dead. Others may write beside it: it must be private to us."""
    try:
        found = path.lstat()
    except OSError:
        return False
    if not path.name.startswith(_STAGED) or found.st_uid != os.geteuid():
        return False
    if not stat.S_ISDIR(found.st_mode) or stat.S_IMODE(found.st_mode) != PRIVATE_DIRECTORY:
        return False
    owner = read_identity(path / _OWNER)
    # Of another host nobody knows here whether it lives.
    return owner is not None and owner.host == platform.node() and not owner.is_alive


def dead_transactions(directory: Path) -> tuple[Path, ...]:
    """Those whose owner has ended. To be asked by whoever holds the store's lock alone: then no new one begins."""
    paths = sorted(directory.iterdir())
    # What is no directory has no owner, and is not looked into.
    owners = ((path, read_identity(path / _OWNER) if is_directory(path) else None) for path in paths)
    return tuple(path for path, owner in owners if owner is None or not owner.is_alive)
