"""A store and its store.json: open it, lock it; list, resolve, tag, add and remove checkpoints."""

from __future__ import annotations

import errno
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from crckpt.errors import IntegrityError, NoSuchCheckpoint, StoreUnusable
from crckpt.host.disk.files import LOST
from crckpt.host.process.typed_command import name_store
from crckpt.host.steps import limit
from crckpt.model import CheckpointId, JobName, PackId, StoreId
from crckpt.store.backend.directory import make_read_error, make_write_error, prepare_directory
from crckpt.store.backend.local import Backend, Fetch, LateBackend
from crckpt.store.documents import decode
from crckpt.store.format.manifest import MOST_BYTES, Checkpoint, job_named_in, next_sequence, seal, unseal
from crckpt.store.layout import (
    CHECKPOINTS,
    DESCRIPTION,
    ID,
    LABEL,
    NAME,
    SHORT,
    TAGS,
    check_name,
    checkpoint_directory,
    job_label,
    manifest_name,
    pack_name,
    restored_name,
)
from crckpt.store.pending import PendingCheckpoint, read_pending
from crckpt.store.refs import RefTargets, Tag, read_tags, remove_tag, resolve
from crckpt.store.transaction import transaction

FORMAT: Final = 1
_MOST_DESCRIPTION: Final = 64 << 10


def new_description() -> bytes:
    """Return the store.json of a new store."""
    entries = {
        "format": FORMAT,
        "id": str(uuid.uuid4()),
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
    }
    return json.dumps(entries, sort_keys=True, indent=1).encode() + b"\n"


def read_store_id(backend: Backend) -> StoreId:
    """Read the id in store.json.

    Raises StoreUnusable if it is damaged or of a newer format, IntegrityError if it is no file.
    """
    content, name = backend.read(DESCRIPTION, _MOST_DESCRIPTION), f"{backend.location}/{DESCRIPTION}"
    try:
        # First the format alone: a newer one may have other entries.
        found = decode(content, _Format, name).format
        if found == FORMAT:
            return decode(content, _Description, name).id
    except (IntegrityError, msgspec.ValidationError) as error:
        # All else that a store holds describes itself.
        anew = json.dumps({"format": FORMAT, "id": str(uuid.uuid4())})
        raise StoreUnusable(
            f"{name} is damaged",
            hint=f"restore it from a backup; without one: echo '{anew}' > {quote(name)}; "
            f"then: crckpt verify --all --store {quote(backend.location)}",
        ) from error
    raise StoreUnusable(
        f"the store {backend.location} has format {found}; this crckpt knows format {FORMAT}",
        hint=f"use a crckpt that knows store format {found}",
    )


class _Format(Struct):
    format: int


class _Description(Struct):
    id: StoreId


TIMEOUT_S: Final = limit("CRCKPT_LOCK_S", 10)

BeforeWrite: TypeAlias = Callable[[Checkpoint, bytes], None]
"""Called with a checkpoint and its manifest just before the manifest is written; may raise, then it is not written."""


class UnreadableCheckpoint(Struct, frozen=True):
    """A checkpoint whose manifest cannot be read, why, and the remedy; `job` is None if that cannot be read either."""

    id: CheckpointId
    job: JobName | None
    why: str
    remedy: str


