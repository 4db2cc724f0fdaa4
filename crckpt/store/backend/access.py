"""Check whether this process can write to a store. A snapshot, a backup or root's store may be for reading only."""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crckpt.errors import StoreUnusable
from crckpt.host.disk import space
from crckpt.host.process.typed_command import advise_sudo, name_store
from crckpt.store.layout import DIRECTORIES


def find_write_refusal(root: Path) -> str:
    """Say why this process cannot write to the store at `root`; empty if it can. Nothing is tried."""
    for directory in (root, *(root / name for name in DIRECTORIES)):
        # A directory that a backup has left out is no obstacle: it can be made if the one above it can be written.
        if directory.is_dir() and not space.is_writable(directory):
            if space.is_read_only(directory):
                return "it is on a read-only mount"
            perhaps = " (perhaps it is immutable: lsattr -d shows that)" if os.geteuid() == 0 else ""
            return f"{user_name(os.geteuid())} has no permission to write to {directory}{perhaps}"
    return ""


def make_write_error(root: Path, refusal: str) -> StoreUnusable:
    """Make the error for a store to which this process cannot write; `refusal` is as of `find_write_refusal`."""
    may_sudo = os.geteuid() != 0 and not space.is_read_only(root)
    another = f"name another store: {name_store()}"
    hint = f"{advise_sudo()}; or {another}" if may_sudo else another
    return StoreUnusable(f"the store {root} cannot be written: {refusal}", hint=hint)


def make_read_error(root: Path) -> StoreUnusable:
    """Make the error for a store at `root` of which this process may not read something."""
    user = os.geteuid()
    hint = advise_sudo() if user != 0 else f"name another store: {name_store()}"
    with suppress(OSError):
        status = root.stat()
        if not os.access(root, os.R_OK | os.X_OK, effective_ids=True) and status.st_uid != user:
            return StoreUnusable(f"the store {root} can be read by {user_name(status.st_uid)} only", hint=hint)
    what = f"{user_name(user)} has no permission to read it"
    return StoreUnusable(f"the store {root} cannot be used: {what}", hint=hint)


def user_name(uid: int) -> str:
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
