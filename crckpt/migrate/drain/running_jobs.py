"""Find the jobs of a store whose programs run on this host, and can be moved together."""

from __future__ import annotations

import os
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from crckpt.host import proc
from crckpt.model import JobName, Pid
from crckpt.ops.last_checkpoint import read_last_checkpoints
from crckpt.store import Repository

Outcome: TypeAlias = Literal["moved", "movable", "stayed", "in-doubt", "ended", "included", "unknown"]


class RunningJob(Struct, frozen=True):
    """A job whose program runs here: the root of its tree, and the tree's memory that is in no file."""

    job: JobName
    root: proc.Process
    memory_bytes: int


class MoveOutcome(Struct, frozen=True):
    """The outcome of one tree.

    - `moved`: it runs on the other host; `movable`: with --check, it could
    - `stayed`: it runs here, and `why`
    - `in-doubt`: it may run nowhere; `hint` is the command that finishes the move
    - `ended`: the program has ended by itself
    - `included`: it moves with the tree of another job; `unknown`: crckpt does not know whether it runs here
    - `causes`: all reasons, if there are several; `result`: the document of the move
    """

    job: JobName
    pid: Pid | None
    memory_bytes: int
    outcome: Outcome
    why: str = ""
    hint: str = ""
    causes: tuple[str, ...] = ()
    result: dict[str, Any] | None = None


class RunningJobs(Struct, frozen=True):
    """The jobs that run here: those to move, the largest first, and the others."""

    jobs: tuple[RunningJob, ...]
    excluded: tuple[MoveOutcome, ...]


def find_running_jobs(repository: Repository) -> RunningJobs:
    """Find the jobs whose programs run here, known by their roots. No tree is in two of them."""
    found: dict[proc.Identity, RunningJob] = {}
    excluded: list[MoveOutcome] = []
    # Of two jobs of one program, the one that was dumped last has it.
    for last in reversed(read_last_checkpoints(repository)):
        job = last.checkpoint.job
        root = last.find_running_root()
        if root is None:
            if last.details is None:
                name = last.checkpoint.short_id
                why = f"checkpoint {name} cannot be read, so crckpt does not know whether its program runs here"
                excluded.append(MoveOutcome(job, None, 0, "unknown", why, f"check it: crckpt verify {name}"))
            continue
        if root.identity in found:
            why = f"it is the program of the job {found[root.identity].job}"
            excluded.append(MoveOutcome(job, root.pid, 0, "included", why))
        else:
            found[root.identity] = RunningJob(job, root, proc.memory(*proc.read_tree(root).pids))
    kept, rest = _separate({each.root.pid: each for each in found.values()})
    kept.sort(key=lambda job: (-job.memory_bytes, job.job))
    return RunningJobs(tuple(kept), (*excluded, *rest))


def _separate(jobs: dict[int, RunningJob]) -> tuple[list[RunningJob], list[MoveOutcome]]:
    """Separate the jobs that can be moved from those that must stay, or are parts of others; by the PID of the root."""
    own = (os.getpid(), *proc.ancestors(os.getpid()))
    movable = {pid: job for pid, job in jobs.items() if pid not in own}
    excluded = []
    for pid, job in jobs.items():
        if pid in own:
            hint = f"move it from another shell: crckpt migrate {pid} HOST {job.job}"
            excluded.append(MoveOutcome(job.job, job.root.pid, 0, "stayed", "this crckpt runs in its tree", hint))
    kept = []
    for pid, job in movable.items():
        above = next((movable[other] for other in proc.ancestors(pid) if other in movable), None)
        if above is None:
            kept.append(job)
        else:
            excluded.append(
                MoveOutcome(job.job, pid, 0, "included", f"it is a part of the tree of the job {above.job}")
            )
    return kept, excluded
