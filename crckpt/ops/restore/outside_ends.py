"""The ends of the host's files that a restored tree gets: pipes to the outside, and a terminal."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec import Struct

from crckpt.host.observe.pipes import make_filled_pipe
from crckpt.host.terminal.holder_client import TerminalHolder
from crckpt.images.pipes import PipeContent
from crckpt.images.terminal_files import NO_INPUT, OUTPUT
from crckpt.preflight.restore.pipes import OutsidePipe


class OutsideEnds(Struct, frozen=True):
    """The ends of the host's files that a restored tree gets.

    `pipes` are those whose other end is not in the tree. `terminal` is our descriptor of the terminal that the tree
    gets. For each of `contents` crckpt makes a pipe with these bytes. If `replaces_terminal`, the tree gets /dev/null
    in the place of its terminal, or for its output `terminal_output`. If it gets a new terminal, that has a `holder`.
    """

    pipes: tuple[OutsidePipe, ...] = ()
    terminal: int | None = None
    contents: tuple[PipeContent, ...] = ()
    replaces_terminal: bool = False
    terminal_output: int | None = None
    holder: TerminalHolder | None = None


@contextmanager
def inherited_ends(outside: OutsideEnds, output: int | None) -> Iterator[dict[str, int]]:
    """Give values for CRIU's --inherit-fd, each with our descriptor; they are closed with the block.

    A pipe to the outside becomes `output`, or /dev/null if that is None.
    """
    ends: dict[str, int] = {}
    writers: list[int] = []
    try:
        for content in outside.contents:
            descriptor, writer = make_filled_pipe(content.size, content.content)
            # With the colon (criu/pipes.c:276): the `pipe[INODE]` of criu(8) silently does nothing.
            ends[f"fd[{descriptor}]:pipe:[{content.pipe_id}]"] = descriptor
            writers.append(writer)
        for pipe in outside.pipes:
            if output is not None:
                descriptor = _open_for_writing(2 if pipe.errors else output)
            else:
                descriptor = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
            ends[f"fd[{descriptor}]:pipe:[{pipe.inode}]"] = descriptor
        if outside.replaces_terminal:
            null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            ends[f"fd[{null}]:{NO_INPUT}"] = null
            written = os.dup(null if outside.terminal_output is None else outside.terminal_output)
            ends[f"fd[{written}]:{OUTPUT}"] = written
        yield ends
    finally:
        for descriptor in (*ends.values(), *writers):
            os.close(descriptor)


def socket_outputs(output: int) -> frozenset[int]:
    """Find which of the tree's outputs (1, 2) would be sockets; `output` is our descriptor for its standard output."""
    found = set()
    for number, ours in ((1, output), (2, 2)):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(ours).st_mode):
                found.add(number)
    return frozenset(found)


def _open_for_writing(output: int) -> int:
    if os.isatty(output):
        # Shells open a terminal for reading too: the program must not read what the user types.
        with suppress(OSError):  # the terminal has no name in this mount namespace
            return os.open(f"/proc/self/fd/{output}", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    return os.dup(output)
