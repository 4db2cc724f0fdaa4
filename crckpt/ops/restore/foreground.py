"""Stay the parent of a program that was restored in the foreground."""

from __future__ import annotations

import os

from crckpt.host.process.job_control import wait_on_terminal
from crckpt.ops.restore.result import RestoreResult


def wait_for_program(restored: RestoreResult) -> int:
    """Wait until a program restored in the foreground ends. Return its exit status, or 128 plus its signal.

    Signals that crckpt gets are passed on to it since the restore. If the terminal stops the program, crckpt stops too,
    until a shell continues both.
    """
    assert restored.child is not None
    if restored.holder is not None:
        status = restored.holder.wait(restored.child)
    elif restored.terminal is not None:
        status = wait_on_terminal(restored.child, restored.terminal, restored.root_in_namespace)
    else:
        pid = status = 0
        # Processes that lost their parent while the tree was built may be our children too.
        while pid != restored.child:
            pid, status = os.waitpid(-1, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
