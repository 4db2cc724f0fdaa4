"""Checkpoints are removed by their names: all of those that are named, or none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from image_sets import described, flip, manifest_path, of_pages, store
from msgspec.structs import replace
from small_programs import read

from crckpt.errors import NoSuchCheckpoint, UsageError
from crckpt.ops.context import Context
from crckpt.ops.gc import gc
from crckpt.ops.rm import RemovalResult, estimate_freed_bytes, plan_removal, rm
from crckpt.store import Checkpoint, Repository


def remove(context: Context, *refs: str) -> RemovalResult:
    return rm(context, plan_removal(context, refs).ids)


def test_checkpoint_named_twice_is_removed_once(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    first, second = checkpoints
    assert remove(context, first.id, first.short_id) == RemovalResult((first.id,), ())
    assert repository.checkpoints() == (second,)


def test_removal_that_names_an_unknown_checkpoint_removes_none(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    with pytest.raises(NoSuchCheckpoint):
        remove(context, "job", "other")
    assert repository.checkpoints() == checkpoints


def test_all_checkpoints_of_a_job_are_selected(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    first, second = checkpoints
    assert plan_removal(context, ("job",), whole_jobs=True).ids == (first.id, second.id)
    # Of a damaged one the job can still be read.
    flip(manifest_path(repository, second.id), 5)
    assert set(plan_removal(context, ("job",), whole_jobs=True).ids) == {first.id, second.id}
    with pytest.raises(NoSuchCheckpoint, match="there is no job 'jop'"):
        plan_removal(context, ("job", "jop"), whole_jobs=True)
    with pytest.raises(UsageError, match=f"{first.short_id} is no job"):
        plan_removal(context, (first.short_id,), whole_jobs=True)


def stopped(repository: Repository, base: Path, number: int, job: str = "job") -> Checkpoint:
    """A checkpoint of a program that its dump ended."""
    return store(repository, base, of_pages(number), replace(described(job), stopped=True))


def irreplaceable(context: Context, *refs: str, whole_jobs: bool = False) -> tuple[str, ...]:
    return tuple(found.id for found in plan_removal(context, refs, whole_jobs=whole_jobs).irreplaceable)


def test_last_checkpoint_of_a_stopped_program_is_irreplaceable_until_restored(
    context: Context, repository: Repository, tmp_path: Path
) -> None:
    first, second = stopped(repository, tmp_path, 1), stopped(repository, tmp_path, 2)
    # After the first one the program ran again, else there would be no second.
    assert irreplaceable(context, "job~1") == ()
    assert irreplaceable(context, "job") == irreplaceable(context, first.id, second.id) == (second.id,)
    assert irreplaceable(context, "job", whole_jobs=True) == (second.id,)
    repository.mark_restored(second.id)
    assert irreplaceable(context, "job", whole_jobs=True) == ()
    rm(context, (second.id,))
    assert not repository.is_restored(second.id)
    assert irreplaceable(context, "job") == (first.id,)


@pytest.mark.parametrize(
    ("boot", "start", "is_lost"),
    [("one", 499, True), ("one", 500, True), ("one", 501, False), ("another", 1, False), ("older crckpt", 1, False)],
)
def test_checkpoint_is_replaceable_only_by_one_of_a_later_program(
    context: Context, repository: Repository, tmp_path: Path, boot: str, start: int, is_lost: bool
) -> None:
    """A program that already ran when the first one was stopped does not have the state of the first."""
    uptime = {} if boot == "older crckpt" else {"uptime_ticks": 500}
    roots = [{"boot_id": "one", "pid": 7, "start": 400}, {"boot_id": boot, "pid": 8, "start": start}]
    made = [
        store(
            repository,
            tmp_path,
            of_pages(number),
            replace(described(details=json.dumps({"root": root} | uptime).encode()), stopped=True),
        )
        for number, root in enumerate(roots, 1)
    ]
    assert irreplaceable(context, "job~1", "job") == tuple(each.id for each in (made if is_lost else made[1:]))


def test_program_left_running_needs_no_checkpoint(context: Context, repository: Repository, tmp_path: Path) -> None:
    stopped(repository, tmp_path, 1)
    store(repository, tmp_path, of_pages(2), described())
    assert irreplaceable(context, "job", whole_jobs=True) == ()


def test_program_that_runs_again_needs_no_checkpoint(context: Context, repository: Repository, tmp_path: Path) -> None:
    """An older crckpt has restored the program, and left no mark."""
    own = read(os.getpid())
    task = replace(described().tree[0], pid=own.pid, comm=own.comm)
    new = replace(described(), stopped=True, tree=(task,))
    checkpoint = store(repository, tmp_path, of_pages(1), new)
    assert irreplaceable(context, "job") == ()
    other = store(repository, tmp_path, of_pages(2), replace(new, tree=(replace(task, comm="another"),)))
    assert irreplaceable(context, "job") == (other.id,)
    assert checkpoint.id != other.id


def test_rm_estimates_the_space_that_is_freed(context: Context, repository: Repository, tmp_path: Path) -> None:
    first = store(repository, tmp_path, of_pages(*range(1, 40)), described())
    second = store(repository, tmp_path, of_pages(*range(1, 40), *range(50, 90)), described())
    # The second needs the pages of the first, but not its index.
    assert estimate_freed_bytes(context, ()) == 0
    estimate = estimate_freed_bytes(context, (first.id, second.id))
    rm(context, (first.id, second.id))
    freed = gc(context).bytes
    assert estimate is not None
    # gc also frees what is derived of packs.
    assert 0 < estimate <= freed


def test_freed_space_is_unknown_if_another_checkpoint_is_unreadable(
    context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    first, second = checkpoints
    flip(manifest_path(repository, first.id), 5)
    assert estimate_freed_bytes(context, (second.id,)) is None
    assert estimate_freed_bytes(context, (first.id,)) == 0
    assert plan_removal(context, (first.id,)).ids == (first.id,)
