"""Find what waits in a socket and CRIU does not save, or saves without what belongs to it.

CRIU reads the messages of unix sockets until one is empty, and sends them again from a socket without a name
(criu/sk-queue.c); it refuses those that come with credentials (SO_PASSCRED). It knows nothing of errors and urgent
data. Source: unix(7), socket(7), poll(2).
"""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import termios
from typing import Final, Literal

Loss = Literal["error", "urgent", "sender", "empty", "credentials"]

_SO_PEEK_OFF: Final = 42
_NOT_SET: Final = -1
_LONGEST: Final = 1 << 20
_MESSAGES: Final = (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)


def find_losses(held: socket.socket, family: int, kind: int, *, is_frozen: bool = False) -> tuple[Loss, ...]:
    """Find what a restore loses of a socket; `held` must be of the family AF_UNIX for Python.

    Only of a process that `is_frozen` all messages are looked at. Of another, only the first of each socket: the offset
    that is needed for more is the program's (SO_PEEK_OFF).
    """
    waiting = select.poll()
    waiting.register(held, select.POLLIN | select.POLLPRI | select.POLLRDHUP)
    events = next((events for _, events in waiting.poll(0)), 0)
    found: list[Loss] = []
    if events & select.POLLERR:
        found.append("error")
    if events & select.POLLPRI:
        found.append("urgent")
    is_readable = family == socket.AF_UNIX and events & select.POLLIN
    # What waits at a listener are connections.
    if is_readable and not held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        if held.getsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED) and _has_unread(held):
            found.append("credentials")
        if kind in _MESSAGES:
            is_ended = bool(events & (select.POLLHUP | select.POLLRDHUP))
            found += sorted(_find_in_messages(held, is_ended=is_ended, is_frozen=is_frozen))
    return tuple(found)


def _has_unread(held: socket.socket) -> bool:
    return bool(struct.unpack("i", fcntl.ioctl(held, termios.FIONREAD, bytes(4)))[0])


def _find_in_messages(held: socket.socket, *, is_ended: bool, is_frozen: bool) -> set[Loss]:
    found: set[Loss] = set()
    offset = held.getsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF)
    if is_frozen:
        held.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
    elif offset != _NOT_SET:
        return found
    try:
        while True:
            # Without room for them, descriptors that were sent stay where they are.
            content, _, _, sender = held.recvmsg(_LONGEST if is_frozen else 1, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            found |= {"sender"} if sender else set()
            if not content and not is_ended:
                found.add("empty")
            if not content or not is_frozen:
                break
    except BlockingIOError:
        pass
    except OSError:  # an error was pending, and is told to us instead of the program
        found.add("error")
    finally:
        if is_frozen:
            held.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, offset)
    return found
