"""Lay out an ELF core file of an x86-64 process: the headers and notes before its memory, and where memory goes.

Sources: elf(5), core(5); Linux include/uapi/linux/elfcore.h, arch/x86/include/asm/user_64.h, fs/binfmt_elf.c.
Source for the extended registers: Intel's manual, volume 1, chapter 13; gdb/i387-tdep.c, i387_guess_xsave_layout.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from msgspec import Struct

from crckpt.images.mm import PROT_EXEC, PROT_READ, PROT_WRITE
from crckpt.model import PAGE_SIZE

NT_PRSTATUS: Final = 1
NT_FPREGSET: Final = 2
NT_PRPSINFO: Final = 3
NT_AUXV: Final = 6
NT_FILE: Final = 0x46494C45
NT_X86_XSTATE: Final = 0x202

_ET_CORE: Final = 4
_EM_X86_64: Final = 62
_PT_LOAD: Final = 1
_PT_NOTE: Final = 4
# Replaces a number of program headers above 16 bits; the first section header has the number then.
_PN_XNUM: Final = 0xFFFF

# Elf64_Ehdr, Elf64_Phdr, Elf64_Shdr of elf(5)
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER: Final = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER: Final = struct.Struct("<IIQQQQIIQQ")
_IDENT: Final = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
# struct elf_prstatus: signal info, current signal; pending and blocked signals; pid, ppid, pgrp, sid; four times;
# registers; whether there are floating-point registers.
_PRSTATUS: Final = struct.Struct("<3ihxxQQ4i64x27QiI")
# struct elf_prpsinfo: state, its letter, zombie, nice; flags; uid, gid, pid, ppid, pgrp, sid; name; arguments.
_PRPSINFO: Final = struct.Struct("<4b4xQ6I16s80s")
# mmap(2) and elf(5) use different numbers for permissions.
_FLAGS: Final = ((PROT_READ, 4), (PROT_WRITE, 2), (PROT_EXEC, 1))
_ARGUMENTS: Final = 80

# These bytes are the CPU's to ignore: gdb reads the components there.
_XCR0_AT: Final = 464
_XSAVE_HEADER: Final = struct.Struct("<Q56x")
_XSAVE_HEADER_AT: Final = 512
# Offsets by component. CPUs differ; debuggers recognise this layout, Intel's, by the components and the size.
_COMPONENTS_AT: Final = {2: 576, 3: 960, 4: 1024, 5: 1088, 6: 1152, 7: 1664, 9: 2688}
# The bits of the components in the first 512 bytes.
_LEGACY: Final = 0b11


Ids: TypeAlias = tuple[int, int, int, int]
"""The process or, in the note of a thread, the thread; its parent, process group and session."""

MappedFile: TypeAlias = tuple[int, int, int, str]
"""A file mapped from an address to before another one; the offset, a multiple of the page size; the path."""


class ElfSegment(Struct, frozen=True):
    """`size` bytes at an address, with mmap's `prot`. A segment that is not `in_file` has no bytes in the core file."""

    address: int
    size: int
    prot: int
    in_file: bool


class Layout(Struct, frozen=True):
    """`head` is the start of the file, `offsets` are where the bytes of each segment go, `size` is that of the file."""

    head: bytes
    offsets: tuple[int, ...]
    size: int


