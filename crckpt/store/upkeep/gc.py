"""Remove packs that no checkpoint names, and leftovers of processes that have ended."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.host.disk.files import remove_tree
from crckpt.store.backend.local import Backend, disk_usage
from crckpt.store.format.samples import decode_samples
from crckpt.store.layout import CACHE, CHECKPOINTS, FINGERPRINTS, ID, JOB_DETAILS, PACKS, PENDING, SAMPLES
from crckpt.store.repository import Repository
from crckpt.store.transaction import end_unfinished_restores, find_abandoned_staging, find_unused_transactions


class GarbageResult(Struct, frozen=True):
    """The garbage that gc removed, or would remove.

    Packs are named by digest, everything else by its path in the store; `bytes` are those on disk.
    """

    packs: tuple[str, ...]
    leftovers: tuple[str, ...]
    bytes: int


def collect_garbage(repository: Repository, *, dry_run: bool = False) -> GarbageResult:
    """Remove packs that no checkpoint names and what dead processes have left; with `dry_run`, only report them.

    Processes of unfinished restores are ended, if their CRIU and crckpt were killed.

    Raises IntegrityError, and removes nothing, if a manifest cannot be read: the packs that it needs are unknown.
    """
    with repository.exclusive():
        found, unreadable = repository.read_all()
        if unreadable:
            raise IntegrityError(
                f"nothing was removed: {unreadable[0].why}, and crckpt cannot tell which packs it needs",
                hint=unreadable[0].remedy,
                causes=tuple(bad.why for bad in unreadable),
                causes_said=1,
            )
        if not dry_run:
            end_unfinished_restores(repository.backend.scratch)
        named = frozenset(use.digest for checkpoint in found for use in checkpoint.packs)
        jobs = frozenset(checkpoint.job for checkpoint in found)
        return _collect(repository.backend, named, jobs, dry_run=dry_run)


def _collect(backend: Backend, named: frozenset[str], jobs: frozenset[str], *, dry_run: bool) -> GarbageResult:
    directories = (f"{PACKS}/{name}" for name in backend.names_in(PACKS))
    files = (f"{directory}/{name}" for directory in directories for name in backend.names_in(directory))
    # Other names are not crckpt's.
    there = [name for name in files if name.endswith(".pack") and ID.fullmatch(_digest(name))]
    packs = [name for name in there if _digest(name) not in named]
    kept = frozenset(map(_digest, there)) - frozenset(map(_digest, packs))
    # What has no living owner, and is not used by a CRIU that has outlived its crckpt. Staging directories come before
    # the links that lead to them.
    dead = find_unused_transactions(backend.scratch)
    in_flight = [*(path for transaction in dead for path in find_abandoned_staging(transaction)), *dead]
    leftovers = _find_leftovers(backend, kept, jobs)
    freed = sum(map(disk_usage, in_flight)) + sum(map(backend.disk_usage, (*packs, *leftovers)))
    if not dry_run:
        # A power cut can undo the removal of a checkpoint that died before its sync: then its packs would be needed.
        backend.sync_names(CHECKPOINTS, "garbage")
        for path in in_flight:
            with _ignoring_use():
                remove_tree(path, "garbage")
        for name in (*leftovers, *packs):
            with _ignoring_use():
                backend.remove_tree(name, "garbage")
    shown = (*(str(path).removeprefix(f"{backend.location}/") for path in in_flight), *leftovers)
    return GarbageResult(tuple(map(_digest, packs)), shown, freed)


def _find_leftovers(backend: Backend, packs: frozenset[str], jobs: frozenset[str]) -> list[str]:
    samples = (f"{SAMPLES}/{name}" for name in backend.names_in(SAMPLES))
    return [
        *backend.find_leftovers(),
        # Storing a checkpoint holds the lock too: these checkpoints are lost.
        *(f"{PENDING}/{name}" for name in backend.names_in(PENDING)),
        *(f"{FINGERPRINTS}/{name}" for name in backend.names_in(FINGERPRINTS) if name not in packs),
        *(name for name in samples if not _are_useful(backend, name, packs)),
        *(
            f"{CACHE}/{name}"
            for name in backend.names_in(CACHE)
            if name.startswith(JOB_DETAILS) and name.removeprefix(JOB_DETAILS) not in jobs
        ),
    ]


def _are_useful(backend: Backend, name: str, packs: frozenset[str]) -> bool:
    """Return whether half of the packs are there whose samples are in that file, or more."""
    # Without the file the next dump takes samples of the others again.
    with suppress(OSError, ValueError, IntegrityError):
        samples = decode_samples(backend.map(name))
        sampled = samples.list_packs() if samples is not None else []
        return bool(sampled) and 2 * len(packs.intersection(sampled)) >= len(sampled)
    return False


def _digest(name: str) -> str:
    return Path(name).stem


@contextmanager
def _ignoring_use() -> Iterator[None]:
    """Ignore that a CRIU that has just begun adds or removes files at the same time: the next gc removes the rest."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise
