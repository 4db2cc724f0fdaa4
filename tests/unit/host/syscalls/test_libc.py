"""System calls that fail raise OSError with their errno."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from crckpt.host.syscalls.libc import LIBC, check, getsockopt, syscall


def test_error_of_a_failed_libc_call_has_errno_and_path() -> None:
    with pytest.raises(NotADirectoryError) as error:
        check(LIBC.open(b"/proc/self/stat/below", os.O_RDONLY), "/proc/self/stat/below")
    assert error.value.filename == "/proc/self/stat/below"
    with pytest.raises(OSError, match="Bad file descriptor") as refused:
        syscall("pidfd_getfd", -1, 0, 0)
    assert (refused.value.errno, refused.value.filename) == (errno.EBADF, None)


def test_socket_option_failure_has_errno() -> None:
    with socket.socket(socket.AF_UNIX) as ours, pytest.raises(OSError, match="Protocol not available") as error:
        getsockopt(ours.fileno(), socket.SOL_SOCKET, 9999, None, 0)
    assert error.value.errno == errno.ENOPROTOOPT
