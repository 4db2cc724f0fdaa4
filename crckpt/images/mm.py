"""`mm-PID.img`: a process's address space (images/mm.proto, images/vma.proto)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.framing import read_single
from crckpt.images.wire import Message

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

MAP_PRIVATE: Final = 0x2
MAP_GROWSDOWN: Final = 0x100
MAP_LOCKED: Final = 0x2000
MAP_HUGETLB: Final = 0x40000
"""Bits of `Vma.flags`: the mapping is private, a stack, locked in memory, or of reserved huge pages."""

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

    CRIU 4 dumps anonymous memory that is shared with children as a memfd called `/dev/zero` (seen).
    """

    start: int
    end: int
    pgoff: int
    shmid: int
    prot: int
    flags: int
    status: int
    wants_huge_pages: bool = False

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
        """The kind of map, for display."""
        # CRIU 4 marks stacks by mmap's flag only (seen).
        if self.flags & MAP_GROWSDOWN:
            return "stack"
        return next((kind for bit, kind in _KINDS if self.status & bit), "unknown")


class AddressSpace(Struct, frozen=True):
    """A process's mappings, and the addresses in them that the kernel knows; ends are not included.

    `auxv`: the auxiliary vector that the kernel gave the program: type, value, type, value ... `dumpable`: 1 if its
    user may trace the process (PR_SET_DUMPABLE).
    """

    vmas: tuple[Vma, ...]
    auxv: tuple[int, ...]
    exe_file_id: int
    start_code: int
    end_code: int
    start_stack: int
    start_brk: int
    arg_start: int
    arg_end: int
    env_start: int
    env_end: int
    dumpable: int = 1

    @property
    def size(self) -> int:
        """Mapped bytes of address space, used or not."""
        return sum(vma.size for vma in self.vmas)


def read_mm(data: bytes, name: str = "mm.img") -> AddressSpace:
    """Decode the image. Raises IntegrityError if it is damaged."""
    message = read_single(data, name, magics.MM)
    # In the order of AddressSpace. Fields 3 and 4 (start and end of data) and 7 (end of the heap) are not needed.
    places = [message.required(number) for number in (12, 1, 2, 5, 6, 8, 9, 10, 11)]
    places.append(_dumpable(message))
    vmas = tuple(_vma(entry) for entry in message.messages(14))
    return AddressSpace(vmas, message.uints(13), *places)


def read_dumpable(data: bytes, name: str = "mm.img") -> int:
    """Decode only `AddressSpace.dumpable`. Raises IntegrityError if the image is damaged."""
    return _dumpable(read_single(data, name, magics.MM))


def _dumpable(message: Message) -> int:
    return message.uint(15, default=1)


def _vma(message: Message) -> Vma:
    start, end, pgoff, shmid, prot, flags, status = (message.required(number) for number in range(1, 8))
    vma = Vma(start, end, pgoff, shmid, prot, flags, status, wants_huge_pages=bool(message.uint(9) & _HUGE_ADVICE))
    if vma.end <= vma.start:
        raise IntegrityError(f"{message.where}: a mapping ends at {vma.end:#x} before its start {vma.start:#x}")
    return vma
