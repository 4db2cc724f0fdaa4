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


def check_job(target: DumpTarget, newest: LastCheckpoint | None, command: str = "dump") -> tuple[Finding, ...]:
    """Check the last checkpoint of the target's job, if it has one. `command` is the one that the hint says to type.

    Raises PreflightRefused if it is of another program, unless the request allows that; UsageError if the user named no
    job, and it is of another user's program. Returns a warning if it is of another process that runs or ran next to the
    target. A program that was restored, or started anew when the first one had ended, is no other one.
    """
    if newest is None or newest.details is None:
        return ()
    last, details, tree_root = newest.checkpoint, newest.details, target.observed.tree.root
    named = shlex.quote(target.request.target)
    typed = f"crckpt {command} {named}"
    # A program that calls itself `postgres` would become the newest checkpoint of that job, which a restore takes, and
    # for which a cleanup removes others. Root's own programs may: root reads and writes all.
    uids = _find_root(last, details).get("uids", ()) if target.request.job is None else ()
    if uids and set(tree_root.uids) != {_ROOT} and tuple(uids[:2]) != tree_root.uids[:2]:
        raise UsageError(
            f"process {tree_root.pid} ({tree_root.comm}) belongs to user {tree_root.uids[0]}, but the job {target.job} "
            f"has checkpoints of a program of user {uids[0]}",
            hint=f"choose another job: {typed} JOB",
        )
    now = tree_root.identity
    before = None if details.get("root") is None else msgspec.convert(details["root"], proc.Identity)
    if not target.request.other_program:
        program, ours = read_program(newest.repository, last, details), target.program
        # A program that was started by a relative path, and then changes its directory, seems to be another one.
        is_same_root = program.executable == ours.executable and before == now
        if not is_same_root and not is_same_program(program, ours):
            # The code of two programs is not shown.
            runs = ours.title if ours.title != program.title else f"{program.called} with other code"
            raise PreflightRefused(
                f"the job {target.job} is of another program: its last checkpoint, {last.short_id}, is of "
                f"{program.title}, but PID {target.pid} runs {runs}",
                hint=f"choose another name: {typed} NAME; or give {target.job} to this program: {typed} {target.job} "
                "--job-of-another-program",
            )
    dumped_at = details.get("uptime_ticks")
    if before is None or before.boot_id != now.boot_id or before == now:
        return ()
    if not before.keeps_pid and (dumped_at is None or now.start > dumped_at):
        return ()
    return (cause("job-shared").finding(job=target.job, checkpoint=last.short_id, pid=before.pid, target=named),)


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
