"""A job is of one program, and by default of one user: a program chooses its own name."""

from __future__ import annotations

import json
from pathlib import Path

import observations
import pytest
from dump_targets import target_of
from image_sets import described, flip, of_pages, packs, store
from msgspec.structs import asdict, replace

from crckpt.errors import PreflightRefused, UsageError
from crckpt.host.proc import Tree
from crckpt.host.program import Program
from crckpt.ops.context import Context
from crckpt.ops.dump.examine import DumpTarget, check_job
from crckpt.ops.dump.request import DumpRequest
from crckpt.ops.last_checkpoint import read_last_checkpoint
from crckpt.store import Checkpoint, Repository

ROOT_PID = 100  # as the tree in `described` has it


TRAINING_PROGRAM = Program("/usr/bin/python3.11", "python3", "/home/a/train.py")
EVALUATION_PROGRAM = replace(TRAINING_PROGRAM, script="/home/a/evaluate.py")
UIDS = (33, 33, 33, 33)


def stored_of(repository: Repository, base: Path, uids: list[int], **details: object) -> Checkpoint:
    """A checkpoint of a program of that user."""
    processes = [
        {"pid": 7, "uids": [9] * 4},
        {"pid": ROOT_PID, "uids": uids, "command_line": ["python3", "train.py"], "directory": "/home/a"},
    ]
    document = json.dumps({"processes": processes, **details}).encode()
    return store(repository, base, of_pages(1), described("trainer", document))


def dumped_by(
    context: Context,
    uids: tuple[int, ...],
    job: str | None = None,
    program: Program = TRAINING_PROGRAM,
    *,
    other: bool = False,
) -> DumpTarget:
    root = replace(observations.ROOT, uids=uids)
    request = DumpRequest("pidfile:/run/x y", job=job, other_program=other)
    target = target_of(context, replace(observations.PLAIN, tree=Tree(root, (root,))), request, "trainer")
    return replace(target, program=program)


def check(target: DumpTarget, repository: Repository, command: str = "dump") -> None:
    check_job(target, read_last_checkpoint(repository, target.job), command)


def test_program_of_another_user_is_refused(context: Context, repository: Repository, tmp_path: Path) -> None:
    stored_of(repository, tmp_path, [33, 33, 33, 33])
    with pytest.raises(UsageError) as refused:
        check(dumped_by(context, (34, 34, 34, 34)), repository)
    assert refused.value.message == (
        "process 100 (trainer) belongs to user 34, but the job trainer has checkpoints of a program of user 33"
    )
    assert refused.value.hint == "choose another job: crckpt dump 'pidfile:/run/x y' JOB"


@pytest.mark.parametrize(
    ("uids", "job"),
    [((33, 33, 33, 33), None), ((0, 0, 0, 0), None), ((34, 34, 34, 34), "trainer")],
    ids=["the same user", "root", "a job that was named"],
)
def test_program_of_the_same_user_of_root_or_in_a_named_job_is_accepted(
    context: Context, repository: Repository, tmp_path: Path, uids: tuple[int, ...], job: str | None
) -> None:
    check(dumped_by(context, (34, 34, 34, 34)), repository)  # there is no checkpoint yet
    stored_of(repository, tmp_path, [33, 33, 33, 33])
    check(dumped_by(context, uids, job), repository)


def test_program_that_is_partly_root_is_refused_in_a_job(
    context: Context, repository: Repository, tmp_path: Path
) -> None:
    """The program has the set-user-ID bit, and its user may have chosen the name of the job."""
    stored_of(repository, tmp_path, [0, 0, 0, 0])
    with pytest.raises(UsageError):
        check(dumped_by(context, (34, 0, 0, 0)), repository)


def test_damaged_checkpoint_does_not_prevent_a_dump(context: Context, repository: Repository, tmp_path: Path) -> None:
    stored_of(repository, tmp_path, [33, 33, 33, 33])
    (pack,) = packs(repository)
    for place in range(20, pack.stat().st_size - 200, 50):
        flip(pack, place)
    check(dumped_by(context, (34, 34, 34, 34)), repository)


@pytest.mark.parametrize("job", [None, "trainer"])
@pytest.mark.parametrize("is_recorded", [True, False], ids=["recorded", "of an older version"])
def test_other_program_in_a_job_is_refused(
    context: Context, repository: Repository, tmp_path: Path, job: str | None, is_recorded: bool
) -> None:
    recorded = {"program": asdict(TRAINING_PROGRAM)} if is_recorded else {}
    last = stored_of(repository, tmp_path, [*UIDS], **recorded)
    check(dumped_by(context, UIDS, job), repository)
    with pytest.raises(PreflightRefused) as refused:
        check(dumped_by(context, UIDS, job, EVALUATION_PROGRAM), repository, "pre-dump")
    title = "/home/a/train.py"
    assert refused.value.message == (
        f"the job trainer is of another program: its last checkpoint, {last.short_id}, is of {title}, "
        f"but PID {ROOT_PID} runs /home/a/evaluate.py"
    )
    assert refused.value.hint == (
        "choose another name: crckpt pre-dump 'pidfile:/run/x y' NAME; or give trainer to this program: "
        "crckpt pre-dump 'pidfile:/run/x y' trainer --job-of-another-program"
    )
    check(dumped_by(context, UIDS, job, EVALUATION_PROGRAM, other=True), repository)


def test_program_is_compared_only_with_the_last_checkpoint_of_the_job(
    context: Context, repository: Repository, tmp_path: Path
) -> None:
    """A program that was allowed in the job once need not be allowed again."""
    stored_of(repository, tmp_path, [*UIDS], program=asdict(TRAINING_PROGRAM))
    stored_of(repository, tmp_path, [*UIDS], program=asdict(EVALUATION_PROGRAM))
    check(dumped_by(context, UIDS, "trainer", EVALUATION_PROGRAM), repository)
    with pytest.raises(PreflightRefused):
        check(dumped_by(context, UIDS, "trainer"), repository)


def test_checkpoint_without_a_program_does_not_prevent_a_dump(
    context: Context, repository: Repository, tmp_path: Path
) -> None:
    """An imported checkpoint records no program."""
    store(repository, tmp_path, of_pages(1), described("trainer"))
    check(dumped_by(context, UIDS, "trainer", EVALUATION_PROGRAM), repository)


def test_forged_program_does_not_prevent_a_dump(context: Context, repository: Repository, tmp_path: Path) -> None:
    stored_of(repository, tmp_path, [*UIDS], program={"executable": 5})
    check(dumped_by(context, UIDS, "trainer", EVALUATION_PROGRAM), repository)


def test_code_of_a_program_is_compared_but_not_shown(context: Context, repository: Repository, tmp_path: Path) -> None:
    stored_of(repository, tmp_path, [*UIDS], program=asdict(replace(TRAINING_PROGRAM, script="-c login('hunter2')")))
    with pytest.raises(PreflightRefused) as refused:
        check(dumped_by(context, UIDS, "trainer", replace(TRAINING_PROGRAM, script="-c login('hunter3')")), repository)
    assert refused.value.message.endswith(f"is of python3 -c ..., but PID {ROOT_PID} runs python3 with other code")
