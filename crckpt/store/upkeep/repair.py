"""Repair a store: replace damaged packs and manifests by those of a second store.

Manifests and packs are named by their SHA-256, so a file with the right content is the right file, wherever it comes
from. It is verified before it replaces the damaged one: a repair that is interrupted repairs less, and harms nothing. A
pack that is damaged in both stores is made of the frames that are intact in either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

from msgspec import Struct

from crckpt.errors import CrckptError, IntegrityError, StoreUnusable, UsageError, error_text
from crckpt.host.disk.files import write_new
from crckpt.model import CheckpointId, PackId
from crckpt.store.damage import Damage
from crckpt.store.format.manifest import MOST_BYTES, unseal
from crckpt.store.layout import manifest_name, pack_name
from crckpt.store.names import SHORT
from crckpt.store.repository import Repository
from crckpt.store.upkeep.verify import VerifyResult, verify


class Unrepaired(Struct, frozen=True):
    """A manifest or pack (its id or digest) that could not be repaired, and why."""

    name: str
    why: str


class RepairResult(Struct, frozen=True):
    """The result of a repair.

    What verify finds `now`, the damages that are gone, why others are not, and the checkpoints that can be restored.
    """

    now: VerifyResult
    repaired: tuple[Damage, ...]
    unrepaired: tuple[Unrepaired, ...]
    restorable: tuple[CheckpointId, ...]


def repair(
    repository: Repository,
    ids: Iterable[CheckpointId] | None = None,
    *,
    source: Repository | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> RepairResult:
    """Verify these checkpoints (None: all), and repair what is damaged from `source`, another store.

    Without `source` nothing is changed. `progress` gets (bytes done, bytes in all) of each reading. Raises
    NoSuchCheckpoint, UsageError if both stores are one, OSError if the disk is full: then less is repaired.
    """
    if source is not None and source.backend.is_same(repository.backend):
        raise UsageError(
            f"--from names the damaged store itself: {source.backend.location}", hint="name another store: --from STORE"
        )
    # So that gc removes no pack of the source in the meantime.
    unchanging = source.shared() if source is not None else nullcontext()
    # Shared: a repair removes nothing, and what it replaces is damaged for readers, too.
    with repository.shared(), unchanging, repository.transaction() as begun:
        wanted = repository.ids() if ids is None else tuple(dict.fromkeys(ids))
        repairer = _Repairer(repository, source, begun) if source is not None else None
        # Manifests first: without one it is unknown which packs its checkpoint needs.
        damaged = _find_damaged_manifests(repository, wanted) if repairer else ()
        manifests = tuple(filter(repairer.repair_manifest, damaged)) if repairer else ()
        before = now = verify(repository, wanted, progress=progress)
        packs = dict.fromkeys(PackId(damage.name) for damage in before.damages if damage.kind == "pack")
        repaired = frozenset(filter(repairer.repair_pack, packs)) if repairer else frozenset()
        if repaired:
            now = verify(repository, wanted, progress=progress)
        gone = (*manifests, *(damage for damage in before.damages if damage.name in repaired))
        unrepaired = tuple(repairer.unrepaired) if repairer else ()
        return RepairResult(now, gone, unrepaired, tuple(found for found in wanted if found not in now.lost))


def _find_damaged_manifests(repository: Repository, ids: tuple[CheckpointId, ...]) -> Iterator[Damage]:
    for checkpoint_id in ids:
        try:
            repository.get(checkpoint_id)
        except IntegrityError as error:
            yield Damage("manifest", checkpoint_id, error.message, (checkpoint_id,))
        except StoreUnusable:
            # A newer crckpt wrote it: that is no damage.
            continue


class _Repairer:
    """Replaces single files of a store by those of another."""

    def __init__(self, repository: Repository, source: Repository, directory: Path) -> None:
        """`directory` lies in the scratch of the store that is repaired."""
        self.unrepaired: list[Unrepaired] = []
        self._repository = repository
        self._source = source
        self._directory = directory

    def repair_manifest(self, damage: Damage) -> bool:
        """Replace the manifest of a checkpoint; return whether that was possible."""
        checkpoint_id = CheckpointId(damage.name)
        try:
            content = self._source.backend.read(manifest_name(checkpoint_id), MOST_BYTES)
            unseal(content, checkpoint_id)
        except FileNotFoundError:
            return self._give_up(
                checkpoint_id, f"{self._source.backend.location} has no checkpoint {checkpoint_id[:SHORT]}"
            )
        except (CrckptError, OSError) as error:
            return self._give_up(checkpoint_id, f"in {self._source.backend.location}: {error_text(error)}")
        beside = self._directory / f"{checkpoint_id}.json"
        write_new(beside, content, "manifest")
        try:
            self._repository.backend.put_files({manifest_name(checkpoint_id): beside}, "manifest")
        except IntegrityError as error:
            return self._give_up(checkpoint_id, error.message)
        return True

    def repair_pack(self, digest: PackId) -> bool:
        """Replace a pack; return whether that was possible."""
        from crckpt.store.upkeep.reassembly import reassemble

        beside = self._directory / f"{digest}.pack"
        if not self._source.backend.exists(pack_name(digest)):
            return self._give_up(digest, f"{self._source.backend.location} has no pack {digest[:SHORT]}")
        try:
            reassemble(digest, (self._source.backend, self._repository.backend), beside)
            self._repository.add_packs({digest: beside})
        except IntegrityError as error:
            # An OSError, like a full disk, ends the repair: it would meet every other pack, too.
            return self._give_up(digest, f"in {self._source.backend.location}: {error.message}")
        return True

    def _give_up(self, name: str, why: str) -> bool:
        self.unrepaired.append(Unrepaired(name, why))
        return False
