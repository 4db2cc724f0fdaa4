"""Check that a job is the right one for a program: that its last checkpoint is of the same program, and user."""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import Any

import msgspec

from crckpt.causes import Finding, cause
from crckpt.errors import CrckptError, PreflightRefused, UsageError
from crckpt.host import proc
from crckpt.host.program.program import Program, identify, is_same_program
from crckpt.images.regfile import RegularFile
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.last_checkpoint import LastCheckpoint
from crckpt.store import Checkpoint, Repository

_ROOT = 0


def check_job(target: DumpTarget, newest: LastCheckpoint | None, command: str = "dump") -> None:
    """Check the last checkpoint of the target's job, if it has one. `command` is the one that the hint says to type.

    Raises PreflightRefused if it is of another program, unless the request allows that; UsageError if the user named no
    job, and it is of another user's program.
    """
    if newest is None or newest.details is None:
        return
    last, details = newest.checkpoint, newest.details
    typed = f"crckpt {command} {shlex.quote(target.request.target)}"
    if target.request.job is None:
        _check_owner(target, last, details, typed)
    if target.request.other_program:
        return
    program, ours = read_program(newest.repository, last, details), target.program
    # A program that was started by a relative path, and then changes its directory, seems to be another one.
    recorded = details.get("root") if program.executable == ours.executable else None
    root = None if recorded is None else msgspec.convert(recorded, proc.Identity)
    if root == target.observed.tree.root.identity or is_same_program(program, ours):
        return
    # The code of two programs is not shown.
    runs = ours.title if ours.title != program.title else f"{program.called} with other code"
    raise PreflightRefused(
        f"the job {target.job} is of another program: its last checkpoint, {last.short_id}, is of {program.title}, but "
        f"PID {target.pid} runs {runs}",
        hint=f"choose another name: {typed} NAME; or give {target.job} to this program: {typed} {target.job} "
        "--job-of-another-program",
    )


def find_shared_job(target: DumpTarget, newest: LastCheckpoint | None) -> tuple[Finding, ...]:
    """Find out whether the job's last checkpoint is of another process that runs or ran next to the target.

    A program that was restored, or started anew when the first one had ended, is no other one.
    """
    details = (newest.details if newest else None) or {}
    if newest is None or details.get("root") is None:
        return ()
    root, other = target.observed.tree.root.identity, msgspec.convert(details["root"], proc.Identity)
    dumped_at = details.get("uptime_ticks")
    has_ended = not other.keeps_pid and (dumped_at is None or root.start > dumped_at)
    if other.boot_id != root.boot_id or other == root or has_ended:
        return ()
    checkpoint, typed = newest.checkpoint.short_id, shlex.quote(target.request.target)
    return (cause("job-shared").finding(job=target.job, checkpoint=checkpoint, pid=other.pid, target=typed),)


def read_program(repository: Repository, checkpoint: Checkpoint, details: dict[str, Any]) -> Program:
    """Read the program of the root of a checkpoint, as far as it is known."""
    if details.get("program") is not None:
        return msgspec.convert(details["program"], Program)
    # Older versions recorded command lines only, and an imported checkpoint has not even these.
    from crckpt.ops.inspect.images import read_image_tree

    executable = ""
    with suppress(CrckptError, OSError):
        exe = read_image_tree(repository, checkpoint).root.exe
        executable = exe.path if isinstance(exe, RegularFile) else ""
    known = _find_root(checkpoint, details)
    words, directory = known.get("command_line", ()), known.get("directory", "")
    return identify(executable, words, directory, comm=checkpoint.tree[0].comm)


def _find_root(checkpoint: Checkpoint, details: dict[str, Any]) -> dict[str, Any]:
    """Find the root in the details; empty if they do not have it."""
    root = checkpoint.tree[0].pid
    return next((entry for entry in details.get("processes", ()) if entry["pid"] == root), {})


def _check_owner(target: DumpTarget, last: Checkpoint, details: dict[str, Any], typed: str) -> None:
    # A program that calls itself `postgres` would become the newest checkpoint of that job, which a restore takes, and
    # for which a cleanup removes others. Root's own programs may: root reads and writes all.
    root = target.observed.tree.root
    if set(root.uids) == {_ROOT}:
        return
    uids = _find_root(last, details).get("uids", ())
    if uids and tuple(uids[:2]) != root.uids[:2]:
        raise UsageError(
            f"process {root.pid} ({root.comm}) belongs to user {root.uids[0]}, but the job {target.job} has "
            f"checkpoints of a program of user {uids[0]}",
            hint=f"choose another job: {typed} JOB",
        )
