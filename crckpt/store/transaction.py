"""Transactions: directories for what is in flight, each with a record of the process that owns it."""

from __future__ import annotations

import os
import platform
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.host.disk.checked_files import is_directory
from crckpt.host.disk.files import PRIVATE_DIRECTORY, make_private_directory, own_name, remove_tree
from crckpt.host.proc.live_root import identify_log
from crckpt.host.proc.procfs import pids
from crckpt.host.process.orphans import end_unfinished_trees
from crckpt.host.process.signals import interrupts_deferred
from crckpt.store.owner import read_owner, write_owner

RESTORE_LOG = "restore.log"
"""CRIU's log in the transaction of a restore."""

STAGING = "staging"
"""The link in a transaction to where its images are, if they are not in the store."""

# In a directory that is not the store's, crckpt removes nothing without this prefix.
_STAGED = "crckpt-"
_OWNER = "owner.json"
_BUILDER = "builder.json"


@contextmanager
def transaction(directory: Path, *, outside: bool = False) -> Iterator[Path]:
    """Make a private directory in `directory`; at the end of the block it is removed with all that is in it.

    `outside` as for `handed_over`.
    """
    with handed_over(directory, outside=outside) as path:
        yield path
    with interrupts_deferred():
        _remove(path)


def record_builder(path: Path, pid: int) -> None:
    """Record the CRIU that builds a tree in a transaction: then what it leaves when it is killed can be found."""
    # Restoring must also work on a full disk.
    with suppress(OSError, HostCannot):
        write_owner(path / _BUILDER, time.time(), "builder", pid=pid)


def end_unfinished_restores(directory: Path) -> None:
    """End what CRIUs have built in transactions, if they were killed together with their crckpts.

    Raises HostCannot if a process does not end.
    """
    logs = []
    # A backup may have left out an empty directory.
    for path in directory.iterdir() if is_directory(directory) else ():
        if is_directory(path):
            owner, builder = read_owner(path / _OWNER), read_owner(path / _BUILDER)
            if owner is not None and builder is not None and not owner.is_alive and not builder.is_alive:
                logs.append(identify_log(str(directory.resolve() / path.name / RESTORE_LOG), builder.start))
    end_unfinished_trees([log for log in logs if log is not None])


@contextmanager
def handed_over(directory: Path, pid: int = 0, *, outside: bool = False) -> Iterator[Path]:
    """Make a directory in `directory` that process `pid`, or this one, will remove; at a failure it is removed here.

    `outside` if `directory` is not the store's.
    """
    path = directory / f"{_STAGED if outside else ''}{own_name()}"
    try:
        make_private_directory(path, "transaction")
        write_owner(path / _OWNER, time.time(), "owner", pid=pid)
        yield path
    except BaseException:
        # A second ^C must not interrupt the removal: the rest would stay until gc.
        with interrupts_deferred():
            _remove(path)
            raise


def _remove(path: Path) -> None:
    # gc removes what is left: a failure here must not hide how the transaction ended.
    with suppress(OSError):
        remove_tree(path, "transaction")


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """Make a private directory outside the store; at the end of the block it is removed with all that is in it."""
    # What killed crckpts have left there is removed first.
    for path in directory.glob(f"{_STAGED}*"):
        # A CRIU that has outlived its crckpt names a path in it, as a command of root or of this user.
        found = (pid for pid in pids() if any(Path(word).is_relative_to(path) for word in proc.command_line(pid)))
        owners = (process.uids[1] for pid in found if (process := proc.read_process(pid)) is not None)
        if _is_abandoned(path) and not any(owner in (0, os.geteuid()) for owner in owners):
            _remove(path)
    with transaction(directory, outside=True) as staging:
        yield staging


def find_abandoned_staging(path: Path) -> tuple[Path, ...]:
    """Find what a dead transaction has left outside the store: where its link `staging` leads."""
    # Anybody can make such a link, so the directory must name the same process as the transaction.
    link = path / STAGING
    if not is_directory(path) or not link.is_symlink():
        return ()
    staging, owner = link.readlink(), read_owner(path / _OWNER)
    if owner is None or not staging.is_absolute() or not _is_abandoned(staging):
        return ()
    its = read_owner(staging / _OWNER)
    return (staging,) if its is not None and its.is_same(owner) else ()


def _is_abandoned(path: Path) -> bool:
    """Return whether a dead crckpt of this user made it."""
    # Other users can write next to it, so it must be private.
    try:
        found = path.lstat()
    except OSError:
        return False
    if not path.name.startswith(_STAGED) or found.st_uid != os.geteuid():
        return False
    if not stat.S_ISDIR(found.st_mode) or stat.S_IMODE(found.st_mode) != PRIVATE_DIRECTORY:
        return False
    owner = read_owner(path / _OWNER)
    # Whether a process of another host lives cannot be known here.
    return owner is not None and owner.host == platform.node() and not owner.is_alive


def find_unused_transactions(directory: Path) -> tuple[Path, ...]:
    """Find dead transactions in which no process works. The caller holds the store's lock alone."""
    dead = find_dead_transactions(directory)
    # A CRIU that has outlived a killed crckpt works there. One that loses its images may crash, and then leaves the
    # connections of the tree blocked.
    # Only the directory is resolved: an entry that is a link is no transaction, wherever it leads.
    directory = directory.resolve() if dead else directory
    used = [found for pid in pids() if (found := _find_working_directory(pid, directory))] if dead else []
    places = frozenset(place for path in used for place in (path, *path.parents))
    return tuple(path for path in dead if directory / path.name not in places)


def _find_working_directory(pid: int, within: Path) -> Path | None:
    """Find the working directory of a process, if it lies within a directory."""
    path = Path(proc.working_directory(pid))
    if path.is_relative_to(within):
        with suppress(OSError):
            # In mounts of their own, any user can have a directory with this path.
            if os.path.samestat(path.stat(), Path(f"/proc/{pid}/cwd").stat()):
                return path
    return None


def find_dead_transactions(directory: Path) -> tuple[Path, ...]:
    """Find transactions whose owner has ended. The caller holds the store's lock alone, so that no new one begins."""
    paths = sorted(directory.iterdir())
    # What is no directory has no owner.
    owners = ((path, read_owner(path / _OWNER) if is_directory(path) else None) for path in paths)
    return tuple(path for path, owner in owners if owner is None or not owner.is_alive)
