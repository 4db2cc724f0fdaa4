"""Store a sample of a tree's memory on trial, and predict how much its checkpoint would add to the store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.errors import CrckptError, HostCannot
from crckpt.host.disk import space
from crckpt.host.observe import memory as resident
from crckpt.host.observe.tree import Observed
from crckpt.model import PAGE_SIZE, JobName
from crckpt.ops.context import Context
from crckpt.preflight.dump.space import Growth, predict_growth
from crckpt.store import STAGING, Repository, staged
from crckpt.store.write.storage_estimate import StorageTrial, TrialResult

# Bytes of the tree's memory that are stored on trial: some 50 ms.
_SAMPLE: Final = 12 << 20

# For the decision whether a dump fits: repeated pages show only in a larger sample.
_LARGE_SAMPLE: Final = 32 << 20

# Of the wanted sample: a smaller one is not representative.
_LEAST: Final = 1 / 4

# Of the free space: the sample is written twice, and other programs need space, too.
_OF_FREE: Final = 1 / 4

_ZEROES: Final = bytes(PAGE_SIZE)


class TrialPlace(Struct, frozen=True):
    """Directories on the disks that a dump would use, a store of our own, and what stores a sample on trial.

    `is_next`: the dump would follow another checkpoint of its job.
    """

    work: Path
    staging: Path
    own: Repository
    on_trial: StorageTrial
    is_next: bool
    assumes: str

    def store(self, memory: list[bytes]) -> tuple[TrialResult, TrialResult]:
        """Store one new page alone, and with `memory`: the difference is without the fixed cost of a pack."""
        page = os.urandom(PAGE_SIZE)
        return self._store([page]), self._store([page, *memory])

    def _store(self, content: list[bytes]) -> TrialResult:
        path = self.work / "memory"
        path.touch(mode=0o600)
        path.write_bytes(b"".join(content))
        try:
            return self.on_trial.store(path)
        finally:
            path.unlink()


@contextmanager
def opened_trial_place(job: JobName, context: Context) -> Iterator[TrialPlace]:
    """Make the directories, and remove them after the block. Raises StoreUnusable, StoreLocked, OSError."""
    above = space.nearest_existing(context.store)
    store = context.repository() if above == context.store and any(above.iterdir()) else None
    with ExitStack() as stack:
        # The lock is held for a moment only: what `StorageTrial` needs of the store stays open even if it is removed.
        with store.shared() if store else nullcontext():
            work = stack.enter_context(staged(store.backend.scratch if store else above))
            # Use our own store on the same disk: the trial must leave nothing in the user's.
            own = Repository.open(work / "own", create=True)
            series = store.checkpoints(job) if store else ()
            on_trial = StorageTrial(store or own, series[-1] if series else None, work, context.compress)
        staging = work
        if context.staging is not None:
            staging = stack.enter_context(staged(context.staging))
            (work / STAGING).symlink_to(staging)
        which = "next" if series else "first"
        assumes = f"as the {which} checkpoint of {job} in {context.store}{'' if store else ' (a new store)'}"
        yield TrialPlace(work, staging, own, on_trial, bool(series), assumes)


def read_sample(observed: Observed, most: int = _SAMPLE) -> list[bytes]:
    """Read some of the tree's memory, in runs of whole pages. Raises HostCannot if too little can be read."""
    wanted = min(most, observed.memory)
    sample = list(resident.sample(observed.tree.pids, observed.memory, wanted))
    if sum(map(len, sample)) < wanted * _LEAST:
        raise HostCannot("crckpt can read too little of the tree's memory: it is swapped out or sparse")
    return sample


def try_growth(observed: Observed, job: JobName, context: Context, images: int) -> Growth | None:
    """Predict how much a checkpoint with `images` bytes of images adds to the store. None if that cannot be tried."""
    free = space.free_disk(space.nearest_existing(context.store))
    try:
        with opened_trial_place(job, context) as place:
            sample = read_sample(observed, min(_LARGE_SAMPLE, int(free * _OF_FREE)))
            alone, most = place.store(sample)
    # The dump may work all the same.
    except (CrckptError, OSError):
        return None
    stored = max(most.stored - alone.stored, 0)
    return predict_growth(images, observed.memory, sum(map(len, sample)), _count_repeated(sample), stored)


def _count_repeated(sample: list[bytes]) -> int:
    pages = [run[at : at + PAGE_SIZE] for run in sample for at in range(0, len(run), PAGE_SIZE)]
    written = [page for page in pages if page != _ZEROES]
    return len(written) - len(set(written))
