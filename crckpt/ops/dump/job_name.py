"""The job of a tree for which the command names none: a program chooses its own name."""

from __future__ import annotations

from contextlib import suppress

from crckpt.errors import IntegrityError, UsageError
from crckpt.ops.dump.examine import Subject
from crckpt.store import Repository
from crckpt.store.read.details import read_details

_ROOT = 0


def check_series(subject: Subject, repository: Repository) -> None:
    """Raise UsageError if the newest checkpoint of the job is of another user's program, and nobody named the job.

    Otherwise this program would become the newest checkpoint of that job, which a restore takes and a cleanup keeps.
    """
    root = subject.seen.tree.root
    if subject.request.job is not None or set(root.uids) == {_ROOT}:
        return
    series = repository.checkpoints(subject.job)
    if not series:
        return
    with suppress(IntegrityError):
        listed = read_details(repository, series[-1]).get("processes", ())
        theirs = next((entry.get("uids", ()) for entry in listed if entry["pid"] == series[-1].tree[0].pid), ())
        if theirs and tuple(theirs[:2]) != root.uids[:2]:
            who = f"process {root.pid} calls itself {root.comm}, and belongs to user {root.uids[0]}"
            raise UsageError(
                f"{who}; the job {subject.job} belongs to a program of user {theirs[0]}",
                hint=f"name the job: crckpt dump {subject.request.target} JOB",
            )
