"""The terminal of the shell that started crckpt, and numbers of pseudoterminals.

CRIU gives a restored program the terminal with the settings and the size that the program's old terminal had, and
brings the program to the foreground. Source: criu/tty.c, pty_open_unpaired_slave.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from crckpt.errors import HostCannot

_SIZE_BYTES = 8  # struct winsize: asm-generic/termios.h

# How many terminals CRIU opens at most until one has the number that it needs (criu/tty.c, __pty_open_ptmx_index).
_OPENED_BY_CRIU: Final = 32
# asm-generic/ioctls.h; Python's termios does not have it.
_TIOCGPTN: Final = 0x80045430


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


def read_used_numbers() -> frozenset[int]:
    """Read which numbers are in use."""
    with suppress(FileNotFoundError):
        return frozenset(int(path.name) for path in Path("/dev/pts").iterdir() if path.name.isdecimal())
    return frozenset()


@contextmanager
def lower_numbers_held(needed: frozenset[int], multiplexer: str = "/dev/ptmx") -> Iterator[None]:
    """Hold lower numbers than the `needed` ones, so that few enough are free for CRIU. Raises HostCannot, OSError."""
    last, number = max(needed, default=0) - _OPENED_BY_CRIU, -1
    with ExitStack() as held, ExitStack() as not_held:
        while number < last:
            try:
                descriptor = os.open(multiplexer, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                # Not the space of a disk.
                hint = "close terminals, or raise the limit: sysctl kernel.pty.max"
                raise HostCannot("all pseudoterminals of this host are in use", hint=hint) from error
            closing = held.enter_context(ExitStack())
            closing.callback(os.close, descriptor)
            (number,) = struct.unpack("i", fcntl.ioctl(descriptor, _TIOCGPTN, bytes(4)))
            # Open until no lower number is free: the kernel would give it again.
            if number in needed or number > last:
                not_held.enter_context(closing.pop_all())
        not_held.close()
        yield
