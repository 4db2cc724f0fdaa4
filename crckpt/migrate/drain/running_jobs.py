"""Find the jobs of a store whose programs run on this host, and can be moved together."""

from __future__ import annotations

import os
from typing import Literal

from msgspec import Struct

from crckpt.host import proc
from crckpt.model import JobName, Pid
from crckpt.ops.dump.last_checkpoint import read_last_checkpoints
from crckpt.store import Repository


class RunningJob(Struct, frozen=True):
    """A job whose program runs here: the root of its tree, and the tree's memory that is in no file."""

    job: JobName
    root: proc.Process
    memory_bytes: int


class ExcludedJob(Struct, frozen=True):
    """A job that is not moved by itself.

    - `included`: it moves with the tree of another job; `stayed`: it cannot be moved; `unknown`: its newest checkpoint
      cannot be read
    """

    job: JobName
    pid: Pid | None
    outcome: Literal["included", "stayed", "unknown"]
    why: str
    hint: str = ""


class RunningJobs(Struct, frozen=True):
    """The jobs that run here: those to move, the largest first, and the others."""

    jobs: tuple[RunningJob, ...]
    excluded: tuple[ExcludedJob, ...]


def find_running_jobs(repository: Repository) -> RunningJobs:
    """Find the jobs of a store whose programs run on this host. No tree is in two of them.

    A program is known by the root of its tree: the newest checkpoint of the job records it, or the restore that brought
    it here.
    """
    found: dict[proc.Identity, RunningJob] = {}
    excluded: list[ExcludedJob] = []
    # Of two jobs of one program, the one that was dumped last has it.
    for last in reversed(read_last_checkpoints(repository)):
        job = last.checkpoint.job
        root = last.find_running_root()
        if root is None:
            if last.details is None:
                name = last.checkpoint.short_id
                why = f"checkpoint {name} cannot be read, so crckpt does not know whether its program runs here"
                excluded.append(ExcludedJob(job, None, "unknown", why, f"check it: crckpt verify {name}"))
            continue
        if root.identity in found:
            why = f"it is the program of the job {found[root.identity].job}"
            excluded.append(ExcludedJob(job, root.pid, "included", why))
        else:
            found[root.identity] = RunningJob(job, root, proc.memory(*proc.read_tree(root).pids))
    kept, rest = _separate({each.root.pid: each for each in found.values()})
    kept.sort(key=lambda job: (-job.memory_bytes, job.job))
    return RunningJobs(tuple(kept), (*excluded, *rest))


def _separate(jobs: dict[int, RunningJob]) -> tuple[list[RunningJob], list[ExcludedJob]]:
    """Separate the jobs that can be moved from those that must stay, or are parts of others; by the PID of the root."""
    own = (os.getpid(), *proc.ancestors(os.getpid()))
    movable = {pid: job for pid, job in jobs.items() if pid not in own}
    excluded = []
    for pid, job in jobs.items():
        if pid in own:
            hint = f"move it from another shell: crckpt migrate {pid} HOST {job.job}"
            excluded.append(ExcludedJob(job.job, job.root.pid, "stayed", "this crckpt runs in its tree", hint))
    kept = []
    for pid, job in movable.items():
        above = next((movable[other] for other in proc.ancestors(pid) if other in movable), None)
        if above is None:
            kept.append(job)
        else:
            excluded.append(ExcludedJob(job.job, pid, "included", f"it is a part of the tree of the job {above.job}"))
    return kept, excluded
