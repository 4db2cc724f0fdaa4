"""Verify a store: check that everything that checkpoints need exists and is undamaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from crckpt.errors import IntegrityError, StoreUnusable
from crckpt.model import CheckpointId
from crckpt.store.damage import Damage, forget_fingerprints, note_known_damage
from crckpt.store.format.manifest import Checkpoint
from crckpt.store.repository import Repository


class VerifyResult(Struct, frozen=True):
    """The result of a verification: what was read, `bytes` of packs among it, and the damages found."""

    checkpoints: tuple[CheckpointId, ...]
    packs: int
    bytes: int
    damages: tuple[Damage, ...]

    @property
    def lost(self) -> tuple[CheckpointId, ...]:
        """The checkpoints that can no longer be restored."""
        return tuple(dict.fromkeys(found for damage in self.damages for found in damage.checkpoints))


def verify(
    repository: Repository,
    ids: Iterable[CheckpointId] | None = None,
    *,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> VerifyResult:
    """Read and check everything that these checkpoints (None: all) need; a pack is read once however many use it.

    Damage names all checkpoints that need what is damaged, also those that are not verified. `progress` gets (bytes
    done, bytes in all). Raises NoSuchCheckpoint; damage is reported, not raised.
    """
    from crckpt.store.upkeep.audit import audit_contents, audit_packs, note_affected

    with repository.shared():
        wanted = repository.ids() if ids is None else tuple(dict.fromkeys(ids))
        checkpoints: list[Checkpoint] = []
        damages: list[Damage] = []
        for checkpoint_id in wanted:
            try:
                checkpoints.append(repository.get(checkpoint_id))
            except (IntegrityError, StoreUnusable) as error:
                damages.append(Damage("manifest", checkpoint_id, error.message, (checkpoint_id,)))
        packs = audit_packs(repository.backend, checkpoints, progress)
        for checkpoint in checkpoints:
            damages += audit_contents(repository.backend, checkpoint, packs)
        if packs.broken or packs.frames:
            for checkpoint in repository.checkpoints():
                if checkpoint.id not in wanted:
                    note_affected(repository.backend, checkpoint, packs)
        damages += packs.damages()
        # So that no new checkpoint relies on these packs.
        forget_fingerprints(repository.backend, [*packs.broken, *packs.frames])
        found = VerifyResult(wanted, packs.count, packs.bytes, tuple(damages))
        note_known_damage(repository.backend, found.checkpoints, found.lost)
        return found
