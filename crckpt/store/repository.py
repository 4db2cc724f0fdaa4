"""The store as a whole: open it, lock it, list, name, tag and remove checkpoints."""

from __future__ import annotations

import filecmp
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from crckpt.errors import IntegrityError, NoSuchCheckpoint, StoreUnusable
from crckpt.host.disk.checked_files import check_directory
from crckpt.host.disk.files import (
    LOST,
    add_private_directory,
    is_named,
    losses_passed_over,
    make_private_directory,
    move_durably,
    remove,
    rename,
    sync_directory,
    write_new,
)
from crckpt.model import CheckpointId, JobName
from crckpt.store.format.manifest import Checkpoint, job_named_in, next_sequence, seal, unseal
from crckpt.store.format.names import ID, SHORT
from crckpt.store.layout import Facts, Layout, open_layout
from crckpt.store.lock import TIMEOUT_S, StoreLock, taking_turns
from crckpt.store.pending import Pending, announced, read_pending
from crckpt.store.refs import Known, Tag, read_tags, remove_tag, resolve, write_tag
from crckpt.store.removal import remove_checkpoints
from crckpt.store.transaction import Transaction, transaction


class Unreadable(Struct, frozen=True):
    """A checkpoint whose manifest cannot be read, why, and what helps; `job` is None where even that is illegible."""

    id: CheckpointId
    job: str | None
    why: str
    remedy: str


