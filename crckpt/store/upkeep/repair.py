"""Repair: damaged packs and manifests are replaced by what a second store has of them, if that is whole.

Manifests and packs are named by their SHA-256, so that whatever has the right content is the right file, wherever it
comes from. It is written beside, verified, and then renamed: a repair that is cut short has mended less, and harmed
nothing. A pack that is damaged in both stores is put together from the frames that either of them has whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

from msgspec import Struct

from crckpt.errors import CrckptError, IntegrityError, StoreUnusable, UsageError
from crckpt.host.disk.files import write_new
from crckpt.model import CheckpointId
from crckpt.store.format.manifest import MOST_BYTES, unseal
from crckpt.store.layout import manifest_name, pack_name
from crckpt.store.names import SHORT
from crckpt.store.repository import Repository
from crckpt.store.upkeep.damage import Damage
from crckpt.store.upkeep.verify import Verified, verify


class Unmended(Struct, frozen=True):
    """A manifest or pack (its id or digest) that the other store could not mend, and why."""

    name: str
    why: str


class Repaired(Struct, frozen=True):
    """How things stand now, the damages that are gone, why others are not, and what can be restored."""

    now: Verified
    mended: tuple[Damage, ...]
    unmended: tuple[Unmended, ...]
    restorable: tuple[CheckpointId, ...]


def repair(
    repository: Repository,
    ids: Iterable[CheckpointId] | None = None,
    *,
    source: Repository | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Repaired:
    """Verify these checkpoints (None: all), and mend what is damaged from `source`, another store.

    Without `source` nothing is changed. `progress` is told (bytes done, bytes in all) of each reading. Raises
    NoSuchCheckpoint, UsageError if both stores are one, OSError if the disk is full: then less is mended.
    """
    if source is not None and source.backend.is_same(repository.backend):
        raise UsageError(
            f"{source.backend.location} is the damaged store itself", hint="name another store with --from"
        )
    unchanging = source.shared() if source is not None else nullcontext()
    with repository.shared(), unchanging, repository.transaction() as begun:
        wanted = repository.ids() if ids is None else tuple(dict.fromkeys(ids))
        mending = _Mending(repository, source, begun.path) if source is not None else None
        manifests = tuple(filter(mending.manifest, _damaged_manifests(repository, wanted))) if mending else ()
        before = now = verify(repository, wanted, progress=progress)
        packs = dict.fromkeys(damage.name for damage in before.damages if damage.kind == "pack")
        mended = frozenset(filter(mending.pack, packs)) if mending else frozenset()
        if mended:
            now = verify(repository, wanted, progress=progress)
        gone = (*manifests, *(damage for damage in before.damages if damage.name in mended))
        unmended = tuple(mending.unmended) if mending else ()
        return Repaired(now, gone, unmended, tuple(found for found in wanted if found not in now.lost))


def _damaged_manifests(repository: Repository, ids: tuple[CheckpointId, ...]) -> Iterator[Damage]:
    for checkpoint_id in ids:
        try:
            repository.get(checkpoint_id)
        except IntegrityError as error:
            yield Damage("manifest", checkpoint_id, error.message, (checkpoint_id,))
        except StoreUnusable:
            continue  # a newer crckpt's: that is no damage


class _Mending:
    """Replaces single files of a store by those of another."""

    def __init__(self, repository: Repository, source: Repository, directory: Path) -> None:
        """`directory` lies in the store that is mended."""
        self.unmended: list[Unmended] = []
        self._repository = repository
        self._source = source
        self._directory = directory

    def manifest(self, damage: Damage) -> bool:
        """Whether the checkpoint has its manifest again."""
        checkpoint_id = CheckpointId(damage.name)
        try:
            content = self._source.backend.read(manifest_name(checkpoint_id), MOST_BYTES)
            unseal(content, checkpoint_id)
        except FileNotFoundError:
            return self._given_up(
                checkpoint_id, f"{self._source.backend.location} has no checkpoint {checkpoint_id[:SHORT]}"
            )
        except (CrckptError, OSError) as error:
            return self._given_up(checkpoint_id, f"in {self._source.backend.location}: {error}")
        beside = self._directory / f"{checkpoint_id}.json"
        write_new(beside, content, "manifest")
        try:
            self._repository.backend.put_files({manifest_name(checkpoint_id): beside}, "manifest")
        except IntegrityError as error:
            return self._given_up(checkpoint_id, error.message)
        return True

    def pack(self, digest: str) -> bool:
        """Whether the pack is whole again."""
        from crckpt.store.upkeep.reassembly import reassemble

        beside = self._directory / f"{digest}.pack"
        if not self._source.backend.exists(pack_name(digest)):
            return self._given_up(digest, f"{self._source.backend.location} has no pack {digest[:SHORT]}")
        try:
            reassemble(digest, (self._source.backend, self._repository.backend), beside)
            self._repository.add_packs({digest: beside})
        except IntegrityError as error:
            return self._given_up(digest, f"in {self._source.backend.location}: {error.message}")
        return True

    def _given_up(self, name: str, why: str) -> bool:
        self.unmended.append(Unmended(name, why))
        return False
