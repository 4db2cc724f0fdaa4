"""The store's directory: where things lie in it, how it is made, and whether it may be used."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from crckpt.errors import IntegrityError, StoreUnusable
from crckpt.host.disk.checked_files import check_directory, open_directory, read_checked
from crckpt.host.disk.files import (
    PRIVATE_DIRECTORY,
    ensure_directories,
    ensure_private_directory,
    open_lock,
    remove,
    sync_directory,
    write_durably,
)
from crckpt.host.disk.path_trust import find_intruder, open_path
from crckpt.store.format.documents import decode
from crckpt.store.format.manifest import MOST_BYTES
from crckpt.store.format.names import checked_id

FORMAT: Final = 1

_DIRECTORIES: Final = ("cache", "cache/fingerprints", "checkpoints", "locks", "packs", "refs", "refs/tags", "tmp")
_MADE_LATER: Final = ("pending",)
_MOST_FACTS: Final = 64 << 10
_HARMLESS: Final = frozenset({"lost+found"})
_WRITABLE_BY_OTHERS: Final = 0o022
_OPEN_TO_OTHERS: Final = 0o077


class Layout(Struct, frozen=True):
    """The paths in the store at `root`."""

    root: Path

    @property
    def checkpoints(self) -> Path:
        """A directory for each checkpoint, named by its id."""
        return self.root / "checkpoints"

    @property
    def packs(self) -> Path:
        """Packs, in directories named by the first two digits of their digests."""
        return self.root / "packs"

    @property
    def tags(self) -> Path:
        """A directory for each job, in it a file for each tag that holds an id."""
        return self.root / "refs/tags"

    @property
    def fingerprints(self) -> Path:
        """Fingerprints of packs' pages; derived, may be deleted."""
        return self.root / "cache/fingerprints"

    @property
    def fingerprint_key(self) -> Path:
        """The secret key of the fingerprints; with it collisions can be made. May be deleted."""
        return self.root / "cache/fingerprints.key"

    @property
    def transactions(self) -> Path:
        """What is in flight."""
        return self.root / "tmp"

    @property
    def pending(self) -> Path:
        """Records of checkpoints that are not durable yet; made when there is one."""
        return self.root / "pending"

    @property
    def locks(self) -> Path:
        """Records of those who hold the lock."""
        return self.root / "locks"

    def pack(self, digest: str) -> Path:
        """Where the pack of that digest lies. Raises IntegrityError if it is no digest."""
        return self.packs / checked_id(digest)[:2] / f"{digest}.pack"

    def check_pack_directory(self, digest: str) -> None:
        """Raises IntegrityError if the pack's directory is there and is a link, or another's."""
        with suppress(FileNotFoundError):
            check_directory(self.pack(digest).parent)

    def fingerprints_of(self, digest: str) -> Path:
        """Where the fingerprints of that pack lie. Raises IntegrityError if it is no digest."""
        return self.fingerprints / checked_id(digest)

    def manifest(self, checkpoint_id: str) -> Path:
        """Where the manifest of that checkpoint lies."""
        return self.checkpoints / checked_id(checkpoint_id) / "manifest.json"

    def doubt(self, packs: Iterable[str]) -> None:
        """Damage was found in one of the packs with these digests: all are read before anything new depends on them.

        What was worked out from them is removed. Where we may not write, neither may who stores.
        """
        for digest in packs:
            with suppress(OSError):
                remove(self.fingerprints_of(digest), "fingerprints")

    def read_manifest(self, checkpoint_id: str) -> bytes:
        """Its bytes. Raises FileNotFoundError, IntegrityError. All manifests are read at once: no Path for each."""
        directory = open_directory(f"{self.root}/checkpoints/{checked_id(checkpoint_id)}")
        try:
            return read_checked("manifest.json", MOST_BYTES, within=directory)
        finally:
            os.close(directory)


class Facts(Struct, frozen=True):
    """What store.json says."""

    id: str


def open_layout(root: Path, *, create: bool) -> tuple[Layout, Facts]:
    """The store at `root`; with `create` it is made if nothing is there.

    Raises StoreUnusable if there is none, if its owner or mode or a directory above lets others at it, or if its format
    is newer.
    """
    try:
        _check_place(root)
        if create and is_blank(root):
            _create(root)
        _check(root)
        _check_directories(root)
        _complete(root)
        if create:
            # Whoever made it may have died before the sync, and what comes to lie in it must not be lost with it.
            sync_directory(root, "root")
        return Layout(root), _facts(root)
    except IntegrityError as error:
        raise StoreUnusable(error.message, hint="a store has no symbolic links: restore it from a backup") from error
    except (PermissionError, NotADirectoryError) as error:
        raise StoreUnusable(
            f"the store {root} cannot be used: {error.strerror}", hint="run it again with sudo"
        ) from error


