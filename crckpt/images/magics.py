"""Magic numbers of the images that crckpt reads (criu/include/magic.h)."""

from __future__ import annotations

from typing import Final

COMMON: Final = 0x54564319
SERVICE: Final = 0x55105940
"""The magics that come before an image's own magic."""

INVENTORY: Final = 0x58313116
PSTREE: Final = 0x50273030
CORE: Final = 0x55053847
IDS: Final = 0x54432030
FS: Final = 0x51403912
MM: Final = 0x57492820
FILES: Final = 0x56303138
FDINFO: Final = 0x56213732
REMAP_FPATH: Final = 0x59133954
GHOST_FILE: Final = 0x52583605
FILE_LOCKS: Final = 0x54323616
MEMFD_INODE: Final = 0x48453499
TTY_INFO: Final = 0x59453036
PAGEMAP: Final = 0x56084025
STATS: Final = 0x57093306
IRMAP_CACHE: Final = 0x57004059
PIPES_DATA: Final = 0x56453709
FIFO_DATA: Final = 0x59333054
SK_QUEUES: Final = 0x56264026
TCP_STREAM: Final = 0x51465506
BPFMAP_DATA: Final = 0x64324033
IPCNS_SHM: Final = 0x46283044
IPCNS_MSG: Final = 0x55453737
IPCNS_SEM: Final = 0x59573019
SERVICE_IMAGES: Final = frozenset({STATS, IRMAP_CACHE})
"""Images with SERVICE before their own magic. All others have COMMON; `inventory.img` has neither."""
