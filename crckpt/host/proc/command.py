"""The commands of processes: /proc/PID/cmdline, comm and cwd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.host.proc import procfs
from crckpt.host.proc.process import Process, read_process
from crckpt.host.proc.tree import Tree

_MOST_ARGUMENTS: Final = 128 << 10


def command_line(pid: int) -> tuple[str, ...]:
    """The arguments a process was started with (it may have changed them); empty if it has ended."""
    # At most the first 128 KiB: a program can declare all of its memory to be its arguments (PR_SET_MM).
    with suppress(OSError):
        # Programs that rename themselves leave empty words behind their new name.
        text = procfs.head(f"/proc/{pid}/cmdline", _MOST_ARGUMENTS).rstrip(b"\0")
        return tuple(os.fsdecode(word) for word in text.split(b"\0")) if text else ()
    return ()


def read_commands(tree: Tree) -> Iterator[tuple[Process, tuple[str, ...], str]]:
    """Each process of a tree with its command line and its current directory, except those that have ended."""
    for process in tree.processes:
        found = process, command_line(process.pid), working_directory(process.pid)
        # Check this last: then the PID belonged to this process while both files were read.
        if process.identity.keeps_pid:
            yield found


def title(pid: int) -> str:
    """Return the name that people use for a process: its comm, or `criu` where CRIU was started through a loader; `?`
    if it has ended.
    """
    # Started as `ld-linux-x86-64.so.2 --library-path DIRECTORIES ... criu`, it has the loader's name as its comm.
    if any(Path(word).name == "criu" for word in command_line(pid)[:6]):
        return "criu"
    process = read_process(pid)
    return process.comm if process else "?"


def working_directory(pid: int) -> str:
    """Its current directory; empty if it has ended."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/cwd")
    return ""
