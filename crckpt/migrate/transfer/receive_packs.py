"""Receive packs and manifests of another store: nothing enters ours before every byte of it was verified."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property
from itertools import filterfalse
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.errors import IntegrityError, StoreUnusable
from crckpt.host.disk.files import open_private, remove, sync, write
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.frames import BadFrame
from crckpt.migrate.wire.messages import Lacking, Offer, PackMessage, Sent, Stored
from crckpt.model import CheckpointId, PackId
from crckpt.store import Checkpoint, Repository
from crckpt.store.backend.directory import full_store_named
from crckpt.store.backend.local import Backend
from crckpt.store.fingerprints import load_fingerprints, read_key
from crckpt.store.format.manifest import highest_after, unseal
from crckpt.store.format.pack import FEWEST_BYTES, MOST_BYTES, Pack, open_pack
from crckpt.store.layout import SHORT, fingerprints_name, pack_name
from crckpt.store.read.contents import contents_of
from crckpt.store.upkeep.audit import PackAudit, audit_contents
from crckpt.store.workers import Workers, wait_for_result, workers

# Frames that one task verifies, and packs that it looks for.
_FRAMES_AT_ONCE: Final = 16
_PACKS_AT_ONCE: Final = 16


class Receiver:
    """Receives what a move needs into a store, in a transaction, which keeps it; verified once, never read again."""

    def __init__(self, repository: Repository, directory: Path) -> None:
        """`newest` are the packs of the last offer that the store lacked."""
        self.newest: tuple[PackId, ...] = ()
        self._repository = repository
        self._directory = directory
        self._intact: set[PackId] = set()
        self._received: set[PackId] = set()

    @cached_property
    def _highest_sequence(self) -> int:
        """The highest sequence number that a checkpoint of the other host may have."""
        return highest_after(self._repository.highest_sequence())

    def answer_offer(self, connection: Connection, offer: Offer) -> None:
        """Ask for the packs that the store lacks, receive and store them. When it returns, all are durable.

        Raises what `Connection` raises; IntegrityError if a pack is not what its
        digest names; StoreUnusable if the store cannot be written; OSError if its disk is full.
        """
        with full_store_named(self._repository.backend.location), workers() as pool:
            self.newest = lacking = self._find_lacking(map(PackId, offer.digests), pool)
            if not lacking:
                connection.send(Lacking(()))
                return
            self._repository.require_writable()
            incoming = _Incoming(self._directory, frozenset(lacking), pool)
            try:
                with connection.receiving(incoming):
                    connection.send(Lacking(lacking))
                    connection.receive(Sent)
                paths = incoming.finish()
                self._repository.add_packs(paths)
            finally:
                incoming.discard()
        self._intact.update(lacking)
        self._received.update(lacking)
        connection.send(Stored())

    def check_checkpoint(self, manifest: bytes, checkpoint_id: CheckpointId) -> Checkpoint:
        """Check that a checkpoint is whole. Raises IntegrityError; StoreUnusable if a newer crckpt wrote it."""
        checkpoint = unseal(manifest, checkpoint_id)
        name = f"the checkpoint {checkpoint.short_id} of the other host"
        if checkpoint.sequence > self._highest_sequence:
            raise StoreUnusable(
                f"{name} has sequence number {checkpoint.sequence}: too few numbers would be left after it",
                hint="find the first such checkpoint on the source: crckpt list --json; if it is not yours, remove it: "
                "crckpt rm",
            )
        backend = self._repository.backend
        with workers() as pool:
            if missing := self._find_lacking((use.digest for use in checkpoint.packs), pool):
                raise IntegrityError(f"{name} needs pack {missing[0][:SHORT]}, which was not sent")
        audit = PackAudit(packs={use.digest: open_pack(backend, use.digest) for use in checkpoint.packs})
        for use in checkpoint.packs:
            pack = audit.packs[use.digest]
            if use.frames > len(pack.table) or use.pages > pack.pages:
                raise IntegrityError(f"{name} uses more of {pack.name} than there is")
        # The restore reads by the same contents.
        for damage in audit_contents(backend, checkpoint, audit, contents_of(self._repository, checkpoint)):
            raise IntegrityError(f"{name} is damaged: {damage.what}")
        return checkpoint

    def store_checkpoint(self, manifest: bytes, checkpoint_id: CheckpointId) -> Checkpoint:
        """Check a checkpoint, and write its manifest, durably: then it exists here. Raises what both raise."""
        self.check_checkpoint(manifest, checkpoint_id)
        self._repository.require_writable()
        with full_store_named(self._repository.backend.location):
            return self._repository.add_manifest(manifest, checkpoint_id)

    def cache_fingerprints(self) -> None:
        """Compute fingerprints of what was received, seconds for each GB: the next dump, or move here, needs them."""
        backend = self._repository.backend
        key = read_key(backend)
        # What cannot be read or written now is computed when it is needed.
        with suppress(IntegrityError, OSError), workers() as pool:
            tasks = [
                pool.submit(load_fingerprints, backend, key, open_pack(backend, digest)) for digest in self._received
            ]
            for task in tasks:
                wait_for_result(task)

    def _find_lacking(self, digests: Iterable[PackId], pool: Workers) -> tuple[PackId, ...]:
        """Find the packs that are not here, or damaged, as far as that is known without reading what was verified."""
        wanted = tuple(digest for digest in dict.fromkeys(digests) if digest not in self._intact)
        # Not a task for each: the other side may name half a million.
        some = (wanted[first : first + _PACKS_AT_ONCE] for first in range(0, len(wanted), _PACKS_AT_ONCE))
        answers = [pool.submit(lambda digests: [*filterfalse(self._is_intact, digests)], digests) for digests in some]
        lacking = tuple(digest for answer in answers for digest in wait_for_result(answer))
        self._intact.update(set(wanted) - set(lacking))
        return lacking

    def _is_intact(self, digest: PackId) -> bool:
        backend = self._repository.backend
        if not backend.exists(pack_name(digest)):
            return False
        try:
            pack = open_pack(backend, digest)
            # Where damage was found, the fingerprints were removed (see `crckpt.store`): then it is read whole.
            if not backend.exists(fingerprints_name(digest)):
                for first in range(0, len(pack.table), _FRAMES_AT_ONCE):
                    _verify(pack, first)
        except (IntegrityError, OSError):
            return False
        return True


class _Open(Struct):
    digest: PackId
    size: int
    path: Path
    descriptor: int
    received: int = 0

    def sync(self) -> None:
        sync(self.descriptor, "received-pack")
        self.close()

    def close(self) -> None:
        """Close the file. May be called again."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)


