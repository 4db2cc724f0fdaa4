"""Repair a store: replace damaged packs and manifests by those of a second store.

Manifests and packs are named by their SHA-256, so a file with the right content is the right file, wherever it comes
from. It is verified before it replaces the damaged one: a repair that is interrupted repairs less, and harms nothing. A
pack that is damaged in both stores is made of the frames that are intact in either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from crckpt.errors import CrckptError, IntegrityError, StoreUnusable, UsageError, error_text
from crckpt.host.disk.files import created, sync, write, write_new
from crckpt.model import PAGE_SIZE, CheckpointId, PackId
from crckpt.store.backend.local import Backend
from crckpt.store.damage import Damage
from crckpt.store.format.manifest import MOST_BYTES, unseal
from crckpt.store.layout import SHORT, manifest_name, pack_name
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
    unrepaired: list[Unrepaired] = []

    def try_to_repair(damage: Damage) -> bool:
        """Replace what is damaged; return whether that was possible."""
        if source is None:
            return False
        try:
            if damage.kind == "manifest":
                _repair_manifest(repository, source, CheckpointId(damage.name), directory)
            else:
                _repair_pack(repository, source, PackId(damage.name), directory)
        except IntegrityError as error:
            unrepaired.append(Unrepaired(damage.name, error.message))
            return False
        return True

    # Shared: a repair removes nothing, and what it replaces is damaged for readers, too.
    with repository.shared(), unchanging, repository.transaction() as directory:
        wanted = repository.ids() if ids is None else tuple(dict.fromkeys(ids))
        # Manifests first: without one it is unknown which packs its checkpoint needs.
        damaged = _find_damaged_manifests(repository, wanted) if source is not None else ()
        gone = list(filter(try_to_repair, damaged))
        before = now = verify(repository, wanted, progress=progress)
        packs = {damage.name: damage for damage in before.damages if damage.kind == "pack"}
        repaired = {name for name, damage in packs.items() if try_to_repair(damage)}
        if repaired:
            now = verify(repository, wanted, progress=progress)
        gone += (damage for damage in before.damages if damage.name in repaired)
        restorable = tuple(found for found in wanted if found not in now.lost)
        return RepairResult(now, tuple(gone), tuple(unrepaired), restorable)


def _find_damaged_manifests(repository: Repository, ids: tuple[CheckpointId, ...]) -> Iterator[Damage]:
    for checkpoint_id in ids:
        try:
            repository.get(checkpoint_id)
        except IntegrityError as error:
            yield Damage("manifest", checkpoint_id, error.message, (checkpoint_id,))
        except StoreUnusable:
            # A newer crckpt wrote it: that is no damage.
            continue


def _repair_manifest(repository: Repository, source: Repository, checkpoint_id: CheckpointId, directory: Path) -> None:
    """Replace the manifest of a checkpoint. Raises IntegrityError if that is impossible."""
    location = source.backend.location
    try:
        content = source.backend.read(manifest_name(checkpoint_id), MOST_BYTES)
        unseal(content, checkpoint_id)
    except FileNotFoundError:
        raise IntegrityError(f"{location} has no checkpoint {checkpoint_id[:SHORT]}") from None
    except (CrckptError, OSError) as error:
        raise IntegrityError(f"in {location}: {error_text(error)}") from error
    beside = directory / f"{checkpoint_id}.json"
    write_new(beside, content, "manifest")
    repository.backend.put_files({manifest_name(checkpoint_id): beside}, "manifest")


def _repair_pack(repository: Repository, source: Repository, digest: PackId, directory: Path) -> None:
    """Replace a pack. Raises IntegrityError if that is impossible."""
    beside = directory / f"{digest}.pack"
    location = source.backend.location
    if not source.backend.exists(pack_name(digest)):
        raise IntegrityError(f"{location} has no pack {digest[:SHORT]}")
    try:
        reassemble(digest, (source.backend, repository.backend), beside)
        repository.add_packs({digest: beside})
    except IntegrityError as error:
        # An OSError, like a full disk, ends the repair: it would meet every other pack, too.
        raise IntegrityError(f"in {location}: {error.message}") from error


_Part = TypeVar("_Part")


def reassemble(digest: PackId, copies: Sequence[Backend], into: Path) -> None:
    """Write the pack to `into`, a new file, durably, and verify it.

    Raises IntegrityError if no copy has its frame table, or one of the frames (it says what is wrong with the first
    copy, whose store the caller names), OSError if the disk is full. Then there is no file.
    """
    # It imports numpy.
    from crckpt.store.format.pack import FOOTER, MAGIC, open_pack

    pack = _first(copies, lambda backend: open_pack(backend, digest))
    table = pack.table.tobytes()

    def read_intact(frame: int, backend: Backend) -> memoryview:
        # The table holds for every copy: the digest names it.
        stored = replace(pack, backend=backend).read_stored(frame)
        pack.check(frame, stored)
        return stored

    with created(into, "pack") as descriptor:
        write(descriptor, MAGIC, "pack")
        for frame in range(len(pack.table)):
            write(descriptor, _first(copies, partial(read_intact, frame)), "pack")
        end = pack.size - FOOTER.size - len(table)
        write(descriptor, table + FOOTER.pack(end, len(pack.table), PAGE_SIZE, MAGIC), "pack")
        sync(descriptor, "pack")
        # Read back before it replaces anything: only what was verified may do that.
        written = open_pack(Backend(into.parent), digest, into.name)
        for frame in range(len(written.table)):
            written.check(frame, written.read_stored(frame))


def _first(copies: Sequence[Backend], read: Callable[[Backend], _Part]) -> _Part:
    """Read something from the first copy in which it is intact."""
    errors: list[Exception] = []
    for backend in copies:
        try:
            return read(backend)
        except (IntegrityError, OSError) as error:
            errors.append(error)
    raise IntegrityError(str(errors[0]))