class Repository:
    """A store, for one thread. Every method takes the lock that it needs, unless the caller holds it.

    Methods raise StoreLocked if the lock cannot be had within the time given to `shared` or `exclusive`.
    """

    def __init__(self, backend: Backend, store_id: StoreId) -> None:
        """`open` opens a store in a directory."""
        self.backend = backend
        self.id = store_id
        # A process may hold the lock several times, nested.
        self._depth = 0
        self._is_alone = False

    @classmethod
    def open(cls, path: Path, *, create: bool = False) -> Repository:
        """Open the store in the directory `path`; with `create`, a missing or empty directory becomes one.

        Raises StoreUnusable if it is none, if other users can read or own it, or if its format is newer; with `create`
        also if it cannot be written.
        """
        root = path.absolute()
        try:
            prepare_directory(root, new_description() if create else None)
            backend = Backend(root)
            repository = cls(backend, read_store_id(backend))
        except IntegrityError as error:
            hint = "a store must not contain symbolic links: restore it from a backup"
            raise StoreUnusable(error.message, hint=hint) from error
        except PermissionError as error:
            raise make_read_error(root) from error
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.EROFS):
                raise
            raise StoreUnusable(f"the store {root} cannot be used: {error.strerror}", hint=name_store()) from error
        if create:
            repository.require_writable()
        return repository

    def with_late_packs(self, checkpoint: Checkpoint, manifest: bytes, fetch: Fetch) -> Repository:
        """Return the same store with a checkpoint that it does not have yet: `fetch` reads what its packs lack."""
        packs = (use.digest for use in checkpoint.packs)
        return Repository(LateBackend(self.root, checkpoint.id, packs, manifest, fetch), self.id)

    @property
    def root(self) -> Path:
        """The directory of a store on this host."""
        return Path(self.backend.location)

    def require_writable(self) -> None:
        """Raise StoreUnusable if this process cannot write to the store."""
        if refusal := self.backend.find_write_refusal():
            raise make_write_error(self.root, refusal)

    def shared(self, timeout: float = TIMEOUT_S) -> AbstractContextManager[None]:
        """Let nobody remove anything while the block runs. Raises StoreLocked after `timeout` seconds."""
        return self._locked(alone=False, timeout=timeout)

    def exclusive(self, timeout: float = TIMEOUT_S) -> AbstractContextManager[None]:
        """Let nobody else use the store while the block runs. Raises StoreLocked after `timeout` seconds.

        Raises StoreUnusable if it cannot be written.
        """
        self.require_writable()
        return self._locked(alone=True, timeout=timeout)

    @contextmanager
    def _locked(self, *, alone: bool, timeout: float) -> Iterator[None]:
        if self._depth and alone and not self._is_alone:
            # It would wait for itself: flock(2) locks of two descriptors exclude each other in one process, too.
            raise RuntimeError("the store's lock is held shared; it cannot be had alone inside that")
        with ExitStack() as stack:
            if not self._depth:
                stack.enter_context(self.backend.locked(alone=alone, timeout=timeout))
                self._is_alone = alone
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    @contextmanager
    def transaction(self) -> Iterator[Path]:
        """Make a private directory for what is in flight, removed when the block ends. Raises StoreUnusable."""
        self.require_writable()
        with self.shared(), transaction(self.backend.scratch) as path:
            yield path

    def checkpoints(self, job: JobName | None = None) -> tuple[Checkpoint, ...]:
        """Return all checkpoints, or those of a job, in the order of their commits, without those of `unreadable`."""
        found, _ = self.read_all()
        return found if job is None else tuple(checkpoint for checkpoint in found if checkpoint.job == job)

    def back_from(self, checkpoint: Checkpoint) -> tuple[Checkpoint, ...]:
        """Return the checkpoint and the older ones of its job, the newest first."""
        return tuple(found for found in reversed(self.checkpoints(checkpoint.job)) if found.order <= checkpoint.order)

    def ids(self) -> tuple[CheckpointId, ...]:
        """Return the ids of all checkpoints, readable or not."""
        return tuple(CheckpointId(name) for name in self.backend.names_in(CHECKPOINTS) if ID.fullmatch(name))

    def unreadable(self, job: JobName | None = None) -> tuple[UnreadableCheckpoint, ...]:
        """Return checkpoints whose manifest is damaged or newer; with `job`, those that may be of that job."""
        return tuple(bad for bad in self.read_all()[1] if job is None or bad.job in (None, job))

    def get(self, checkpoint_id: CheckpointId) -> Checkpoint:
        """Read a checkpoint's manifest.

        Raises NoSuchCheckpoint, IntegrityError if the manifest is damaged or missing, StoreUnusable if it is newer.
        """
        try:
            manifest = self.backend.read(manifest_name(checkpoint_id), MOST_BYTES)
        except FileNotFoundError:
            if self.backend.exists(checkpoint_directory(checkpoint_id)):
                # A checkpoint's directory comes and goes with its manifest: something else has removed that.
                raise IntegrityError(f"the manifest of checkpoint {checkpoint_id[:SHORT]} is missing") from None
            raise NoSuchCheckpoint(f"there is no checkpoint {checkpoint_id[:SHORT]}") from None
        except (IntegrityError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in LOST:
                raise
            why = f"is damaged: {error.strerror}" if isinstance(error, OSError) else f"cannot be read: {error.message}"
            raise IntegrityError(f"the manifest of checkpoint {checkpoint_id[:SHORT]} {why}") from error
        return unseal(manifest, checkpoint_id)

    def resolve(self, ref: str, *, despite_damage: bool = False) -> CheckpointId:
        """Find the checkpoint that `ref` names; see `refs`. Raises NoSuchCheckpoint, or UsageError if it fits several.

        Raises IntegrityError if `ref` counts a job's checkpoints and one of them may be damaged, so that the newest is
        unknown; not with `despite_damage`.
        """
        with self.shared():
            # A whole id needs no other manifest: it works however many there are, and even if all others are damaged.
            if ID.fullmatch(ref) and self.backend.exists(checkpoint_directory(whole := CheckpointId(ref))):
                return whole
            found, unreadable = self.read_all()
            jobs: dict[JobName, list[CheckpointId]] = {}
            for checkpoint in found:
                jobs.setdefault(checkpoint.job, []).append(checkpoint.id)
            ids = (*(checkpoint.id for checkpoint in found), *(bad.id for bad in unreadable))
            resolved = resolve(ref, RefTargets(jobs, ids, self.tags()))
            job = ref.partition("~")[0]
            damaged = [bad for bad in unreadable if bad.job in (None, job)]
            if damaged and job in jobs and not despite_damage:
                raise IntegrityError(
                    f"{damaged[0].why}; it may be the newest of {job}",
                    hint=f"name another by its id (crckpt list {job}); or {damaged[0].remedy}",
                )
            return resolved

    def tag(self, checkpoint_id: CheckpointId, name: str) -> Tag:
        """Make `JOB:name` name the checkpoint; an existing tag moves. Raises UsageError, and what `get` raises."""
        self.require_writable()
        with self.shared():
            tag = Tag(self.get(checkpoint_id).job, name, checkpoint_id)
            path = f"{TAGS}/{check_name(tag.job, 'job')}/{check_name(name, 'tag')}"
            self.backend.put(path, f"{tag.id}\n".encode(), "tag")
            return tag

    def untag(self, job: JobName, name: str) -> None:
        """Remove a tag. Raises NoSuchCheckpoint if there is none of that name."""
        self.require_writable()
        with self.shared():
            remove_tag(self.backend, job, name)

    def tags(self) -> tuple[Tag, ...]:
        """Return all tags, by name."""
        return read_tags(self.backend)

    def mark_restored(self, checkpoint_id: CheckpointId) -> None:
        """Record durably that a checkpoint was restored: the state of its program is no longer in it alone.

        Raises StoreUnusable or OSError if the store cannot be written.
        """
        # As root we could write into another user's store: our file would be in the way there.
        self.require_writable()
        with self.shared():
            self.backend.put(restored_name(checkpoint_id), b"", "restored")

    def is_restored(self, checkpoint_id: CheckpointId) -> bool:
        """Return whether `mark_restored` was called for the checkpoint."""
        return self.backend.exists(restored_name(checkpoint_id))

    def remove(self, ids: Iterable[CheckpointId]) -> None:
        """Remove checkpoints and their tags; no other checkpoint changes. Their packs stay until `gc`.

        Raises NoSuchCheckpoint, before anything is removed, if one does not exist.
        """
        with self.exclusive():
            doomed = tuple(dict.fromkeys(ids))
            for checkpoint_id in doomed:
                if not ID.fullmatch(checkpoint_id) or not self.backend.exists(checkpoint_directory(checkpoint_id)):
                    raise NoSuchCheckpoint(f"there is no checkpoint {checkpoint_id[:SHORT]}")
            for tag in self.tags():
                if tag.id in doomed:
                    remove_tag(self.backend, tag.job, tag.name)
            for checkpoint_id in doomed:
                with suppress(FileNotFoundError):
                    self.backend.remove(restored_name(checkpoint_id), "restored")
            self.backend.remove_at_once(map(checkpoint_directory, doomed), "doomed")

    def restoring(
        self, job: JobName, timeout: float = TIMEOUT_S, *, alone: bool = True
    ) -> AbstractContextManager[None]:
        """Let nobody else restore a checkpoint of `job` while the block does. Those that are not `alone` let others in.

        Raises StoreLocked if another restore has not ended after `timeout` seconds.
        """
        return self.backend.restores_locked(JobName(check_name(job, "job")), timeout, alone=alone)

    def pending(self) -> tuple[PendingCheckpoint, ...]:
        """Return what is being stored, and what was lost since the last gc; oldest first."""
        return read_pending(self.backend)

    def add_packs(self, packs: Mapping[PackId, Path]) -> None:
        """Move finished pack files, whose content is durable, into the store by digest. Durable when it returns.

        An intact pack stays; a damaged one is replaced.
        """
        self.backend.put_files({pack_name(digest): path for digest, path in packs.items()}, "pack")

    def highest_sequence(self) -> int:
        """Return the highest sequence number of a checkpoint; 0 if there is none."""
        return max((checkpoint.sequence for checkpoint in self.checkpoints()), default=0)

    def add_checkpoint(self, draft: Checkpoint, *, at_least: int = 0, before: BeforeWrite | None = None) -> Checkpoint:
        """Write a manifest, durably: then the checkpoint exists. Its packs must be there.

        Its sequence number is above all others, and `at_least` this. `before` is called when nothing can change any
        more, before anything is written; if it raises, there is no checkpoint. It may take long, so others commit
        meanwhile: the caller holds the tree, and they are of other trees. What `next_sequence` raises.
        """
        # Commits take turns: two at once would find the same highest number. A wrong clock once kept a checkpoint the
        # newest of its job for two days, so numbers decide the order.
        with ExitStack() as turn:
            turn.enter_context(self.backend.turn_taken(CHECKPOINTS, TIMEOUT_S))
            checkpoint, manifest = seal(replace(draft, sequence=next_sequence(self.checkpoints(), at_least)))
            if before is not None:
                turn.close()
                before(checkpoint, manifest)
            self.backend.put_if_absent(manifest_name(checkpoint.id), manifest, job_label(checkpoint.job), "manifest")
        return checkpoint

    def add_manifest(self, manifest: bytes, checkpoint_id: CheckpointId) -> Checkpoint:
        """Write the manifest of another store as it is, durably; the same one may be there. Its packs must be there.

        Raises what `unseal` raises, and IntegrityError if a damaged one is there.
        """
        checkpoint = unseal(manifest, checkpoint_id)
        try:
            self.backend.put_if_absent(manifest_name(checkpoint_id), manifest, job_label(checkpoint.job), "manifest")
        except FileExistsError:
            self.get(checkpoint_id)
            # Whoever has put it may have died before its sync.
            self.backend.sync_names(CHECKPOINTS, "manifest")
        return checkpoint

    def read_all(self) -> tuple[tuple[Checkpoint, ...], tuple[UnreadableCheckpoint, ...]]:
        """Return what `checkpoints` and `unreadable` do, but read the manifests once."""
        found: list[Checkpoint] = []
        unreadable: list[UnreadableCheckpoint] = []
        for checkpoint_id in self.ids():
            try:
                found.append(self.get(checkpoint_id))
            except NoSuchCheckpoint:
                # Removed since it was listed.
                continue
            except (IntegrityError, StoreUnusable) as error:
                copy = "repair it from a copy of the store: crckpt verify --repair --from STORE"
                remedy = error.hint or f"{copy}; or remove it: crckpt rm {checkpoint_id[:SHORT]}"
                unreadable.append(
                    UnreadableCheckpoint(checkpoint_id, self._find_job(checkpoint_id), error.message, remedy)
                )
        found.sort(key=lambda checkpoint: checkpoint.order)
        return tuple(found), tuple(unreadable)

    def _find_job(self, checkpoint_id: CheckpointId) -> JobName | None:
        """Find the job of a checkpoint whose manifest is damaged; None if that is not known."""
        # Tells `resolve` whether this may be the newest checkpoint of a job.
        with suppress(OSError, IntegrityError):
            for name in self.backend.names_in(checkpoint_directory(checkpoint_id)):
                if name.startswith(LABEL) and NAME.fullmatch(job := name.removeprefix(LABEL)):
                    return JobName(job)
        with suppress(OSError, IntegrityError):
            # Older crckpts wrote no label.
            return job_named_in(self.backend.read(manifest_name(checkpoint_id), MOST_BYTES))
        return None
