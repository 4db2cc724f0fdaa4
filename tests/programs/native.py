"""System calls that Python 3.11 does not have."""

import ctypes
import os
import struct
from collections.abc import Callable
from typing import Final

TFD_NONBLOCK: Final = os.O_NONBLOCK
TFD_CLOEXEC: Final = os.O_CLOEXEC
IN_CREATE: Final = 0x100
CLOCK_MONOTONIC: Final = 1
IPC_CREAT: Final = 0o1000

_libc: Final = ctypes.CDLL(None, use_errno=True)
_SIGSET_BYTES: Final = 128


def timerfd(first_s: float, interval_s: float) -> int:
    """Make a non-blocking timerfd on the monotonic clock."""
    fd = _checked(_libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC))
    _checked(_libc.timerfd_settime(fd, 0, _itimerspec(first_s, interval_s), None))
    return fd


def timerfd_left(fd: int) -> float:
    """Return the seconds until the timer next expires."""
    return _left(lambda buffer: _libc.timerfd_gettime(fd, buffer))


def signalfd(signal: int) -> int:
    """Make a non-blocking signalfd for one signal."""
    mask = ctypes.create_string_buffer(_SIGSET_BYTES)
    _checked(_libc.sigaddset(mask, signal))
    return _checked(_libc.signalfd(-1, mask, os.O_NONBLOCK | os.O_CLOEXEC))


def inotify(path: str, mask: int) -> tuple[int, int]:
    """Make a non-blocking inotify descriptor; return it and the number of its one watch."""
    fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    return fd, _checked(_libc.inotify_add_watch(fd, path.encode(), mask))


def queue_signal(signal: int, value: int) -> None:
    """Send this process a signal with a value."""
    _checked(_libc.sigqueue(os.getpid(), signal, ctypes.c_void_p(value)))


def take_signal(signal: int) -> int | None:
    """Take one pending, blocked signal and return its value; None if none is pending."""
    mask = ctypes.create_string_buffer(_SIGSET_BYTES)
    _checked(_libc.sigaddset(mask, signal))
    info = ctypes.create_string_buffer(128)
    if _libc.sigtimedwait(mask, info, struct.pack("qq", 0, 0)) < 0:
        return None
    (value,) = struct.unpack_from("i", info, 24)
    return int(value)


def create_timer(signal: int, first_s: float, interval_s: float) -> int:
    """A new POSIX timer on the monotonic clock that sends `signal`; returns the timer's id."""
    sigevent = struct.pack("Qii48x", 0, signal, 0)
    timer = ctypes.c_void_p()
    _checked(_libc.timer_create(CLOCK_MONOTONIC, sigevent, ctypes.byref(timer)))
    _checked(_libc.timer_settime(timer, 0, _itimerspec(first_s, interval_s), None))
    return timer.value or 0


def timer_left(timer: int) -> float:
    """Return the seconds until a POSIX timer next expires."""
    return _left(lambda buffer: _libc.timer_gettime(ctypes.c_void_p(timer), buffer))


def shared_segment(key: int, length: int) -> tuple[int, memoryview]:
    """Make a System V shared memory segment; return its id and bytes."""
    segment = _checked(_libc.shmget(key, length, IPC_CREAT | 0o600))
    _libc.shmat.restype = ctypes.c_void_p
    address = _libc.shmat(segment, None, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "shmat")
    return segment, memoryview((ctypes.c_char * length).from_address(address)).cast("B")


def semaphore(key: int, value: int | None = None) -> int:
    """Return the value of a System V semaphore, set first if `value` is given."""
    semaphores = _checked(_libc.semget(key, 1, IPC_CREAT | 0o600))
    set_value, get_value = 16, 12
    if value is not None:
        _checked(_libc.semctl(semaphores, 0, set_value, value))
    return _checked(_libc.semctl(semaphores, 0, get_value))


def send_message(key: int, kind: int, text: bytes) -> None:
    """Queue a System V message."""
    queue = _checked(_libc.msgget(key, IPC_CREAT | 0o600))
    _checked(_libc.msgsnd(queue, struct.pack("q", kind) + text, len(text), 0))


def take_message(key: int) -> tuple[int, bytes]:
    """Take the oldest System V message: its kind and its text."""
    queue = _checked(_libc.msgget(key, 0))
    buffer = ctypes.create_string_buffer(8 + 1024)
    no_wait = 0o4000
    length = _checked(_libc.msgrcv(queue, buffer, 1024, 0, no_wait))
    (kind,) = struct.unpack_from("q", buffer)
    return kind, buffer.raw[8 : 8 + length]


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def _itimerspec(first_s: float, interval_s: float) -> bytes:
    return struct.pack("qqqq", *_timespec(interval_s), *_timespec(first_s))


def _timespec(seconds: float) -> tuple[int, int]:
    return int(seconds), int(seconds % 1 * 1e9)


def _left(read: Callable[[ctypes.Array[ctypes.c_char]], int]) -> float:
    buffer = ctypes.create_string_buffer(32)
    _checked(read(buffer))
    _, _, seconds, nanoseconds = struct.unpack("qqqq", buffer.raw)
    return float(seconds + nanoseconds / 1e9)
