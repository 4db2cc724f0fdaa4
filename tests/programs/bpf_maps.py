"""BPF maps, of a kind that CRIU knows and of another."""

import os
import struct
from pathlib import Path
from typing import Final

from oddities import called

BPF: Final = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
BPF_MAP_CREATE: Final = 0
# enum bpf_map_type, linux/bpf.h
ARRAY: Final = 2
QUEUE: Final = 22


def bpf_array(_: Path) -> int:
    return made(ARRAY, key_bytes=4)


def bpf_queue(_: Path) -> int:
    return made(QUEUE, key_bytes=0)


def made(kind: int, key_bytes: int) -> int:
    wanted = struct.pack("=4I", kind, key_bytes, 8, 4)
    return called(BPF, BPF_MAP_CREATE, wanted, len(wanted))
