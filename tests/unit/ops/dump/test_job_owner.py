"""A program chooses its own name: by that alone it gets no place in the job of another user's program."""

from __future__ import annotations

import json
from pathlib import Path

import observed
import pytest
from dump_targets import target_of
from image_sets import described, flip, of_pages, packs, store
from msgspec.structs import replace

from crckpt.errors import UsageError
from crckpt.host.proc import Tree
from crckpt.ops.context import Context
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.dump.job_owner import check_job_owner
from crckpt.ops.dump.request import DumpRequest
from crckpt.store import Repository

ROOT_PID = 100  # as the tree in `described` has it


def stored_of(repository: Repository, base: Path, uids: list[int]) -> None:
    """A checkpoint of a program of that user."""
    processes = [{"pid": 7, "uids": [9] * 4}, {"pid": ROOT_PID, "uids": uids}]
    details = json.dumps({"processes": processes}).encode()
    store(repository, base, of_pages(1), described("trainer", details))


def dumped_by(context: Context, uids: tuple[int, ...], job: str | None = None) -> DumpTarget:
    root = replace(observed.ROOT, uids=uids)
    request = DumpRequest("pidfile:/run/x", job=job)
    return target_of(context, replace(observed.PLAIN, tree=Tree(root, (root,))), request, "trainer")


def test_a_program_of_another_user_is_refused(context: Context, repository: Repository, tmp_path: Path) -> None:
    stored_of(repository, tmp_path, [33, 33, 33, 33])
    with pytest.raises(UsageError) as refused:
        check_job_owner(dumped_by(context, (34, 34, 34, 34)), repository)
    assert refused.value.message == (
        "process 100 (trainer) belongs to user 34, but the job trainer has checkpoints of a program of user 33"
    )
    assert refused.value.hint == "choose another job: crckpt dump pidfile:/run/x JOB"


@pytest.mark.parametrize(
    ("uids", "job"),
    [((33, 33, 33, 33), None), ((0, 0, 0, 0), None), ((34, 34, 34, 34), "trainer")],
    ids=["the same user", "root", "a job that was named"],
)
def test_these_are_not_refused(
    context: Context, repository: Repository, tmp_path: Path, uids: tuple[int, ...], job: str | None
) -> None:
    check_job_owner(dumped_by(context, (34, 34, 34, 34)), repository)  # there is no checkpoint yet
    stored_of(repository, tmp_path, [33, 33, 33, 33])
    check_job_owner(dumped_by(context, uids, job), repository)


def test_a_program_that_is_root_in_part_is_refused(context: Context, repository: Repository, tmp_path: Path) -> None:
    """A program with the set-user-ID bit, which its user may have named."""
    stored_of(repository, tmp_path, [0, 0, 0, 0])
    with pytest.raises(UsageError):
        check_job_owner(dumped_by(context, (34, 0, 0, 0)), repository)


def test_a_damaged_checkpoint_prevents_no_dump(context: Context, repository: Repository, tmp_path: Path) -> None:
    stored_of(repository, tmp_path, [33, 33, 33, 33])
    (pack,) = packs(repository)
    for place in range(20, pack.stat().st_size - 200, 50):
        flip(pack, place)
    check_job_owner(dumped_by(context, (34, 34, 34, 34)), repository)