class Repository:
    """A store. Every method takes the lock that it needs, unless the caller holds it; for one thread.

    Methods raise StoreLocked if the lock cannot be had within the time given to `shared` or `exclusive`.
    """

    def __init__(self, layout: Layout, facts: Facts) -> None:
        """Use `open`."""
        self.layout = layout
        self.facts = facts
        self._lock = StoreLock(layout.root)

    @classmethod
    def open(cls, path: Path, *, create: bool = False) -> Repository:
        """The store at `path`; with `create`, a missing or empty directory is made one.

        Raises StoreUnusable if it is none, if others may read or own it, or if its format is newer.
        """
        return cls(*open_layout(path.absolute(), create=create))

    @property
    def root(self) -> Path:
        """The store's directory."""
        return self.layout.root

    def shared(self, timeout: float = TIMEOUT_S) -> AbstractContextManager[None]:
        """Nothing is removed while the block runs. Raises StoreLocked after `timeout` seconds."""
        return self._lock.held(alone=False, timeout=timeout)

    def exclusive(self, timeout: float = TIMEOUT_S) -> AbstractContextManager[None]:
        """Nobody else uses the store while the block runs. Raises StoreLocked after `timeout` seconds."""
        return self._lock.held(alone=True, timeout=timeout)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A private directory for what is in flight, removed when the block ends."""
        with self.shared(), transaction(self.layout.transactions) as begun:
            yield begun

    def checkpoints(self, job: str | None = None) -> tuple[Checkpoint, ...]:
        """All checkpoints, or those of a job, as they were committed; not those that `unreadable` lists."""
        found, _ = self.read_all()
        return found if job is None else tuple(checkpoint for checkpoint in found if checkpoint.job == job)

    def back_from(self, checkpoint: Checkpoint) -> tuple[Checkpoint, ...]:
        """The checkpoint and those of its job that were committed before it, the newest first."""
        return tuple(found for found in reversed(self.checkpoints(checkpoint.job)) if found.order <= checkpoint.order)

    def ids(self) -> tuple[CheckpointId, ...]:
        """The ids of all checkpoints, readable or not."""
        return tuple(self._named())

    def unreadable(self, job: str | None = None) -> tuple[Unreadable, ...]:
        """Checkpoints whose manifest is damaged or of a newer schema; with `job`, those that may be of that job."""
        return tuple(bad for bad in self.read_all()[1] if job is None or bad.job in (None, job))

    def get(self, checkpoint_id: CheckpointId) -> Checkpoint:
        """Raises NoSuchCheckpoint, IntegrityError if its manifest is damaged or missing, StoreUnusable if newer."""
        try:
            manifest = self.layout.read_manifest(checkpoint_id)
        except FileNotFoundError:
            if is_named(self.layout.checkpoints / checkpoint_id):
                # It came here with its manifest, and goes with it: something else has removed that.
                raise IntegrityError(f"the manifest of checkpoint {checkpoint_id[:SHORT]} is missing") from None
            raise NoSuchCheckpoint(f"there is no checkpoint {checkpoint_id[:SHORT]}") from None
        except IntegrityError as error:
            what = f"the manifest of checkpoint {checkpoint_id[:SHORT]} cannot be read: {error.message}"
            raise IntegrityError(what) from error
        except OSError as error:
            if error.errno in LOST:
                what = f"the manifest of checkpoint {checkpoint_id[:SHORT]} is damaged: {error.strerror}"
                raise IntegrityError(what) from error
            raise
        return unseal(manifest, checkpoint_id)

    def resolve(self, ref: str, *, despite_damage: bool = False) -> CheckpointId:
        """The checkpoint that `ref` names. Raises NoSuchCheckpoint, or UsageError if it fits several; see `refs`.

        Raises IntegrityError if `ref` counts a job's checkpoints and one of them may be damaged, so that nobody knows
        which is the newest; not with `despite_damage`.
        """
        with self.shared():
            if ID.fullmatch(ref) and is_named(self.layout.checkpoints / ref):
                return CheckpointId(ref)
            found, unreadable = self.read_all()
            jobs: dict[JobName, list[CheckpointId]] = {}
            for checkpoint in found:
                jobs.setdefault(checkpoint.job, []).append(checkpoint.id)
            ids = (*(checkpoint.id for checkpoint in found), *(bad.id for bad in unreadable))
            resolved = resolve(ref, Known(jobs, ids, self.tags()))
            job = ref.partition("~")[0]
            damaged = [bad for bad in unreadable if bad.job in (None, job)]
            if damaged and job in jobs and not despite_damage:
                raise IntegrityError(
                    f"{damaged[0].why}; it may be the newest of {job}",
                    hint=f"name one by its id (crckpt list {job}), or give it up: crckpt rm {damaged[0].id[:SHORT]}",
                )
            return resolved

    def tag(self, checkpoint_id: CheckpointId, name: str) -> Tag:
        """Let `JOB:name` name the checkpoint; a tag of that name moves. Raises UsageError, and what `get` raises."""
        with self.shared():
            tag = Tag(self.get(checkpoint_id).job, name, checkpoint_id)
            write_tag(self.layout.tags, tag)
            return tag

    def untag(self, job: str, name: str) -> None:
        """Raises NoSuchCheckpoint if there is no such tag."""
        with self.shared():
            remove_tag(self.layout.tags, job, name)

    def tags(self) -> tuple[Tag, ...]:
        """All tags, by name."""
        return read_tags(self.layout.tags)

    def remove(self, ids: Iterable[CheckpointId]) -> None:
        """Remove checkpoints and their tags; no other checkpoint changes. Their packs stay until `gc`.

        Raises NoSuchCheckpoint, before anything is removed, if one does not exist.
        """
        with self.exclusive():
            doomed = tuple(ids)
            for checkpoint_id in doomed:
                if not ID.fullmatch(checkpoint_id) or not is_named(self.layout.checkpoints / checkpoint_id):
                    raise NoSuchCheckpoint(f"there is no checkpoint {checkpoint_id[:SHORT]}")
            remove_checkpoints(self.layout, doomed)

    def announced(
        self, job: JobName, created: datetime, run_id: str | None, *, alone: bool
    ) -> AbstractContextManager[None]:
        """While the block stores a checkpoint, `pending` names it; see `pending.announced`."""
        return announced(self.layout, job, created, run_id, alone=alone)

    def restoring(self, job: JobName) -> AbstractContextManager[None]:
        """While the block restores a checkpoint of `job`, nobody else does. Raises StoreLocked; see `restoring`."""
        from crckpt.store.restoring import restoring

        return restoring(self.layout, job)

    def pending(self) -> tuple[Pending, ...]:
        """What is being stored, and what was lost since the last gc; oldest first."""
        return read_pending(self.layout)

    def add_packs(self, packs: Mapping[str, Path]) -> None:
        """Take in finished pack files by digest, whose content is durable; they are durable here once this returns.

        The same one stays; a damaged one is mended by it.
        """
        for digest, path in packs.items():
            target = self.layout.pack(digest)
            self.layout.check_pack_directory(digest)
            if _is_same(path, target):
                remove(path, "pack")
            else:
                add_private_directory(target.parent, "pack-directory")
                check_directory(target.parent)
                rename(path, target, "pack")
        # Where one was there too: whoever put it there may have died before the sync, and a manifest will rely on it.
        for directory in sorted({self.layout.pack(digest).parent for digest in packs}):
            sync_directory(directory, "pack")
        sync_directory(self.layout.packs, "pack-directory")

    def add_checkpoint(self, draft: Checkpoint, begun: Transaction) -> Checkpoint:
        """Write a manifest, durably: from here on the checkpoint exists. Its packs must be there.

        It gets the number that follows all that are there: of what is committed at the same time, in turn.
        """
        with taking_turns(self.layout.checkpoints):
            checkpoint, manifest = seal(replace(draft, sequence=next_sequence(self.checkpoints())))
            directory = begun.path / "checkpoint"
            make_private_directory(directory, "checkpoint")
            write_new(directory / "manifest.json", manifest, "manifest")
            sync_directory(directory, "checkpoint")
            move_durably(directory, self.layout.checkpoints / checkpoint.id, "checkpoint")
        return checkpoint

    def read_all(self) -> tuple[tuple[Checkpoint, ...], tuple[Unreadable, ...]]:
        """What `checkpoints` and `unreadable` give, in one reading."""
        found: list[Checkpoint] = []
        unreadable: list[Unreadable] = []
        for checkpoint_id in self._named():
            try:
                found.append(self.get(checkpoint_id))
            except NoSuchCheckpoint:
                continue
            except (IntegrityError, StoreUnusable) as error:
                remedy = error.hint or f"give it up with: crckpt rm {checkpoint_id[:SHORT]}"
                job = None
                with suppress(OSError, IntegrityError):
                    job = job_named_in(self.layout.read_manifest(checkpoint_id))
                unreadable.append(Unreadable(checkpoint_id, job, error.message, remedy))
        found.sort(key=lambda checkpoint: checkpoint.order)
        return tuple(found), tuple(unreadable)

    def _named(self) -> list[CheckpointId]:
        # There may be very many: names alone cost a tenth of paths.
        with os.scandir(self.layout.checkpoints) as entries:
            names = [entry.name for entry in entries if ID.fullmatch(entry.name)]
        return sorted(map(CheckpointId, names))


def _is_same(path: Path, target: Path) -> bool:
    """Whether `target` is that file already; not if it is missing, or if the disk has lost some of it."""
    with suppress(FileNotFoundError), losses_passed_over():
        if not stat.S_ISREG(target.lstat().st_mode):
            return False
        return filecmp.cmp(path, target, shallow=False)
    return False
