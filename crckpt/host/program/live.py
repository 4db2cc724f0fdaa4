"""Identify the program that a live process runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from crckpt.host.proc.command import command_line, working_directory
from crckpt.host.program.program import Program, identify


def read_program(pid: int, comm: str, unit: str = "") -> Program:
    """The program of a process in the service `unit`; as much of it as can be read."""
    executable = ""
    with suppress(OSError):
        executable = str(Path(f"/proc/{pid}/exe").readlink())
    return identify(executable, command_line(pid), working_directory(pid), comm=comm, unit=unit)
