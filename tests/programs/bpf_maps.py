"""BPF maps of a kind that CRIU knows and of another, and a program that filters a socket."""

import ctypes
import os
import socket
import struct
from pathlib import Path
from typing import Final

from oddities import called

BPF: Final = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
BPF_MAP_CREATE: Final = 0
BPF_PROG_LOAD: Final = 5
SO_ATTACH_BPF: Final = 50
# enum bpf_map_type, linux/bpf.h
ARRAY: Final = 2
QUEUE: Final = 22


def bpf_array(_: Path) -> int:
    return made(ARRAY, key_bytes=4)


def bpf_queue(_: Path) -> int:
    return made(QUEUE, key_bytes=0)


def bpf_filter(_: Path) -> socket.socket:
    """Make a socket whose packets a program drops."""
    instructions = ctypes.create_string_buffer(bytes.fromhex("b700000000000000 9500000000000000"))
    license_name = ctypes.create_string_buffer(b"GPL")
    wanted = struct.pack("=IIQQ", 1, 2, ctypes.addressof(instructions), ctypes.addressof(license_name)).ljust(
        128, b"\0"
    )
    program = called(BPF, BPF_PROG_LOAD, wanted, len(wanted))
    held = socket.socket(type=socket.SOCK_DGRAM)
    held.setsockopt(socket.SOL_SOCKET, SO_ATTACH_BPF, program)
    os.close(program)
    return held


def made(kind: int, key_bytes: int) -> int:
    wanted = struct.pack("=4I", kind, key_bytes, 8, 4)
    return called(BPF, BPF_MAP_CREATE, wanted, len(wanted))
