"""Find BPF programs that restrict devices and the network of a control group (version 2). Source: bpf(2)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.host.syscalls.libc import syscall

_PROG_QUERY: Final = 16  # since Linux 4.15
# BPF_F_QUERY_EFFECTIVE: programs of the groups above apply to this one, too.
_EFFECTIVE: Final = 1
# `query` of union bpf_attr: target_fd, attach_type, query_flags, attach_flags, prog_ids, prog_cnt.
_QUERY: Final = struct.Struct("<IIIIQI4x")
# linux/bpf.h, enum bpf_attach_type. Network: ingress, egress, sockets, addresses to bind and to connect to.
_KINDS: Final = {"devices": (6,), "network": (0, 1, 2, 8, 9, 10, 11)}


def group_programs(group: Path) -> Iterator[str]:
    """Yield `devices` and `network` if a program of this group, or an inherited one, restricts them.

    Yield nothing if the kernel does not report it.
    """
    with suppress(OSError):
        descriptor = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield from (name for name, kinds in _KINDS.items() if any(_programs(descriptor, kind) for kind in kinds))
        finally:
            os.close(descriptor)


def _programs(group: int, kind: int) -> int:
    query = ctypes.create_string_buffer(_QUERY.pack(group, kind, _EFFECTIVE, 0, 0, 0), _QUERY.size)
    # With room for none the kernel returns their number. Without CAP_NET_ADMIN it stays 0.
    with suppress(OSError):
        syscall("bpf", _PROG_QUERY, query, _QUERY.size)
    return int(_QUERY.unpack(query.raw)[5])