def check_access(root: Path) -> None:
    """Raise StoreUnusable if another user can change what lies in the store at `root`, or put another in its place."""
    _check_place(root)
    _check_owner_and_mode(root)


def _check_place(root: Path) -> None:
    """Raise StoreUnusable if another user can put another directory in the place of the store.

    Every command uses the path of the store again and again: with another store in its place, root would write a
    program's memory, and start CRIU, wherever that user likes.
    """
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
            hint=f"name a place where only {who} can change each directory above it: {where}",
        )


def is_blank(root: Path) -> bool:
    """Whether nothing is there, or only what a creation that was cut short has left."""
    if not root.exists():
        return True
    if not root.is_dir() or (root / "store.json").exists():
        return False
    ours = {"lock", *_DIRECTORIES} | _HARMLESS
    here = {entry.name for entry in root.iterdir()}
    held = (entry for name in ("checkpoints", "packs") if name in here for entry in (root / name).iterdir())
    return all(name in ours or name.startswith(".store.json.") for name in here) and not any(held)


def _create(root: Path) -> None:
    """Make the store; store.json comes last and makes it one. Two who do this at once make one store."""
    ensure_directories(root.parent, "root")
    ensure_private_directory(root, "root")
    status = root.stat()
    if status.st_uid == os.geteuid() and not status.st_mode & _WRITABLE_BY_OTHERS:
        root.chmod(PRIVATE_DIRECTORY)
    _check_owner_and_mode(root)
    lock = open_lock(root / "lock", "lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "store.json").exists():
            for name in _DIRECTORIES:
                ensure_private_directory(root / name, "layout")
            write_durably(
                root / "store.json", json.dumps(_new_facts(), sort_keys=True, indent=1).encode() + b"\n", "facts"
            )
    finally:
        os.close(lock)


def _check_directories(root: Path) -> None:
    """Raises IntegrityError if one is a link, or another's: what is written or removed there would lie elsewhere."""
    for name in (*_DIRECTORIES, *_MADE_LATER):
        with suppress(FileNotFoundError):
            check_directory(f"{root}/{name}")


def _complete(root: Path) -> None:
    """Make directories that are missing: backups leave out empty ones, and caches. Not where we may not write."""
    for name in _DIRECTORIES:
        if not (root / name).exists():
            with suppress(OSError):
                ensure_private_directory(root / name, "layout")


def _new_facts() -> dict[str, Any]:
    return {
        "format": FORMAT,
        "id": str(uuid.uuid4()),
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
    }


def _check(root: Path) -> None:
    if not root.exists():
        raise StoreUnusable(f"there is no store at {root}", hint="crckpt dump makes one; --store names another")
    if not root.is_dir() or not (root / "store.json").exists():
        raise StoreUnusable(f"{root} is not a store of crckpt", hint="name an empty or a new directory with --store")
    _check_owner_and_mode(root)


def _check_owner_and_mode(root: Path) -> None:
    status = root.stat()
    if status.st_uid != os.geteuid():
        raise StoreUnusable(
            f"the store {root} belongs to uid {status.st_uid}, and we are uid {os.geteuid()}",
            hint=f"chown -R {'root' if os.geteuid() == 0 else os.geteuid()} {root}",
        )
    if status.st_mode & _OPEN_TO_OTHERS:
        raise StoreUnusable(
            f"the store {root} holds programs' memory, and its mode {status.st_mode & 0o777:o} lets other users in",
            hint=f"chmod 700 {root}",
        )


def _facts(root: Path) -> Facts:
    content, what = read_checked(root / "store.json", _MOST_FACTS), f"{root}/store.json"
    try:
        found = decode(content, _FORMAT, what).format
        if found == FORMAT:
            return decode(content, _FACTS, what)
    except (IntegrityError, msgspec.ValidationError) as error:
        raise StoreUnusable(f"{what} is damaged", hint="restore it from a backup") from error
    raise StoreUnusable(
        f"the store {root} has format {found}; this crckpt knows format {FORMAT}",
        hint=f"use a crckpt that knows store format {found}",
    )


class _Format(Struct):
    format: int


_FORMAT: Final = msgspec.json.Decoder(_Format)
_FACTS: Final = msgspec.json.Decoder(Facts)
