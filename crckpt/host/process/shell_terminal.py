"""The terminal of the shell that started crckpt: its settings, its size, and the process group in its foreground.

CRIU gives a restored program the terminal with the settings and the size that the program's old terminal had, and
brings the program to the foreground. Source: criu/tty.c, pty_open_unpaired_slave.
"""

from __future__ import annotations

import fcntl
import os
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from msgspec import Struct

_SIZE_BYTES = 8  # struct winsize: asm-generic/termios.h


class ShellTerminal(Struct, frozen=True):
    """A terminal as it was when it was read. `group` had its foreground; 0 if it is not our controlling terminal."""

    descriptor: int
    modes: list[Any]
    size: bytes
    group: int

    @property
    def is_of_other_group(self) -> bool:
        """Whether another process group had its foreground: the shell has started us in the background."""
        return self.group not in (0, os.getpgrp())

    def set_modes(self, modes: list[Any] | None = None) -> None:
        """Give it its settings back, or set these. A terminal that has gone does not matter."""
        with suppress(OSError, termios.error):
            termios.tcsetattr(self.descriptor, termios.TCSANOW, modes or self.modes)

    def set_size(self) -> bool:
        """Give it its size back; return whether it had another one: then the kernel sends SIGWINCH."""
        with suppress(OSError):
            if fcntl.ioctl(self.descriptor, termios.TIOCGWINSZ, bytes(_SIZE_BYTES)) == self.size:
                return False
            fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, self.size)
        return True

    def set_group(self) -> None:
        """Bring the group that had the foreground back there."""
        with suppress(OSError):
            if self.group:
                os.tcsetpgrp(self.descriptor, self.group)


def read_terminal(descriptor: int) -> ShellTerminal | None:
    """Read its state; None if it has gone."""
    group = 0
    with suppress(OSError):
        group = os.tcgetpgrp(descriptor)
    with suppress(OSError, termios.error):
        size = fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(_SIZE_BYTES))
        return ShellTerminal(descriptor, termios.tcgetattr(descriptor), size, group)
    return None


@contextmanager
def terminal_of_shell(descriptor: int | None) -> Iterator[ShellTerminal | None]:
    """Give the state of the terminal, if there is one, and put it back if the block fails.

    From now on we may write to the terminal and set it, also while the program has its foreground.
    """
    terminal = None if descriptor is None else read_terminal(descriptor)
    if terminal is None:
        yield None
        return
    # `stty tostop` would stop us. Not a handler: the kernel would send the signal again and again.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        yield terminal
    except BaseException:
        terminal.set_group()
        terminal.set_modes()
        terminal.set_size()
        raise