def layout(segments: Sequence[ElfSegment], notes: bytes) -> Layout:
    """Lay out a core file of these notes (see `note`) and segments, which are in ascending order of addresses."""
    number = len(segments) + 1
    # sh_size is the number of section headers, sh_info that of program headers (elf(5), e_phnum).
    sections = (_SECTION_HEADER.pack(0, 0, 0, 0, 0, 1, 0, number, 0, 0),) if number >= _PN_XNUM else ()
    after_programs = _HEADER.size + number * _PROGRAM_HEADER.size
    note_at = after_programs + len(sections) * _SECTION_HEADER.size
    # Offsets and addresses must agree in a page (elf(5), p_align).
    begin = _align(note_at + len(notes), PAGE_SIZE)
    ends = tuple(accumulate((segment.size * segment.in_file for segment in segments), initial=begin))
    programs = []
    for segment, offset in zip(segments, ends, strict=False):
        flags = sum(flag for bit, flag in _FLAGS if segment.prot & bit)
        numbers = (offset, segment.address, 0, segment.size * segment.in_file, segment.size, PAGE_SIZE)
        programs.append(_PROGRAM_HEADER.pack(_PT_LOAD, flags, *numbers))
    note_header = _PROGRAM_HEADER.pack(_PT_NOTE, 4, note_at, 0, 0, len(notes), 0, 4)
    ours = _HEADER.size, _PROGRAM_HEADER.size, min(number, _PN_XNUM)
    theirs = (_SECTION_HEADER.size, 1) if sections else (0, 0)
    sections_at = after_programs if sections else 0
    header = _HEADER.pack(_IDENT, _ET_CORE, _EM_X86_64, 1, 0, _HEADER.size, sections_at, 0, *ours, *theirs, 0)
    parts = (header, note_header, *programs, *sections, notes)
    return Layout(b"".join(parts), ends[:-1], ends[-1])


def note(kind: int, content: bytes) -> bytes:
    """Make one note, as the kernel does."""
    name = b"LINUX\0" if kind == NT_X86_XSTATE else b"CORE\0"
    # The length of the name counts its zero byte, but not the padding to 4 bytes.
    return struct.pack("<III8s", len(name), len(content), kind, name) + content.ljust(_align(len(content), 4), b"\0")


def prstatus(ids: Ids, general: Sequence[int], pending: Iterable[int], blocked: Iterable[int]) -> bytes:
    """Make the content of NT_PRSTATUS: `general` as in `Registers`, signals by number."""
    return _PRSTATUS.pack(0, 0, 0, 0, _signal_set(pending), _signal_set(blocked), *ids, *general, 1, 0)


def prpsinfo(ids: Ids, owner: tuple[int, int], comm: str, arguments: bytes) -> bytes:
    """Make the content of NT_PRPSINFO: `owner` is (uid, gid); 80 bytes of the arguments, NUL after each, are kept."""
    name = comm.encode("utf-8", "surrogateescape")[:15]
    # As the kernel (fs/binfmt_elf.c: fill_psinfo): the last byte stays 0, and spaces separate the arguments.
    line = arguments[: _ARGUMENTS - 1].rstrip(b"\0").replace(b"\0", b" ")
    return _PRPSINFO.pack(0, ord("R"), 0, 0, 0, *owner, *ids, name, line)


def xstate(floating: bytes, extended: Sequence[tuple[int, bytes]], in_use: int) -> bytes:
    """Make the content of NT_X86_XSTATE of a thread; see `Registers`."""
    area = bytearray(floating).ljust(_XSAVE_HEADER_AT + _XSAVE_HEADER.size, b"\0")
    components = _LEGACY | sum(1 << component for component, _ in extended)
    struct.pack_into("<Q", area, _XCR0_AT, components)
    _XSAVE_HEADER.pack_into(area, _XSAVE_HEADER_AT, in_use & components)
    for component, content in extended:
        area = area.ljust(_COMPONENTS_AT[component], b"\0") + content
    return bytes(area)


def make_file_note(files: Sequence[MappedFile]) -> bytes:
    """Make the content of NT_FILE."""
    # By it a debugger finds in files what the core file leaves out.
    places = (struct.pack("<QQQ", start, end, offset // PAGE_SIZE) for start, end, offset, _ in files)
    names = (path.encode("utf-8", "surrogateescape") + b"\0" for _, _, _, path in files)
    return struct.pack("<QQ", len(files), PAGE_SIZE) + b"".join((*places, *names))


def _signal_set(numbers: Iterable[int]) -> int:
    return sum(1 << number - 1 for number in set(numbers) if 1 <= number <= 64)


def _align(number: int, to: int) -> int:
    return -(-number // to) * to
