"""Write a process of a checkpoint as an ELF core file."""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from crckpt.errors import IntegrityError, UsageError
from crckpt.host.disk.files import created, name_with_ending, own_name, rename, resize, sync, sync_directory, write_at
from crckpt.images.core import Registers, read_registers
from crckpt.images.mm import GUARD
from crckpt.images.tree import ImageProcess, ImageTree
from crckpt.model import PAGE_SIZE, CheckpointId
from crckpt.ops.context import Context, Progress
from crckpt.ops.failures import full_disk_reported
from crckpt.ops.inspect import elf_core
from crckpt.ops.inspect.elf_core import ElfSegment, Layout
from crckpt.ops.inspect.images import opened_checkpoint
from crckpt.ops.inspect.memory import Memory, Region
from crckpt.store import open_reader, read_file

_WHAT: Final = "core"
# Bytes of zeros in a row that become a hole in the file; longer runs are left out, as files have a size limit.
_LONGEST_HOLE: Final = 1 << 30


class CoreFile(Struct, frozen=True):
    """The core file that was written. `size` is its size, `held` how many bytes of memory the checkpoint has."""

    id: CheckpointId
    pid: int
    comm: str
    threads: int
    executable: str
    path: Path
    size: int
    held: int


def core(context: Context, ref: str, pid: int | None, output: Path | None, *, force: bool = False) -> CoreFile:
    """Write the process `pid` of `ref`, by default the root, into `output`, by default `core.PID` here (0600).

    Takes bounded memory. Raises UsageError if there is no such process, it has no memory or is not x86-64, or if the
    file cannot be made, or exists and `force` is not given; NoSuchCheckpoint, IntegrityError.
    """
    with opened_checkpoint(context, ref) as (repository, checkpoint, tree):
        process = _choose_process(tree, pid)
        target = _check_target(output or Path(f"core.{process.pid}"), force=force)
        names = (f"core-{thread.tid}.img" for thread in process.threads)
        registers = tuple(read_registers(read_file(repository, checkpoint, name), name) for name in names)
        if not registers[0].is_native:
            raise UsageError(
                f"process {process.pid} is a 32-bit program; crckpt writes core files of 64-bit programs only"
            )
        with open_reader(repository, checkpoint) as reading:
            memory = Memory(reading, process)
            segments = [segment for region in memory.regions for segment in segments_of(region)]
            try:
                notes = b"".join(_make_notes(process, memory, registers))
            except struct.error as error:  # images from elsewhere may contain any number
                raise IntegrityError(
                    f"the images of process {process.pid} contain a number that is too large: {error}"
                ) from error
            layout = elf_core.layout(segments, notes)
            with full_disk_reported(target, "name another file: --output FILE"):
                _write(target, segments, layout, memory, context.progress)
    return CoreFile(
        id=checkpoint.id,
        pid=process.pid,
        comm=process.comm,
        threads=len(process.threads),
        executable="" if process.exe is None else process.exe.title,
        path=target,
        size=layout.size,
        held=_bytes_held(memory),
    )


def segments_of(region: Region) -> Iterator[ElfSegment]:
    """Yield the segments of the core file for a region. Zeros become holes."""
    # What is in other files is left out: a debugger finds these files by NT_FILE.
    if region.vma.status & GUARD:
        return  # no map of its own: CRIU lists guard pages again, after all maps (criu/mem.c, collect_madv_guards)
    low, high = region.vma.start // PAGE_SIZE, region.vma.end // PAGE_SIZE
    first = region.extents["first"].astype(np.int64)
    # The empty runs at both ends make the gaps before the first page and after the last one count, too.
    begins = np.concatenate(([low], first, [high]))
    ends = np.concatenate(([low], first + region.extents["count"], [high]))
    # What is missing but not zero must not read as zeros: it gets a segment without bytes.
    longest = _LONGEST_HOLE // PAGE_SIZE if region.is_zero_elsewhere else 0
    apart = begins[1:] - ends[:-1] > longest
    blocks = zip(begins[np.append(True, apart)].tolist(), ends[np.append(apart, True)].tolist(), strict=True)
    at = low
    for begin, end in blocks:
        for start, stop, in_file in ((at, begin, False), (begin, end, True)):
            if start < stop:
                yield ElfSegment(start * PAGE_SIZE, (stop - start) * PAGE_SIZE, region.vma.prot, in_file)
        at = end


