"""Remove what no checkpoint names any more."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.host.disk.checked_files import is_directory
from crckpt.host.disk.files import remove_tree, sync_directory
from crckpt.store.format.names import ID
from crckpt.store.layout import Layout
from crckpt.store.owner import read_owner
from crckpt.store.repository import Repository, Unreadable
from crckpt.store.transaction import abandoned_staging, dead_transactions

_SECTOR = 512


class Collected(Struct, frozen=True):
    """What gc removed, or would remove: packs by digest, everything else by path (in the store); `bytes` on disk."""

    packs: tuple[str, ...]
    leftovers: tuple[str, ...]
    bytes: int


def collect_garbage(repository: Repository, *, dry_run: bool = False) -> Collected:
    """Remove packs that no checkpoint names and what dead processes have left; with `dry_run`, only tell.

    Raises IntegrityError, and removes nothing, if a manifest cannot be read: nobody knows which packs it needs.
    """
    with repository.exclusive():
        found, unreadable = repository.read_all()
        named = frozenset(use.digest for checkpoint in found for use in checkpoint.packs)
        return _collect(repository.layout, named, unreadable, dry_run=dry_run)


def pack_files(layout: Layout) -> list[Path]:
    """Everything that is called as a pack is, in order; not what links lead to. Other names are somebody else's."""
    with os.scandir(layout.packs) as entries:
        directories = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    paths = (path for name in directories for path in sorted((layout.packs / name).iterdir()))
    return [path for path in paths if path.suffix == ".pack" and ID.fullmatch(path.stem)]


def _collect(layout: Layout, named: frozenset[str], unreadable: tuple[Unreadable, ...], *, dry_run: bool) -> Collected:
    if unreadable:
        bad = unreadable[0]
        raise IntegrityError(
            f"nothing was removed: {bad.why}, so that nobody knows which packs it needs",
            hint=bad.remedy,
            causes=tuple(found.why for found in unreadable),
        )
    there = pack_files(layout)
    packs = tuple(path for path in there if path.stem not in named)
    kept = {path.stem for path in there} - {path.stem for path in packs}
    leftovers = _leftovers(layout, kept)
    freed = sum(_size(path) for path in (*packs, *leftovers))
    if not dry_run:
        # A removal that died before its sync could be undone by a power cut: then the packs would be needed again.
        sync_directory(layout.checkpoints, "garbage")
        for path in (*leftovers, *packs):
            _remove(path)
    shown = tuple(str(path).removeprefix(f"{layout.root}/") for path in leftovers)
    return Collected(tuple(path.stem for path in packs), shown, freed)


def _leftovers(layout: Layout, packs: set[str]) -> tuple[Path, ...]:
    records = (path for path in layout.locks.iterdir() if not _is_held(path))
    orphans = (path for path in layout.fingerprints.iterdir() if path.name not in packs)
    dead = dead_transactions(layout.transactions)
    return (
        # Before the links that lead there.
        *(path for transaction in dead for path in abandoned_staging(transaction)),
        *dead,
        *sorted(records),
        # Whoever stores a checkpoint holds the lock, too: these are lost.
        *(sorted(layout.pending.iterdir()) if is_directory(layout.pending) else ()),
        *sorted(orphans),
        *sorted(layout.fingerprint_key.parent.glob(f".{layout.fingerprint_key.name}.*")),
        *(path for job in sorted(layout.tags.iterdir()) if is_directory(job) for path in sorted(job.glob(".*"))),
        *sorted(layout.root.glob(".store.json.*")),
    )


def _is_held(record: Path) -> bool:
    owner = read_owner(record)
    return owner is not None and owner.is_alive


def _size(path: Path) -> int:
    if not is_directory(path):
        return path.lstat().st_blocks * _SECTOR
    return sum((Path(top) / name).lstat().st_blocks * _SECTOR for top, _, names in os.walk(path) for name in names)


def _remove(path: Path) -> None:
    try:
        remove_tree(path, "garbage")
    except OSError as error:
        # A CRIU that outlives a killed crckpt still writes there: what it leaves is removed the next time.
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise
