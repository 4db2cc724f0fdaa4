"""Rounds: what was written is copied while the tree runs, until little is left for the freeze."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from crckpt.causes import cause
from crckpt.criu.command import Paths, pre_dump_command
from crckpt.criu.find import Criu
from crckpt.errors import HostCannot
from crckpt.host.proc import Tree
from crckpt.host.process.descriptor_limit import open_files, with_open_files
from crckpt.host.process.signals import interrupts_let_in
from crckpt.images.stats import read_dump_stats
from crckpt.model import PAGE_SIZE, criu_release
from crckpt.ops.context import Context
from crckpt.ops.dump.examine import Subject, Unfit, succeeded
from crckpt.ops.dump.forecast import left_to_freeze
from crckpt.ops.dump.gate import gated
from crckpt.ops.dump.lineage import Copied, Way
from crckpt.ops.dump.parent_images import keep_page_maps
from crckpt.ops.failures import refused
from crckpt.store import STAGING, Repository, handed_over
from crckpt.tracking.keeper.client import ENDED
from crckpt.tracking.tracker import untracked
from crckpt.tracking.uffd_wp import UffdWp

_FEW: Final = 512
"""Pages: to start CRIU once more costs more than they do."""

_UNKNOWN: Final = (0, 0)
_READS: Final = (4, 0)
"""The release of CRIU from which on it may read: one before 3.17.1 waits for ever where many pages follow each other,
and those before this one are told that all is written, each time."""

_LESS: Final = 0.8
"""Of the round before: a round that copied more was in vain."""


def take(subject: Subject, way: Way, repository: Repository, work: Path) -> Copied:
    """Copy what was written since the last round, or dump; everything if the tree does not fit that any more.

    CRIU's log comes to be in the directory `work`. Raises HostCannot if nothing tells what was written, and why;
    DumpFailed, and the rounds before are lost; PreflightRefused if CRIU may not open enough descriptors.
    """
    try:
        return _taken(subject, way, repository, work)
    except Unfit as error:
        way.unfit(error.why)
        return _taken(subject, way, repository, work)


def take_rounds(
    subject: Subject,
    way: Way,
    repository: Repository,
    work: Path,
    most: int,
    fits: Callable[[Copied], bool],
) -> tuple[Copied, ...]:
    """Take rounds, `most` at the most, until one `fits` or no longer pays; none where nothing tells what was written.

    Raises DumpFailed, PreflightRefused (CRIU may not open the descriptors that a round takes), Interrupted (between two
    rounds).
    """
    copied: list[Copied] = []
    try:
        for one in worthwhile(lambda: take(subject, way, repository, work), most, fits):
            copied.append(one)
            with interrupts_let_in():
                pass  # what came while CRIU ran is heard here
    except HostCannot as error:
        way.give_up(error.message)
    return tuple(copied)


def worthwhile(take_one: Callable[[], Copied], most: int, fits: Callable[[Copied], bool]) -> Iterator[Copied]:
    """Yield each round that `take_one` takes, until one `fits`, `most` were taken, or another would not pay."""
    copied: list[Copied] = []
    while len(copied) < most and not (copied and fits(copied[-1])) and _pays(copied):
        copied.append(take_one())
        yield copied[-1]


def why_none(way: Way) -> str:
    """Why there are no rounds: where there is no tracker, the sentence on it says that."""
    return way.told.why_full if way.told.tracker else way.told.why or way.told.why_full


def _taken(subject: Subject, way: Way, repository: Repository, work: Path) -> Copied:
    began = time.monotonic()
    new = cache(lambda: _staged(subject.context, repository, way))
    way.begin(repository, subject.criu.path, new)
    if not way.tracks:
        raise HostCannot(why_none(way))
    images = way.base.next_round() if way.base else new() / "1"
    images.mkdir(mode=0o700)
    before = str(way.base.before) if way.base else None
    root, criu = subject.seen.tree.root, subject.criu
    words = pre_dump_command(criu.path, root.pid, Paths(images, work), before, reads=_reads(way, criu))
    command = (*_enough_files(subject, way), *way.environment, *words)
    outcome = gated(subject, command, work / "pre-dump.log", way)
    if way.is_late and outcome.status >= 0:
        # It will not say that anything counts from here.
        raise HostCannot(ENDED)
    succeeded(subject, outcome)
    if way.base:
        way.base.lend_pages(images)
    keep_page_maps(images)
    stats = read_dump_stats((work / "stats-dump").read_bytes())
    if not stats.pages_scanned:
        # CRIU does nothing to processes that are stopped: of a tree that is it has reset nothing.
        way.frozen()
    way.committed(str(images))
    _must_count(way, images)
    return Copied(
        int(images.name),
        stats.pages_written + stats.shared_pages_written,
        (stats.pages_written + stats.shared_pages_written) * PAGE_SIZE,
        (_untracked(way.told.tracker, subject.seen.tree) + stats.shared_pages_written) * PAGE_SIZE,
        (time.monotonic() - began) * 1000,
        stats.frozen_time / 1000,
    )


def _enough_files(subject: Subject, way: Way) -> tuple[str, ...]:
    """Words before a CRIU that is to open more descriptors than it may now. Raises PreflightRefused if it may not."""
    limits, processes = open_files(), len(subject.seen.tree.processes)
    needed = limits.needed(subject.seen.memory, processes)
    if needed > limits.soft and way.base is not None:
        # All of the memory is more than what was written of it, which takes its time to find.
        tracked, whole = left_to_freeze(subject.seen.tree.root, way.told.tracker)
        size = tracked + whole + _untracked(way.told.tracker, subject.seen.tree) * PAGE_SIZE
        needed = min(needed, limits.needed(size, processes))
    if needed > limits.hard:
        raise refused(
            (cause("descriptors-for-rounds").told(needed=f"{needed:,}", limit=f"{limits.hard:,}", more=2 * needed),)
        )
    # Until CRIU has frozen the tree, that may write more.
    return with_open_files(2 * needed, limits)


def _reads(way: Way, criu: Criu) -> bool:
    """Whether pages may be copied when the tree runs again.

    The kernel's own bits say nothing of memory that was exchanged with other memory until it was copied, and back
    (mremap); write protection does.
    """
    return way.told.tracker == UffdWp.name and (criu_release(criu.version) or _UNKNOWN) >= _READS


def _pays(copied: Sequence[Copied]) -> bool:
    """Whether another round may leave less to the freeze, of what is tracked."""
    pages = [(one.bytes - one.fixed_bytes) // PAGE_SIZE for one in copied[-2:]]
    if pages and pages[-1] < _FEW:
        return False
    return len(pages) < 2 or pages[-1] <= _LESS * pages[-2]


def _must_count(way: Way, images: Path) -> None:
    """Raises HostCannot unless the next dump counts from this round."""
    keeper = way.followed.tell() if way.followed is not None else None
    if keeper is None:
        raise HostCannot(ENDED)
    if keeper.base != str(images):
        raise HostCannot(keeper.why_full)


def _staged(context: Context, repository: Repository, way: Way) -> Path:
    """A new directory for rounds, which the keeper removes."""
    assert way.followed is not None
    keeper = way.followed.tell().pid
    with handed_over(repository.backend.scratch, keeper) as beside:
        if context.staging is None:
            way.followed.stage((beside,))
            return beside
        with handed_over(context.staging, keeper, outside=True) as place:
            (beside / STAGING).symlink_to(place)
            way.followed.stage((beside, place))
            return place


def _untracked(tracker: str, tree: Tree) -> int:
    """Pages of private memory that are copied each time."""
    found = 0
    for process in tree.processes:
        with suppress(OSError):
            found += untracked(tracker, process.pid)
    return found
