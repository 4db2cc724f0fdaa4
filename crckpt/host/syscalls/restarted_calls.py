"""The calls that crckpt makes again after it has interrupted them, on x86-64 and for 32-bit programs on it.

The table is in restarted_calls.h, which crckpt/tracking/preload/calls.c includes, for CRIU. Source: asm/unistd_64.h,
asm/unistd_32.h; linux/net.h, for the first argument of socketcall(2).
"""

from __future__ import annotations

import re
from pathlib import Path
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


RESTARTED_CALLS: Final = tuple(
    RestartedCall(name, int(number), int(compat), SOCKET if only == "SOCKET" else int(only))
    for name, number, compat, only in re.findall(
        r'^AGAIN\("(.+)", (.+), (.+), (.+)\)$', Path(__file__).with_suffix(".h").read_text(), re.MULTILINE
    )
)
"""These return EINTR after a mere stop, without a handler (signal(7))."""
