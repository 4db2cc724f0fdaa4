"""Limit the time and the size of what crckpt reads of other users' making: anybody may make as much as they like."""

from __future__ import annotations

import _thread
import errno
import os
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

_MOST_BYTES: Final = 256 << 20
_READ_BYTES: Final = 1 << 16

Result = TypeVar("Result")

OWN_USERS_S: Final = 5.0
OTHER_USERS_S: Final = 1.0
"""Seconds for all processes of the users that something is about and of root, and for all of other users."""


class Budget:
    """Seconds and bytes for one look at what others have made, however many files it is in. Time counts from its begin.

    `was_spent`: it did not suffice, so that something was left out.
    """

    def __init__(self, seconds: float, size: int = _MOST_BYTES) -> None:
        self._seconds = seconds
        self._began: float | None = None
        self._left_bytes = size
        self.was_spent = False

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        return max(0.0, self._began + self._seconds - now)

    def is_spent(self) -> bool:
        """Return whether nothing is left. Ask only before more work: the answer is remembered."""
        self.was_spent = self.was_spent or self._left_bytes <= 0 or not self.left_s
        return self.was_spent

    def read(self, path: str, first: int = _READ_BYTES) -> bytes:
        """Read a file, at first `first` bytes, and no more than the budget allows. Raises OSError."""
        found = bytearray()
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # The kernel answers a read of a file of /proc with a page: it may search long for where that page begins.
            while not self.is_spent():
                part = os.read(file, _READ_BYTES if found else first)
                if not part:
                    break
                found += part
                self._left_bytes -= len(part)
        finally:
            os.close(file)
        return bytes(found)

    def read_lines(self, path: str) -> list[str]:
        """Read the lines of a file, without one that is incomplete. Raises OSError."""
        return self.read(path).decode(errors="replace").split("\n")[:-1]


def finish_within(seconds: float, work: Callable[[], Result]) -> Result:
    """Do `work` in a thread. Raises what that raises, and TimeoutError after `seconds`.

    For all that the kernel answers only to who may trace a process. While that process executes a program the kernel
    keeps the answer back, and no signal but SIGKILL ends the wait: a process whose file system in user space does not
    answer a close executes for ever. Source: exec_update_lock in fs/exec.c. The thread is then left behind.
    """
    found: list[Result] = []
    ended: SimpleQueue[Exception | None] = SimpleQueue()

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            ended.put(error)
        else:
            ended.put(None)

    # Not `threading`: an interruption in the middle of its start would leave locks behind.
    _thread.start_new_thread(run, ())
    try:
        error = ended.get(timeout=max(0.0, seconds))
    except Empty:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None
    if error is not None:
        raise error
    return found[0]