def _choose_process(tree: ImageTree, pid: int | None) -> ImageProcess:
    if pid is None:
        process = tree.root
    else:
        found = [process for process in tree.processes if process.pid == pid]
        if not found:
            known = ", ".join(str(process.pid) for process in tree.processes)
            raise UsageError(f"the checkpoint has no process {pid}", hint=f"choose one of: {known}")
        process = found[0]
    if process.memory is None:
        raise UsageError(f"process {process.pid} was a zombie without memory", hint="choose another process")
    if process.core.arch != "x86_64":
        raise UsageError(f"process {process.pid} is not an x86_64 program; crckpt writes core files of these only")
    return process


def _check_target(output: Path, *, force: bool) -> Path:
    if str(output) == "-":
        raise UsageError(
            "a core file has holes, so it cannot be written to stdout (-)", hint="name a file: --output FILE"
        )
    target = output.absolute()
    if os.path.lexists(target) and not force:
        raise UsageError(
            f"{output} exists already", hint="replace it with --force, or name another file: --output FILE"
        )
    # rename(2) would put the core file in the place of a device or a FIFO.
    if os.path.lexists(target) and not target.is_file():
        raise UsageError(f"{output} is not a regular file", hint="name another file: --output FILE")
    return target


def _make_notes(process: ImageProcess, memory: Memory, registers: tuple[Registers, ...]) -> Iterator[bytes]:
    """Make the notes in the kernel's order: those of the process are between the two notes of its first thread."""
    space, owner = process.memory, process.core.credentials
    for thread, values in zip(process.threads, registers, strict=True):
        ids = thread.tid, process.ppid, process.pgid, process.sid
        status = elf_core.prstatus(ids, values.general, thread.core.pending, thread.core.blocked)
        yield elf_core.note(elf_core.NT_PRSTATUS, status)
        if thread.tid == process.pid and space is not None:
            # The program may have set these addresses to anything (PR_SET_MM); the note keeps 80 bytes.
            arguments = memory.read(space.arg_start, max(0, min(space.arg_end - space.arg_start, PAGE_SIZE)))
            user = (0, 0) if owner is None else (owner.uid, owner.gid)
            yield elf_core.note(elf_core.NT_PRPSINFO, elf_core.prpsinfo(ids, user, process.comm, arguments))
            yield elf_core.note(elf_core.NT_AUXV, struct.pack(f"<{len(space.auxv)}Q", *space.auxv))
            files = [
                (region.vma.start, region.vma.end, region.vma.pgoff, region.path)
                for region in memory.regions
                if region.path and not region.is_zero_elsewhere
            ]
            yield elf_core.note(elf_core.NT_FILE, elf_core.make_file_note(files))
        yield elf_core.note(elf_core.NT_FPREGSET, values.floating)
        if values.extended:
            state = elf_core.xstate(values.floating, values.extended, values.in_use)
            yield elf_core.note(elf_core.NT_X86_XSTATE, state)


def _write(target: Path, segments: list[ElfSegment], layout: Layout, memory: Memory, progress: Progress) -> None:
    """Write a temporary file next to the target, and rename it when it is complete and durable."""
    temporary = target.with_name(name_with_ending(f".{target.name}", f".{own_name()}"))
    with ExitStack() as undo:
        try:
            descriptor = undo.enter_context(created(temporary, _WHAT))
        except OSError as error:
            raise UsageError(
                f"cannot write {target}: {error.strerror}", hint="name another file: --output FILE"
            ) from error
        write_at(descriptor, layout.head, 0, _WHAT)
        total, done = _bytes_held(memory), 0
        # Write each run at its place: what is not written stays a hole.
        begins = [segment.address for segment in segments]
        for region in memory.regions:
            for address, content in memory.runs(region):
                spot = bisect_right(begins, address) - 1
                write_at(descriptor, content, layout.offsets[spot] + address - begins[spot], _WHAT)
                done += len(content)
                progress(done, total)
        progress(total, total)
        resize(descriptor, layout.size, _WHAT)
        sync(descriptor, _WHAT)
        rename(temporary, target, _WHAT)
    sync_directory(target.parent, _WHAT)


def _bytes_held(memory: Memory) -> int:
    return sum(region.pages for region in memory.regions) * PAGE_SIZE
