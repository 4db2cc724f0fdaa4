"""Run a restored program as a job of the shell that started crckpt.

The shell knows only the process group of crckpt, and waits until crckpt stops or ends. The program often has its own
group, which gets the terminal's input. So crckpt stops when the program stops, and gives it the terminal.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from typing import Final

from crckpt.host import proc

_LOOK_S: Final = 0.1


def wait_on_terminal(child: int, terminal: int, inside: int | None = None) -> int:
    """Wait until a child, a program on our terminal, has ended; return its wait status. Stop whenever it stops.

    `inside` is the program if it runs in a PID namespace: it is not our child, and `child` ends with it.
    """
    # Without a shell that could continue us (in an orphaned process group) the kernel does not stop us: then the child
    # continues at once, if it has the terminal.
    job = child if inside is None else inside
    was_stopped = in_background = False
    while True:
        # There is no event when a shell brings a running job to the foreground, nor when `inside` stops.
        looks = in_background or inside is not None
        pid, status = os.waitpid(-1, os.WUNTRACED | (os.WNOHANG if looks else 0))
        if pid == child and not os.WIFSTOPPED(status):
            return status
        has_stopped = pid == child if inside is None else not was_stopped
        was_stopped = _is_stopped(job)
        if has_stopped and was_stopped:
            # `fg` may have come before the job was stopped because it read in the background.
            was_continued = not _is_terminal_ours_alone(job, terminal) and _stop()
            in_background = not _hand_on(job, terminal)
            if was_continued or not in_background:
                _continue(job)
                was_stopped = False
            continue
        if in_background:
            in_background = not _hand_on(job, terminal)
        if looks and pid == 0:
            time.sleep(_LOOK_S)


def _is_stopped(pid: int) -> bool:
    """Return whether it is still stopped: a signal to its group may have stopped us, too, until now."""
    process = proc.read_process(pid)
    return process is not None and process.state == "stopped"


def _is_terminal_ours_alone(child: int, terminal: int) -> bool:
    """Return whether our process group has the terminal, and the child is in another one."""
    with suppress(OSError):
        return os.tcgetpgrp(terminal) == os.getpgrp() != os.getpgid(child)
    return False


def _hand_on(child: int, terminal: int) -> bool:
    """Give the child's group the terminal if ours has it; return whether it has it now."""
    with suppress(OSError):
        group = os.getpgid(child)
        if _is_terminal_ours_alone(child, terminal):
            os.tcsetpgrp(terminal, group)
        return os.tcgetpgrp(terminal) == group
    return False


def _continue(child: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(os.getpgid(child), signal.SIGCONT)


def _stop() -> bool:
    """Stop as ^Z does; return whether we were stopped, and continued."""
    # A blocked SIGCONT continues us, too, and stays pending.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    try:
        # To this thread: it must stop before it continues.
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        return signal.SIGCONT in signal.sigpending()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