class _Incoming:
    """Receives packs as files; the thread that reads calls it, while all cores verify what has come."""

    def __init__(self, directory: Path, wanted: frozenset[str], pool: Workers) -> None:
        self._directory = directory
        self._left = set(wanted)
        self._pool = pool
        self._open: dict[int, _Open] = {}
        self._begun: dict[PackId, _Open] = {}
        self._lock = threading.Lock()
        self._tasks: deque[Future[None]] = deque()

    def begin(self, pack: PackMessage) -> None:
        if pack.digest not in self._left:
            raise BadFrame(f"Pack {pack.digest[:SHORT]}, which was not asked for")
        if pack.channel in self._open:
            raise BadFrame(f"Pack {pack.digest[:SHORT]} on channel {pack.channel}, which is in use")
        if not FEWEST_BYTES <= pack.size <= MOST_BYTES:
            raise BadFrame(f"Pack {pack.digest[:SHORT]} of {pack.size} bytes, which no pack has")
        with self._lock:
            done = [task for task in self._tasks if task.done()]
        for task in done:
            # Raises what has failed.
            task.result()
        path = self._directory / f"{pack.digest}.pack"
        opened = _Open(PackId(pack.digest), pack.size, path, open_private(path, "received-pack"))
        self._open[pack.channel] = self._begun[opened.digest] = opened
        self._left.remove(pack.digest)

    def add(self, channel: int, content: memoryview) -> None:
        pack = self._open.get(channel)
        if pack is None:
            raise BadFrame(f"data on channel {channel}, where no pack has begun")
        if pack.received + len(content) > pack.size:
            raise BadFrame(f"more data of Pack {pack.digest[:SHORT]} than it has bytes")
        write(pack.descriptor, content, "received-pack")
        pack.received += len(content)
        if pack.received == pack.size:
            del self._open[channel]
            self._submit(pack.sync)
            self._submit(lambda: self._verify(pack))

    def finish(self) -> dict[PackId, Path]:
        """Wait until all is durable; return the files. Raises IntegrityError if something is missing or damaged."""
        if self._left or self._open:
            missing = next(iter(self._left), "") or next(iter(self._open.values())).digest
            raise IntegrityError(f"pack {missing[:SHORT]} was not sent whole")
        while True:
            with self._lock:
                task = self._tasks.popleft() if self._tasks else None
            if task is None:
                return {digest: pack.path for digest, pack in self._begun.items()}
            try:
                wait_for_result(task)
            except IntegrityError as error:
                raise IntegrityError(
                    f"{error.message}: it is damaged in the store of the source, or was changed on the way",
                    hint=error.hint or "check the store of the source: crckpt verify",
                ) from error

    def discard(self) -> None:
        """Remove what is left of the files: after a failure, all. `begin` and `add` are not called any more."""
        with self._lock:
            tasks, self._tasks = self._tasks, deque()
        for task in tasks:
            # A thread may still use its file.
            if not task.cancel():
                with suppress(Exception):
                    wait_for_result(task)
        for pack in self._begun.values():
            pack.close()
            with suppress(OSError):
                remove(pack.path, "received-pack")

    def _submit(self, work: Callable[[], None]) -> None:
        task = self._pool.submit(work)
        with self._lock:
            self._tasks.append(task)

    def _verify(self, received: _Open) -> None:
        pack = open_pack(Backend(self._directory), received.digest, received.path.name)
        tasks = [self._pool.submit(_verify, pack, first) for first in range(0, len(pack.table), _FRAMES_AT_ONCE)]
        with self._lock:
            self._tasks.extend(tasks)


def _verify(pack: Pack, first: int) -> None:
    """Raise IntegrityError if one of some frames is not what its pack's table says."""
    for frame in range(first, min(first + _FRAMES_AT_ONCE, len(pack.table))):
        pack.check(frame, pack.read_stored(frame))
