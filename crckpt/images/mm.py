"""`mm-PID.img`: a process's address space (images/mm.proto, images/vma.proto)."""

from __future__ import annotations

import os
from typing import Annotated, Final

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.decode import Field, decode, read_one
from crckpt.images.framing import edit_image, read_single
from crckpt.images.wire import VARINT, Message, edit_field, encode

REGULAR: Final = 1 << 0
STACK: Final = 1 << 1
VSYSCALL: Final = 1 << 2
VDSO: Final = 1 << 3
HEAP: Final = 1 << 5
FILE_PRIVATE: Final = 1 << 6
FILE_SHARED: Final = 1 << 7
ANON_SHARED: Final = 1 << 8
ANON_PRIVATE: Final = 1 << 9
SYSV_IPC: Final = 1 << 10
SOCKET: Final = 1 << 11
VVAR: Final = 1 << 12
AIO_RING: Final = 1 << 13
MEMFD: Final = 1 << 14
SHADOW_STACK: Final = 1 << 15
GUARD: Final = 1 << 16
UPROBES: Final = 1 << 17
PLUGIN: Final = 1 << 27
"""Bits of `Vma.status` (criu/include/image.h)."""

PROT_READ: Final = 1
PROT_WRITE: Final = 2
PROT_EXEC: Final = 4
"""Bits of `Vma.prot`."""

MAP_SHARED: Final = 0x1
MAP_PRIVATE: Final = 0x2
MAP_GROWSDOWN: Final = 0x100
MAP_LOCKED: Final = 0x2000
MAP_NORESERVE: Final = 0x4000
MAP_HUGETLB: Final = 0x40000
"""Bits of `Vma.flags`: the mapping is shared, private, a stack, locked in memory, without a claim to memory, or of
reserved huge pages."""

DUMPABLE_BY_USER: Final = 1
"""The value of `AddressSpace.dumpable` with which the program's user may trace it (SUID_DUMP_USER)."""

_DUMPABLE: Final = 15
_VMA, _FLAGS = 14, 6
# The kernel refuses a map only if it is larger than all memory.
_LARGE: Final = 1 << 30
# The bit of MADV_HUGEPAGE (madvise(2)) in a mapping's advice, as CRIU saves it.
_HUGE_ADVICE: Final = 1 << 14

_HUGE_SHIFT: Final = 26
# Where `Vma.flags` has the logarithm of a huge page's size (mmap(2)). CRIU always writes it (criu/hugetlb.c).
_HUGE_MASK: Final = 0x3F

# The first kind whose bit is set counts. A mapping has several bits: a heap is also REGULAR and ANON_PRIVATE.
_KINDS: Final = (
    (VDSO, "vdso"),
    (VVAR, "vvar"),
    (VSYSCALL, "vsyscall"),
    (GUARD, "guard"),
    (UPROBES, "uprobes"),
    (AIO_RING, "aio ring"),
    (SYSV_IPC, "sysv shared memory"),
    (SOCKET, "packet socket"),
    (PLUGIN, "device"),
    (MEMFD, "memfd"),
    (FILE_PRIVATE, "private file"),
    (FILE_SHARED, "shared file"),
    (ANON_SHARED, "shared memory"),
    (SHADOW_STACK, "shadow stack"),
    (STACK, "stack"),
    (HEAP, "heap"),
    (ANON_PRIVATE, "anonymous"),
)


