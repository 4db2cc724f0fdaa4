"""Check whether a directory of this host can be a store, and whether this process can write to it; create stores.

A snapshot, a backup or root's store may be for reading only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.errors import StoreUnusable
from crckpt.host.disk import space
from crckpt.host.disk.checked_files import check_directory
from crckpt.host.disk.files import (
    PRIVATE_DIRECTORY,
    ensure_directories,
    ensure_private_directory,
    open_lock,
    sync_directory,
    write_durably,
)
from crckpt.host.disk.path_trust import find_intruder, open_path
from crckpt.host.process.typed_command import advise_sudo, name_store
from crckpt.store.layout import CHECKPOINTS, DESCRIPTION, DIRECTORIES, LOCK, PACKS, PENDING

# A new ext4 file system has it (mke2fs(8)).
_HARMLESS: Final = frozenset({"lost+found"})
_WRITABLE_BY_OTHERS: Final = 0o022
_OPEN_TO_OTHERS: Final = 0o077


def prepare_directory(root: Path, description: bytes | None) -> None:
    """Check the store at `root`, and make directories that it lacks; with `description` it is made if nothing is there.

    Raises StoreUnusable if there is none, or if its owner or mode or a directory above lets others at it;
    IntegrityError if one of its directories is a link.
    """
    _check_place(root)
    if description is not None and is_blank(root):
        _create(root, description)
    _check_is_store(root)
    for name in (*DIRECTORIES, PENDING):
        # With a link or another user's directory, files would be written or removed elsewhere.
        with suppress(FileNotFoundError):
            check_directory(f"{root}/{name}")
    for name in DIRECTORIES:
        # Backups leave out empty directories, and caches.
        if not (root / name).exists():
            with suppress(OSError):
                ensure_private_directory(root / name, "layout")
    if description is not None:
        # The process that made the directory may have died before it was synced: a power cut would lose it with all
        # checkpoints that come.
        sync_directory(root, "root")


def check_access(root: Path) -> None:
    """Raise StoreUnusable if another user can change what lies in the store at `root`, or put another in its place."""
    _check_place(root)
    _check_owner_and_mode(root)


def is_blank(root: Path) -> bool:
    """Return whether nothing is there, or only what an interrupted creation has left."""
    if not root.exists():
        return True
    if not root.is_dir() or (root / DESCRIPTION).exists():
        return False
    ours = {LOCK, *DIRECTORIES} | _HARMLESS
    here = {entry.name for entry in root.iterdir()}
    stored = (entry for name in (CHECKPOINTS, PACKS) if name in here for entry in (root / name).iterdir())
    return all(name in ours or name.startswith(f".{DESCRIPTION}.") for name in here) and not any(stored)


def _check_place(root: Path) -> None:
    """Raise StoreUnusable if another user can put another directory in the place of the store."""
    # Every command uses the path of the store again and again: with another store in its place, root would write a
    # program's memory, and start CRIU, wherever that user likes.
    above = root
    while True:
        try:
            descriptor, entries = open_path(above)
            break
        except FileNotFoundError:
            above = above.parent
    os.close(descriptor)
    # The owner and the mode of the store itself have messages of their own.
    entries = entries[:-1] if above == root else entries
    if intruder := find_intruder(entries, frozenset({os.geteuid()})):
        who, where = ("root", "--store /var/lib/crckpt") if os.geteuid() == 0 else ("root or you", "--store ~/crckpt")
        raise StoreUnusable(
            f"another user can replace the store {root}: {intruder}",
            hint=f"choose a place where only {who} can change the directories above it: {where}",
        )


def _create(root: Path, description: bytes) -> None:
    """Make the store. Its description comes last and makes it one. Several processes at once make one store."""
    ensure_directories(root.parent, "root")
    ensure_private_directory(root, "root")
    status = root.stat()
    # A directory that others can write stays as it is and is refused below: they may have put files there.
    if status.st_uid == os.geteuid() and not status.st_mode & _WRITABLE_BY_OTHERS:
        root.chmod(PRIVATE_DIRECTORY)
    _check_owner_and_mode(root)
    lock = open_lock(root / LOCK, "lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / DESCRIPTION).exists():
            for name in DIRECTORIES:
                ensure_private_directory(root / name, "layout")
            write_durably(root / DESCRIPTION, description, "description")
    finally:
        os.close(lock)


def _check_is_store(root: Path) -> None:
    is_empty = root.is_dir() and os.access(root, os.R_OK) and not any(root.iterdir())
    if not root.exists() or is_empty:
        hint = name_store("crckpt dump makes one; if your store is elsewhere, name it")
        if os.geteuid() != 0:
            hint = name_store(f"for root's store: {advise_sudo()}; or name another")
        empty = ": the directory is empty" if is_empty else ""
        raise StoreUnusable(f"there is no store at {root}{empty}", hint=hint)
    if not root.is_dir() or not (root / DESCRIPTION).exists():
        raise StoreUnusable(
            f"{root} is not a store of crckpt",
            hint=name_store("name a store, or an empty directory for a new one"),
        )
    _check_owner_and_mode(root)


def _check_owner_and_mode(root: Path) -> None:
    status, quoted = root.stat(), shlex.quote(str(root))
    if status.st_uid not in (0, os.geteuid()):
        change = f"cp -R {quoted} DIR, and use that" if space.is_read_only(root) else f"chown -R root {quoted}"
        # Root may follow the hint, which does not change what is in the store.
        warning = "; a restore would run what this user has put there, as root" if os.geteuid() == 0 else ""
        raise StoreUnusable(
            f"the store {root} belongs to uid {status.st_uid}, but crckpt runs as uid {os.geteuid()}{warning}",
            hint=change if os.geteuid() == 0 else name_store("name a store of your own"),
        )
    # A backup, a snapshot or root's store that others can read is used as it is: to refuse it would protect nothing.
    is_kept_from_others = status.st_uid == os.geteuid() and not find_write_refusal(root)
    if status.st_mode & (_OPEN_TO_OTHERS if is_kept_from_others else _WRITABLE_BY_OTHERS):
        change = f"cp -R {quoted} DIR, and use that" if space.is_read_only(root) else f"chmod 700 {quoted}"
        raise StoreUnusable(f"the store {root} is open to other users (mode {status.st_mode & 0o777:o})", hint=change)


def find_write_refusal(root: Path) -> str:
    """Say why this process cannot write to the store at `root`; empty if it can. Nothing is tried."""
    for directory in (root, *(root / name for name in DIRECTORIES)):
        # A directory that a backup has left out is no obstacle: it can be made if the one above it can be written.
        if directory.is_dir() and not space.is_writable(directory):
            if space.is_read_only(directory):
                return "it is on a read-only mount"
            perhaps = " (perhaps it is immutable: lsattr -d shows that)" if os.geteuid() == 0 else ""
            return f"{_user_name(os.geteuid())} has no permission to write to {directory}{perhaps}"
    return ""


def make_write_error(root: Path, refusal: str) -> StoreUnusable:
    """Make the error for a store to which this process cannot write; `refusal` is as of `find_write_refusal`."""
    may_sudo = os.geteuid() != 0 and not space.is_read_only(root)
    hint = name_store(f"{advise_sudo()}; or name another store") if may_sudo else name_store()
    return StoreUnusable(f"the store {root} cannot be written: {refusal}", hint=hint)


def make_read_error(root: Path) -> StoreUnusable:
    """Make the error for a store at `root` of which this process may not read something."""
    user = os.geteuid()
    hint = advise_sudo() if user != 0 else name_store()
    with suppress(OSError):
        status = root.stat()
        if not os.access(root, os.R_OK | os.X_OK, effective_ids=True) and status.st_uid != user:
            return StoreUnusable(f"the store {root} can be read by {_user_name(status.st_uid)} only", hint=hint)
    what = f"{_user_name(user)} has no permission to read it"
    return StoreUnusable(f"the store {root} cannot be used: {what}", hint=hint)


def _user_name(uid: int) -> str:
    """The name of a user, for messages."""
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name if uid == 0 else f"user {pwd.getpwuid(uid).pw_name}"
    return f"user {uid}"


@contextmanager
def full_store_named(location: str) -> Iterator[None]:
    """Give a system error of the block the store's path if there is no space left."""
    try:
        yield
    except OSError as error:
        # A failed write does not name its file. What else a store's writer uses is only read.
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
            error.filename = location
        raise
