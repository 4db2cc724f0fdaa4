"""The calls that crckpt makes again after it has interrupted them, on x86-64 and for 32-bit programs on it.

crckpt/tracking/preload/restart.c has the same table, for CRIU. Source: asm/unistd_64.h, asm/unistd_32.h.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

SOCKET: Final = -1
"""The call's first argument must be a socket."""


class RestartedCall(Struct, frozen=True):
    """A call that returns EINTR without an effect: its numbers (-1: none), and the first argument that it must have."""

    name: str
    number: int
    compat: int
    only: int = 0

    @property
    def plain_name(self) -> str:
        """The name of the system call, in whatever version."""
        return self.name.partition(":")[0].removesuffix("_time64")


# linux/net.h: SYS_CONNECT ..., the first argument of socketcall(2).
_SOCKETCALLS: Final = {
    "connect": 3,
    "accept": 5,
    "send": 9,
    "recv": 10,
    "sendto": 11,
    "recvfrom": 12,
    "sendmsg": 16,
    "recvmsg": 17,
    "accept4": 18,
    "recvmmsg": 19,
    "sendmmsg": 20,
}

# These return EINTR after a mere stop, without a handler (signal(7)); on a socket, if it has a timeout (SO_RCVTIMEO,
# SO_SNDTIMEO). Other files are left out: a FUSE server may have done its part of the call.
RESTARTED_CALLS: Final[tuple[RestartedCall, ...]] = (
    # Events stay in the set until they are returned.
    RestartedCall("epoll_wait", 232, 256),
    RestartedCall("epoll_pwait", 281, 319),
    RestartedCall("epoll_pwait2", 441, 441),
    # All operations are done, or none.
    RestartedCall("semop", 65, -1),
    RestartedCall("semtimedop", 220, 420),
    RestartedCall("ipc: semop", -1, 117, 1),
    RestartedCall("ipc: semtimedop", -1, 117, 4),
    # It returns a signal that it took.
    RestartedCall("rt_sigtimedwait", 128, 177),
    RestartedCall("rt_sigtimedwait_time64", -1, 421),
    # If they took, read or sent anything, they return its count: EINTR means nothing was done.
    RestartedCall("io_getevents", 208, 247),
    RestartedCall("io_pgetevents", 333, 385),
    RestartedCall("io_pgetevents_time64", -1, 416),
    RestartedCall("read", 0, 3, SOCKET),
    RestartedCall("readv", 19, 145, SOCKET),
    RestartedCall("recvfrom", 45, 371, SOCKET),
    RestartedCall("recvmsg", 47, 372, SOCKET),
    RestartedCall("recvmmsg", 299, 337, SOCKET),
    RestartedCall("recvmmsg_time64", -1, 417, SOCKET),
    RestartedCall("write", 1, 4, SOCKET),
    RestartedCall("writev", 20, 146, SOCKET),
    RestartedCall("sendto", 44, 369, SOCKET),
    RestartedCall("sendmsg", 46, 370, SOCKET),
    RestartedCall("sendmmsg", 307, 345, SOCKET),
    RestartedCall("sendfile", 40, 187, SOCKET),
    RestartedCall("sendfile64", -1, 239, SOCKET),
    RestartedCall("accept", 43, -1, SOCKET),
    RestartedCall("accept4", 288, 364, SOCKET),
    # It waits for the connection that it began. Over TCP it then times out with another errno.
    RestartedCall("connect", 42, 362, SOCKET),
    *(RestartedCall(f"socketcall: {name}", -1, 102, first) for name, first in _SOCKETCALLS.items()),
)