class Vma(Struct, frozen=True):
    """One mapping: addresses `start` to `end` (not included), from byte `pgoff` of what is mapped.

    - `shmid`: the file id if a file or memfd is mapped, else the number of a `pagemap-shmem-N.img`, a System V id or 0
    - `prot`, `flags`: as mmap(2) takes them
    - `status`: CRIU's bits
    - `wants_huge_pages`: the program asked for transparent huge pages (madvise(2))
    - `opened`: how the mapped file was opened, as open(2) takes it; None if it is not known, and for no file

    CRIU 4 dumps anonymous memory that is shared with children as a memfd called `/dev/zero` (seen).
    """

    start: Annotated[int, 1]
    end: Annotated[int, 2]
    pgoff: Annotated[int, 3]
    shmid: Annotated[int, 4]
    prot: Annotated[int, 5]
    flags: Annotated[int, 6]
    status: Annotated[int, 7]
    wants_huge_pages: Annotated[bool, Field(9, default=0, convert=lambda advice: bool(advice & _HUGE_ADVICE))] = False
    opened: Annotated[int | None, 10] = None

    @property
    def size(self) -> int:
        """Bytes of address space."""
        return self.end - self.start

    @property
    def file_id(self) -> int | None:
        """The id of the mapped file in `files.img`; None if it is no file."""
        is_file = self.status & (FILE_PRIVATE | FILE_SHARED) and not self.status & (SYSV_IPC | SOCKET)
        return self.shmid if is_file else None

    @property
    def may_write_file(self) -> bool:
        """Whether the program may write to the mapped file, perhaps only after mprotect(2)."""
        # CRIU opens the file so (criu/files-reg.c, collect_filemap), and the kernel asks for no more.
        opened = self.prot & PROT_WRITE if self.opened is None else self.opened & os.O_ACCMODE != os.O_RDONLY
        return bool(self.flags & MAP_SHARED and opened)

    @property
    def is_reservation(self) -> bool:
        """Whether it is large and cannot be written: the kernel counts no memory for it, but would during a restore."""
        # Before CRIU moves it to its address, it can be written (criu/mem.c, premap_private_vma).
        kind = self.flags & (MAP_PRIVATE | MAP_NORESERVE | MAP_HUGETLB)
        return kind == MAP_PRIVATE and not self.prot & PROT_WRITE and self.size >= _LARGE

    @property
    def is_read_by_position(self) -> bool:
        """Whether a restore reads its pages by their position in the image, which a stream does not allow."""
        # CRIU fills such a mapping only when it is at its address (criu/mem.c, premap_priv_vmas and prepare_vma_ios).
        return self.flags & (MAP_PRIVATE | MAP_HUGETLB) == MAP_PRIVATE | MAP_HUGETLB

    @property
    def huge_page(self) -> int:
        """The size of its reserved huge pages in bytes; 0 for ordinary pages and for shared mappings."""
        return 1 << (self.flags >> _HUGE_SHIFT & _HUGE_MASK) if self.is_read_by_position else 0

    @property
    def kind(self) -> str:
        # CRIU 4 marks stacks by mmap's flag only (seen).
        if self.flags & MAP_GROWSDOWN:
            return "stack"
        return next((kind for bit, kind in _KINDS if self.status & bit), "unknown")


class AddressSpace(Struct, frozen=True):
    """A process's mappings, and the addresses in them that the kernel knows; ends are not included.

    `auxv`: the auxiliary vector that the kernel gave the program: type, value, type, value ... `dumpable`: 1 if its
    user may trace the process (PR_SET_DUMPABLE).
    """

    # Fields 3 and 4 (start and end of data) and 7 (end of the heap) are not needed.
    vmas: Annotated[tuple[Vma, ...], 14]
    auxv: Annotated[tuple[int, ...], 13]
    exe_file_id: Annotated[int, 12]
    start_code: Annotated[int, 1]
    end_code: Annotated[int, 2]
    start_stack: Annotated[int, 5]
    start_brk: Annotated[int, 6]
    arg_start: Annotated[int, 8]
    arg_end: Annotated[int, 9]
    env_start: Annotated[int, 10]
    env_end: Annotated[int, 11]
    dumpable: Annotated[int, Field(_DUMPABLE, default=1)] = 1

    @property
    def size(self) -> int:
        """Mapped bytes of address space, used or not."""
        return sum(vma.size for vma in self.vmas)


def read_mm(data: bytes, name: str = "mm.img") -> AddressSpace:
    """Decode the image. Raises IntegrityError if it is damaged."""
    space = read_one(AddressSpace, data, name, magics.MM)
    for vma in space.vmas:
        if vma.end <= vma.start:
            raise IntegrityError(f"{name}: a mapping ends at {vma.end:#x} before its start {vma.start:#x}")
    return space


def read_dumpable(data: bytes, name: str = "mm.img") -> int:
    """Decode only `AddressSpace.dumpable`. Raises IntegrityError if the image is damaged."""
    return read_single(data, name, magics.MM).uint(_DUMPABLE, default=1)


def drop_dumpable(data: bytes, name: str = "mm.img") -> bytes:
    """Return the image of a process that only root may trace. Raises IntegrityError."""
    # A flag that says so in another way (2) stays. The last of several fields with the same number counts.
    if read_dumpable(data, name) != DUMPABLE_BY_USER:
        return data
    undumpable = encode(((_DUMPABLE, VARINT, 0),))
    return edit_image(data, name, magics.MM, lambda payload, _: payload + undumpable)


def claim_nothing(data: bytes, name: str = "mm.img") -> bytes:
    """Let CRIU make mappings that are reservations without a claim to memory. Raises IntegrityError."""

    def edit(value: int | bytes) -> int | bytes:
        vma = decode(Vma, Message(value, name)) if isinstance(value, bytes) else None
        if vma is None or not vma.is_reservation:
            return value
        # The last of several fields with the same number counts.
        return bytes(value) + encode(((_FLAGS, VARINT, vma.flags | MAP_NORESERVE),))

    return edit_image(data, name, magics.MM, lambda payload, _: edit_field(payload, (_VMA,), edit, name))
