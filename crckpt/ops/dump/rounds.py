"""Copy in rounds what the running tree writes, until little is left for the freeze; and estimate how long that is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Final

from crckpt.causes import cause, preflight_refusal
from crckpt.criu.command import Paths, pre_dump_command
from crckpt.errors import HostCannot, PreflightRefused
from crckpt.host.proc import Tree
from crckpt.host.process.own_limits import prlimit_words, read_descriptor_limits
from crckpt.host.process.signals import interrupts_allowed
from crckpt.images.inventory import read_dump_stats
from crckpt.model import PAGE_SIZE, criu_release
from crckpt.ops.context import Context
from crckpt.ops.dump.aftermath import BaseMismatch, raise_if_failed
from crckpt.ops.dump.examine import DumpTarget, examine_again
from crckpt.ops.dump.forecast import Load, bytes_left, freeze_after_ms, load_of_tree, try_speed
from crckpt.ops.dump.launch import Workspace
from crckpt.ops.dump.lineage import Lineage, write_page_maps
from crckpt.ops.dump.plan import copying_reported, run_gated
from crckpt.ops.dump.request import PreCopy
from crckpt.ops.dump.result import PreCopyResult, RoundResult
from crckpt.store import STAGING, Preparation, Repository, handed_over, staged
from crckpt.tracking.choose_tracker import count_untracked
from crckpt.tracking.dump_basis import RoundBase
from crckpt.tracking.keeper.client import ENDED
from crckpt.tracking.uffd_wp import UffdWp

# Pages: starting CRIU once more costs more than copying them in the freeze.
_FEW: Final = 512

_UNKNOWN: Final = (0, 0)
# From this release on CRIU may read pages after the freeze. One before 3.17.1 hangs on long runs of pages, and one
# before this release takes every page for written, each time.
_READS: Final = (4, 0)

# Bytes that CRIU writes in about 30 ms. For so long the tree stands still for another round, however small (20 ms at
# 256 MB, 40 ms at 4 GB). If no limit of the freeze is asked for, it is short enough then.
_LITTLE: Final = 32 << 20

# Of the round before: a round that copied more did not pay.
_LESS: Final = 0.8


def pre_copy(
    target: DumpTarget, lineage: Lineage, asked: PreCopy, workspace: Workspace
) -> tuple[DumpTarget, PreCopyResult]:
    """Take the rounds that are asked for; return the target as its tree is after them, and the rounds.

    Raises PreflightRefused if the estimated freeze is too long and --abort-over was given, Interrupted between two
    rounds, and what `take_round`, `try_speed` and `examine_again` raise.
    """
    root, limit, speed, load = target.observed.tree.root, asked.max_freeze_ms, None, Load()
    if limit is not None:
        with staged(workspace.staging) as place:
            speed, load = try_speed(target.criu.path, place).speed, load_of_tree(target.observed)

    def estimate_ms(last: RoundResult | None) -> float | None:
        """The freeze after a round, or of a full dump; None without a limit."""
        if speed is None or last is None:
            return speed.freeze_ms(load) if speed is not None else None
        return freeze_after_ms(speed, load, last, *bytes_left(root, lineage.summary.tracker))

    def suffices(last: RoundResult) -> bool:
        estimated = estimate_ms(last)
        if limit is None or estimated is None:
            return bytes_left(root, lineage.summary.tracker)[0] < _LITTLE
        return estimated <= limit

    take = partial(take_round, target, lineage, workspace.repository, workspace.work)
    rounds: list[RoundResult] = []
    # Without anything that tells what was written there are no rounds.
    try:
        for result in worthwhile_rounds(take, asked.max_rounds, suffices):
            rounds.append(result)
            with interrupts_allowed():
                pass  # an interruption that came while CRIU ran is raised here
    except HostCannot as error:
        lineage.give_up(error.message)
    is_tracked, memory = lineage.keeper is not None and bool(rounds), None
    if is_tracked:
        # The dump will copy what is left now, and as much again for tracked memory written until it begins. Measuring
        # the tree's memory again would take longer than everything else, and meanwhile the tree writes.
        tracked, whole = bytes_left(root, lineage.summary.tracker)
        left = tracked + rounds[-1].fixed_bytes + whole
        memory = min(left + tracked, max(left, target.observed.memory))
    again = examine_again(target, memory)
    estimated_ms = estimate_ms(rounds[-1] if lineage.keeper is not None else None)
    # The last moment at which nothing was frozen for longer than a round.
    if asked.abort_over and (limit is None or estimated_ms is None or estimated_ms > limit):
        kept = "try again (the copied rounds are kept), or " if is_tracked else ""
        why = "" if is_tracked else f"; no rounds were copied: {lineage.summary.why_full}"
        raise PreflightRefused(
            f"the tree would be frozen for about {estimated_ms:.0f} ms, over the budget of {limit:.0f} ms "
            f"(--max-freeze){why}",
            hint=f"{kept}allow a longer freeze: --max-freeze TIME; without --abort-over the tree is dumped anyway",
        )
    return again, PreCopyResult(tuple(rounds), estimated_ms, limit)


def take_round(target: DumpTarget, lineage: Lineage, repository: Repository, work: Path) -> RoundResult:
    """Copy what was written since the last round or dump; everything if the tree does not match that any more.

    CRIU's log goes to the directory `work`. Raises HostCannot if nothing tells what was written, and why; DumpFailed,
    and the rounds before are lost; PreflightRefused if CRIU may not open enough descriptors.
    """
    try:
        return _take_round(target, lineage, repository, work)
    except BaseMismatch as error:
        # Take a full round, once: it has no base that could mismatch.
        lineage.restart_full(error.reason)
        return _take_round(target, lineage, repository, work)


def worthwhile_rounds(
    take: Callable[[], RoundResult], most: int, suffices: Callable[[RoundResult], bool]
) -> Iterator[RoundResult]:
    """Yield each round that `take` takes, until one `suffices`, `most` were taken, or another would not pay."""
    rounds: list[RoundResult] = []
    while len(rounds) < most:
        # Another round may leave less to the freeze, of tracked memory.
        pages = [(one.bytes - one.fixed_bytes) // PAGE_SIZE for one in rounds[-2:]]
        pays = not pages or (pages[-1] >= _FEW and (len(pages) < 2 or pages[-1] <= _LESS * pages[-2]))
        if not pays or (rounds and suffices(rounds[-1])):
            return
        rounds.append(take())
        yield rounds[-1]


def _take_round(target: DumpTarget, lineage: Lineage, repository: Repository, work: Path) -> RoundResult:
    began = time.monotonic()
    # One directory, made only if this is the first round, or if it counts from a checkpoint.
    make_directory = cache(lambda: _make_rounds_directory(target.context, repository, lineage))
    lineage.begin(repository, target.criu.path, make_directory)
    if not lineage.tracks:
        raise HostCannot(lineage.summary.why_full)
    parent = lineage.parent
    base = parent.next_round() if parent else RoundBase(make_directory() / "1")
    images = base.directory
    images.mkdir(mode=0o700)
    before = str(parent.directory) if parent else None
    criu = target.criu
    # Soft-dirty bits miss memory that was exchanged with other memory (mremap) until it was copied, and back; write
    # protection does not.
    reads = lineage.summary.tracker == UffdWp.name and (criu_release(criu.version) or _UNKNOWN) >= _READS
    words = pre_dump_command(criu.path, target.pid, Paths(images, work), before, reads=reads)
    command = (*_descriptor_limit_words(target, lineage), *lineage.environment, *words)
    # How much a later round copies is known only afterwards.
    total = 0 if parent else target.observed.memory
    with copying_reported(images, total, target.context.copy_progress):
        result = run_gated(target, command, work / "pre-dump.log", lineage, Preparation(repository))
    if lineage.has_lost_keeper and result.status >= 0:
        # The keeper will not report that anything counts from here.
        raise HostCannot(ENDED)
    raise_if_failed(target, result, has_base=parent is not None)
    if parent:
        parent.link_pages(images)
    write_page_maps(base)
    stats = read_dump_stats((work / "stats-dump").read_bytes())
    if not stats.pages_scanned:
        # CRIU copies nothing of stopped processes: if the whole tree is stopped it came to no gate, and reset nothing.
        lineage.report_freeze()
    lineage.commit(base)
    if lineage.keeper is None:
        raise HostCannot(ENDED)
    keeper = lineage.keeper.describe()
    if keeper.counts_from != base:
        raise HostCannot(keeper.why_full)
    pages = stats.pages_written + stats.shared_pages_written
    fixed_pages = _count_untracked(lineage.summary.tracker, target.observed.tree) + stats.shared_pages_written
    spent_ms, frozen_ms = (time.monotonic() - began) * 1000, stats.frozen_time / 1000
    return RoundResult(base.number, pages, pages * PAGE_SIZE, fixed_pages * PAGE_SIZE, spent_ms, frozen_ms)


def _descriptor_limit_words(target: DumpTarget, lineage: Lineage) -> tuple[str, ...]:
    """Words before a CRIU that needs more descriptors than it may open now. Raises PreflightRefused if it may not."""
    # Otherwise CRIU fails while the tree is frozen ("Can't make pipe for page-pipe: Too many open files"), for example
    # in a round of 10 GB with 20,000 descriptors.
    limits, processes = read_descriptor_limits(), len(target.observed.tree.processes)
    needed = limits.count_needed(target.observed.memory, processes)
    if needed > limits.soft and lineage.parent is not None:
        # Only what was written needs them, which takes a while to find: all memory was the quick upper bound.
        tracked, whole = bytes_left(target.observed.tree.root, lineage.summary.tracker)
        size = tracked + whole + _count_untracked(lineage.summary.tracker, target.observed.tree) * PAGE_SIZE
        needed = min(needed, limits.count_needed(size, processes))
    if needed > limits.hard:
        raise preflight_refusal(
            (cause("descriptors-for-rounds").finding(needed=f"{needed:,}", limit=f"{limits.hard:,}", more=2 * needed),)
        )
    # Twice as many: the tree may write more until CRIU has frozen it.
    return prlimit_words(2 * needed, limits)


def _make_rounds_directory(context: Context, repository: Repository, lineage: Lineage) -> Path:
    """Make a directory for rounds, and hand it over to the keeper, which removes it."""
    session = lineage.keeper
    assert session is not None
    keeper = session.describe().pid
    with handed_over(repository.backend.scratch, keeper) as in_store:
        if context.staging is None:
            session.hand_over((in_store,))
            return in_store
        with handed_over(context.staging, keeper, outside=True) as directory:
            # If crckpt and the keeper are killed, `gc` finds what lies outside the store by this link.
            (in_store / STAGING).symlink_to(directory)
            session.hand_over((in_store, directory))
            return directory


def _count_untracked(tracker: str, tree: Tree) -> int:
    """Pages of private memory that every round copies."""
    found = 0
    for process in tree.processes:
        with suppress(OSError):
            found += count_untracked(tracker, process.pid)
    return found
