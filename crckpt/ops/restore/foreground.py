"""Stay the parent of a program that was restored in the foreground."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.process.job_control import Job, wait_for_job
from crckpt.host.process.pidfd import HeldProcess
from crckpt.host.process.terminals import ShellTerminal, read_terminal
from crckpt.images.tree import ImageTree
from crckpt.ops.restore.attempt import RestoreResult

_COPIED_WITHIN_S: Final = 1.0


class ProgramEnd(Struct, frozen=True):
    """The end of a program: its exit status, or 128 plus the signal that ended it. `signal` is 0 if there was none."""

    status: int
    signal: int


def announce_on_terminal(announce: Callable[[], None], terminal: ShellTerminal | None) -> list[Any]:
    """In the hold: call `announce` while the terminal has the settings of the shell.

    A shell that has us in the background keeps its terminal, as with any program that it starts with `&`. Then return
    the settings that the program needs in the foreground.
    """
    now = None if terminal is None else read_terminal(terminal.descriptor)
    if terminal is None or now is None:
        announce()
        return []
    terminal.set_modes()
    if terminal.is_of_other_group:
        terminal.set_group()
        announce()
        return now.modes
    announce()
    now.set_modes()
    return []


def start_job(tree: ImageTree, child: int, init: int | None, terminal: ShellTerminal | None, modes: list[Any]) -> Job:
    """Make the running tree the job of our shell: its terminal has the size that the user sees, and is drawn again.

    `child` is our child to wait for, `init` that of the tree's PID namespace, if any; `modes` as for `Job`.
    """
    root = tree.root
    group = next((of.group for of in tree.terminals if of.session == root.sid and not of.is_master), 0)
    pids = proc.outer_pids((root.pid, group), init)
    program = pids.get(root.pid, init or child)
    job = Job(
        child=child,
        program=program,
        identity=proc.identify(program),
        foreground=pids.get(group, 0) if root.sid == root.pid else 0,
        terminal=terminal,
        modes=modes or None,
    )
    if terminal is not None:
        # CRIU has set the size that the old terminal had. If it is the same, the program still has to draw its screen.
        was_changed = terminal.set_size()
        if not modes and not was_changed:
            job.send(signal.SIGWINCH, job.typing_group)
    return job


def wait_for_program(restored: RestoreResult) -> ProgramEnd:
    """Wait until a program restored in the foreground ends.

    Since the restore, signals that crckpt gets are passed on to it. If the program stops, crckpt stops too, until a
    shell continues both.
    """
    job = restored.job
    assert job is not None
    status = wait_for_job(job) if restored.holder is None else restored.holder.wait(job.child)
    now = None if job.terminal is None or restored.holder is not None else read_terminal(job.terminal.descriptor)
    if job.terminal is not None and now is not None and not now.is_of_other_group:
        # A program that was killed could not undo its own settings, and CRIU has made those of the old terminal.
        job.terminal.set_modes()
    for copier in restored.copiers:
        # For its last words. Other processes of the tree may keep running, and write.
        with HeldProcess(copier) as child:
            child.ends_within(_COPIED_WITHIN_S)
    if os.WIFSIGNALED(status):
        return ProgramEnd(128 + os.WTERMSIG(status), os.WTERMSIG(status))
    return ProgramEnd(os.waitstatus_to_exitcode(status), 0)
