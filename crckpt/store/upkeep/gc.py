"""Remove what no checkpoint names any more."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.host.disk.files import remove_tree
from crckpt.store.backend.local import disk_usage
from crckpt.store.backend.protocol import Backend
from crckpt.store.layout import CHECKPOINTS, FINGERPRINTS, PACKS, PENDING
from crckpt.store.names import ID
from crckpt.store.repository import Repository
from crckpt.store.transaction import find_abandoned_staging, find_dead_transactions


class GarbageResult(Struct, frozen=True):
    """What gc removed, or would remove: packs by digest, everything else by path (in the store); `bytes` on disk."""

    packs: tuple[str, ...]
    leftovers: tuple[str, ...]
    bytes: int


def collect_garbage(repository: Repository, *, dry_run: bool = False) -> GarbageResult:
    """Remove packs that no checkpoint names and what dead processes have left; with `dry_run`, only tell.

    Raises IntegrityError, and removes nothing, if a manifest cannot be read: nobody knows which packs it needs.
    """
    with repository.exclusive():
        found, unreadable = repository.read_all()
        if unreadable:
            raise IntegrityError(
                f"nothing was removed: {unreadable[0].why}, so that nobody knows which packs it needs",
                hint=unreadable[0].remedy,
                causes=tuple(bad.why for bad in unreadable),
            )
        named = frozenset(use.digest for checkpoint in found for use in checkpoint.packs)
        return _collect(repository.backend, named, dry_run=dry_run)


def find_packs(backend: Backend) -> list[str]:
    """Find everything that is called as a pack is, in order. Other names are somebody else's."""
    directories = (f"{PACKS}/{name}" for name in backend.names_in(PACKS))
    files = (f"{directory}/{name}" for directory in directories for name in backend.names_in(directory))
    return [name for name in files if name.endswith(".pack") and ID.fullmatch(_digest(name))]


def _collect(backend: Backend, named: frozenset[str], *, dry_run: bool) -> GarbageResult:
    there = find_packs(backend)
    packs = [name for name in there if _digest(name) not in named]
    kept = frozenset(map(_digest, there)) - frozenset(map(_digest, packs))
    in_flight, leftovers = _find_in_flight(backend.scratch), _find_leftovers(backend, kept)
    freed = sum(map(disk_usage, in_flight)) + sum(map(backend.disk_usage, (*packs, *leftovers)))
    if not dry_run:
        # A removal that died before its sync could be undone by a power cut: then the packs would be needed again.
        backend.sync_names(CHECKPOINTS, "garbage")
        for path in in_flight:
            with _passing_over_what_is_used():
                remove_tree(path, "garbage")
        for name in (*leftovers, *packs):
            with _passing_over_what_is_used():
                backend.remove_tree(name, "garbage")
    shown = (*(str(path).removeprefix(f"{backend.location}/") for path in in_flight), *leftovers)
    return GarbageResult(tuple(map(_digest, packs)), shown, freed)


def _find_in_flight(scratch: Path) -> list[Path]:
    """Find what was in flight, and now has no owner that lives."""
    dead = find_dead_transactions(scratch)
    # Before the links that lead there.
    staging = (path for transaction in dead for path in find_abandoned_staging(transaction))
    return [*staging, *dead]


def _find_leftovers(backend: Backend, packs: frozenset[str]) -> list[str]:
    return [
        *backend.find_leftovers(),
        # Whoever stores a checkpoint holds the lock, too: these are lost.
        *(f"{PENDING}/{name}" for name in backend.names_in(PENDING)),
        *(f"{FINGERPRINTS}/{name}" for name in backend.names_in(FINGERPRINTS) if name not in packs),
    ]


def _digest(name: str) -> str:
    return Path(name).stem


@contextmanager
def _passing_over_what_is_used() -> Iterator[None]:
    """A CRIU that outlives a killed crckpt still writes there: what it leaves is removed the next time."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise
