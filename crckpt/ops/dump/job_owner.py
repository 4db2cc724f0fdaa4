"""Check the owner of a default job: a program chooses its own name, and the default job has that name."""

from __future__ import annotations

from contextlib import suppress

from crckpt.errors import IntegrityError, UsageError
from crckpt.ops.dump.examine import DumpTarget
from crckpt.store import Repository
from crckpt.store.read.details import read_details

_ROOT = 0


def check_job_owner(target: DumpTarget, repository: Repository) -> None:
    """Raise UsageError if the user named no job, and its newest checkpoint is of another user's program."""
    # A program that calls itself `postgres` (PR_SET_NAME) would become the newest checkpoint of that job, which a
    # restore takes, and for which a cleanup removes others. Root's own programs may: root reads and writes all.
    root = target.observed.tree.root
    if target.request.job is not None or set(root.uids) == {_ROOT}:
        return
    series = repository.checkpoints(target.job)
    if not series:
        return
    with suppress(IntegrityError):  # a damaged checkpoint must not prevent the next one
        processes = read_details(repository, series[-1]).get("processes", ())
        uids = next((entry.get("uids", ()) for entry in processes if entry["pid"] == series[-1].tree[0].pid), ())
        if uids and tuple(uids[:2]) != root.uids[:2]:
            who = f"process {root.pid} ({root.comm}) belongs to user {root.uids[0]}"
            raise UsageError(
                f"{who}, but the job {target.job} has checkpoints of a program of user {uids[0]}",
                hint=f"choose another job: crckpt dump {target.request.target} JOB",
            )
