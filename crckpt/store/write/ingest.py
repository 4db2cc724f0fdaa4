"""Store an image directory: new pages become packs, and a manifest makes the checkpoint.

`Preparation` begins that while CRIU still dumps: the tree is frozen then, and leaves a core idle.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict

from crckpt.errors import CrckptError, IntegrityError
from crckpt.host.process.signals import interrupts_deferred
from crckpt.model import CheckpointId, DumpOptions, Host, JobName, RunId, Statistics, Task
from crckpt.store.backend.directory import full_store_named
from crckpt.store.format.manifest import Checkpoint
from crckpt.store.layout import check_name
from crckpt.store.repository import BeforeWrite, Repository

if TYPE_CHECKING:
    from crckpt.store.write.examine_pages import ExaminedPages
    from crckpt.store.write.known_pages import KnownPages


class Preparation:
    """Imports what `ingest` needs, loads what the parent has, and examines the pages that CRIU has already written.

    For one set of images only. The caller holds the lock of the store, so that nothing of the parent is removed.
    `ingest` reads the pages again. So it leaves alone images that another user could change.
    """

    def __init__(self, repository: Repository, images: Path | None = None, parent: CheckpointId | None = None) -> None:
        """Without `images` it only imports. `parent` is the parent of the images, if `ingest` does not search."""
        self._repository = repository
        self._backend = repository.backend
        self._parent = parent
        self._known: KnownPages | None = None
        self._loading = threading.Lock()
        # Without a second core it would slow CRIU down, and freeze the tree for longer.
        self._images = images if len(os.sched_getaffinity(0)) > 1 else None
        self._is_over = threading.Event()
        self.examined: dict[tuple[str, int], ExaminedPages] = {}

    def run(self) -> None:
        """Work until another thread calls `end`. Failures are left to `ingest`, where they are reported."""
        with suppress(ImportError, OSError, MemoryError, IntegrityError):
            self.load()
            if self._images is not None:
                from crckpt.store.fingerprints import read_key
                from crckpt.store.write.examine_pages import examine_growing_images
                from crckpt.store.write.known_pages import KnownPages

                with self._loading, suppress(CrckptError):
                    if self._parent is not None and not self._is_over.is_set():
                        parent = self._repository.get(self._parent)
                        self._known = KnownPages(self._backend, read_key(self._backend), parent, None)
                examine_growing_images(self._images, read_key(self._backend), self._is_over, self.examined)

    def load(self) -> None:
        """Import what `ingest` needs, numpy above all: that takes a tenth of a second. Raises ImportError."""
        import crckpt.store.write.packing  # noqa: F401

    def take_known(self, parent: Checkpoint | None) -> KnownPages | None:
        """Take the pages of this parent, if they were loaded; wait for that if it has begun."""
        with interrupts_deferred(), self._loading:
            known, self._known = self._known, None
        return known if known is not None and parent is not None and parent.id == self._parent else None

    def end(self) -> None:
        """Let `run` return soon. What it has examined can still be found."""
        self._is_over.set()


class NewCheckpoint(Struct, frozen=True):
    """The facts that the caller knows of a new checkpoint; the fields are those of `Checkpoint`.

    `details` is JSON that may be secret: it is stored in a pack. Without `parent` the newest checkpoint of the job is
    the parent. `base` is the directory with the parent's images that CRIU used, for which `parent` must be given: the
    parent has the pages that the images leave to it. The directory may be gone.
    """

    job: JobName
    created: datetime
    host: Host
    options: DumpOptions
    tree: tuple[Task, ...]
    frozen_ms: float
    dump_ms: float
    details: bytes
    parent: CheckpointId | None = None
    base: Path | None = None
    note: str | None = None
    run_id: RunId | None = None
    stopped: bool = False
    config_digest: str | None = None


def ingest(
    repository: Repository,
    images: Path,
    new: NewCheckpoint,
    *,
    compress: int | None = None,
    dedup: bool = True,
    searches: bool = True,
    copies: bool = True,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    at_least: int = 0,
    before: BeforeWrite | None = None,
    preparation: Preparation | None = None,
) -> Checkpoint:
    """Store the images in the directory `images`; the checkpoint is durable when this returns.

    `compress` is a zstd level, or None to choose one that suits the pages. `progress` gets (bytes done, bytes in all).
    Without `dedup` every page that is not zero is stored, to measure what dedup saves. Without `searches` known
    pages are found only where the parent has them: that is quicker. Without `copies` no known page is stored again so
    that old packs die. `at_least` and `before` are for `Repository.add_checkpoint`. `preparation` has run for
    these images. After a failure there is no checkpoint.

    Memory: 40 MiB, up to 64 bytes a page of the first 16 GiB of images (192 MiB for all of them), some 8 bytes for each
    page, some 300 bytes for each extent, and up to 25 MiB of a preparation: some 475 MiB for 64 GiB in few pieces. The
    fingerprints of the parent's pages are mapped from files, 16 bytes a page: the kernel can take that memory back. To
    find pages of other jobs it takes up to 96 MiB for packs that have some, and what `page_samples` says.

    Raises IntegrityError if the images contradict each other, or leave pages to the parent that it lacks, UsageError
    for a bad job name, OSError if the disk is full.
    """
    from crckpt.store.fingerprints import cache_fingerprints
    from crckpt.store.write.packing import pack_images

    check_name(new.job, "job")
    began = time.monotonic()
    preparation = preparation or Preparation(repository)
    preparation.end()
    with full_store_named(repository.backend.location), repository.shared(), repository.transaction() as directory:
        series = repository.checkpoints(new.job) if new.parent is None else (repository.get(new.parent),)
        parent = series[-1] if series else None
        packed = pack_images(
            repository.backend,
            parent,
            images,
            new.details,
            new.base,
            directory,
            level=compress,
            dedup=dedup,
            searches=searches,
            copies=copies,
            progress=progress,
            count_uses=lambda: _count_uses_of_others(repository, new.job),
            examined=preparation.examined,
            loaded=preparation.take_known(parent) if dedup and not searches else None,
        )
        # The manifest goes last: it exists if and only if the checkpoint does.
        repository.add_packs({written.digest: written.path for written in packed.packs})
        for written in packed.packs:
            cache_fingerprints(repository.backend, written)
        if packed.samples is not None:
            packed.samples.add((written.digest for written in packed.packs), directory)
        described = asdict(new)
        for name in ("details", "base", "frozen_ms", "dump_ms"):
            del described[name]
        draft = Checkpoint(
            **described | {"parent": parent.id if parent else None},
            id=CheckpointId(""),
            packs=packed.uses,
            index=packed.index,
            statistics=Statistics(
                frozen_ms=new.frozen_ms,
                dump_ms=new.dump_ms,
                # Without the time for the manifest, which holds this number.
                commit_ms=(time.monotonic() - began) * 1000,
                **packed.statistics,
            ),
        )
        return repository.add_checkpoint(draft, at_least=at_least, before=before)


def _count_uses_of_others(repository: Repository, job: JobName) -> dict[str, int]:
    """Count the pages of each pack that the checkpoint of another job uses that uses most of it."""
    uses: dict[str, int] = {}
    for checkpoint in repository.checkpoints():
        if checkpoint.job != job:
            for use in checkpoint.packs:
                uses[use.digest] = max(use.pages, uses.get(use.digest, 0))
    return uses
