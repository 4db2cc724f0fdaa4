"""The ends of the host's files that a restored tree gets: pipes to the outside, and a terminal."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.errors import IntegrityError, UsageError
from crckpt.helper.calls.remote_calls import Order, carry_out
from crckpt.helper.terminal.client import TerminalHolder, held_terminal
from crckpt.helper.terminal.protocol import HeldTree
from crckpt.host import proc
from crckpt.host.disk.checked_files import open_for_appending
from crckpt.host.observe.descriptors import make_filled_pipe
from crckpt.host.process import run
from crckpt.images.other_files import PipeContent
from crckpt.images.tree import ImageTree
from crckpt.images.tty import NO_INPUT, OUTPUT
from crckpt.ops.inspect.images import read_pipes
from crckpt.ops.restore.attempt import RestoreAttempt
from crckpt.preflight.restore.checks import RestoreVerdict
from crckpt.preflight.restore.descriptors import OutsidePipe, find_terminal_leader
from crckpt.preflight.restore.tasks import find_needed_ids


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
def inherited_ends(outside: OutsideEnds, output: int | None) -> Iterator[tuple[dict[str, int], list[int]]]:
    """Give values for CRIU's --inherit-fd, each with our descriptor, which is closed with the block.

    And the PIDs of processes that copy what the tree writes to its output. They end with the tree; we reap them. A pipe
    to the outside becomes `output`, or /dev/null if that is None.
    """
    ends: dict[str, int] = {}
    copiers: list[int] = []
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
            if pipe.polled:
                # An epoll cannot watch a file on a disk, or /dev/null.
                with select.epoll() as epoll:
                    try:
                        epoll.register(descriptor)
                    except PermissionError:
                        descriptor, copier = _copy_to(descriptor)
                        copiers.append(copier)
            ends[f"fd[{descriptor}]:pipe:[{pipe.inode}]"] = descriptor
        if outside.replaces_terminal:
            null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            ends[f"fd[{null}]:{NO_INPUT}"] = null
            written = os.dup(null if outside.terminal_output is None else outside.terminal_output)
            ends[f"fd[{written}]:{OUTPUT}"] = written
        yield ends, copiers
    finally:
        for descriptor in (*ends.values(), *writers):
            os.close(descriptor)


@contextmanager
def opened_outside_ends(attempt: RestoreAttempt, tree: ImageTree, verdict: RestoreVerdict) -> Iterator[OutsideEnds]:
    """Give what the tree gets from outside; what is opened for it is closed with the block."""
    request = attempt.request
    with ExitStack() as stack:
        replaces = attempt.find_replaced_terminals(tree) is not None
        output = None
        if replaces and request.tty_file is not None:
            try:
                output = open_for_appending(request.tty_file)
            except (IntegrityError, OSError) as error:
                # A system error names only the part of the path that it is of.
                why = getattr(error, "strerror", None) or error
                raise UsageError(
                    f"--tty: cannot write to {request.tty_file}: {why}", hint="name another file"
                ) from error
            stack.callback(os.close, output)
        holder, is_new = None, attempt.has_new_terminal
        if is_new:
            # CRIU puts a tree without a session leader into its own session, which must live as long as the tree. A
            # root that leads its session gets the terminal in the hold. If the block fails, holder and terminal end.
            is_session = tree.root.pid != tree.root.sid
            holder = stack.enter_context(
                held_terminal(
                    attempt.checkpoint.job,
                    find_needed_ids(tree),
                    is_session=is_session,
                    in_namespace=request.new_pid_namespace,
                )
            )
        is_ours = verdict.needs_terminal and not is_new
        yield OutsideEnds(
            verdict.outside_pipes,
            request.terminal if is_ours else None,
            read_pipes(attempt.repository, attempt.checkpoint, verdict.two_way_pipes),
            replaces,
            output,
            holder,
        )


def socket_outputs(output: int) -> frozenset[int]:
    """Find which of the tree's outputs (1, 2) would be sockets; `output` is our descriptor for its standard output."""
    modes = {1: 0, 2: 0}
    for number, ours in ((1, output), (2, 2)):
        with suppress(OSError):
            modes[number] = os.fstat(ours).st_mode
    return frozenset(number for number, mode in modes.items() if stat.S_ISSOCK(mode))


def _open_for_writing(output: int) -> int:
    if os.isatty(output):
        # Shells open a terminal for reading too: the program must not read what the user types.
        with suppress(OSError):  # the terminal has no name in this mount namespace
            return os.open(f"/proc/self/fd/{output}", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    return os.dup(output)


def _copy_to(output: int) -> tuple[int, int]:
    """Make a pipe from which another process copies to `output`, which is closed; return its end and the PID."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    try:
        # It holds no directory of ours, and no descriptor that anybody waits for.
        copier = ("env", "--chdir=/", "cat")
        return writer, run.spawn(copier, {0: reader, 1: output, 2: null}, environment={}, own_session=True)
    finally:
        for descriptor in (reader, output, null):
            os.close(descriptor)


def give_terminal(holder: TerminalHolder, tree: ImageTree, init: int | None) -> Iterator[Finding]:
    """In the hold: let the tree have the terminal as it had the old one; yield what was lost."""
    # CRIU has given it the owner that the old one had.
    owner = tree.root.core.credentials
    if owner is not None:
        os.fchown(holder.slave, owner.uid, -1)
    leader = find_terminal_leader(tree)
    if leader is None:
        return
    inner, fd, group = leader
    pid = proc.outer_pids((inner,), init).get(inner)
    if pid is None:
        return
    values = (("controlling_terminal", (fd, group)),)
    for answer in carry_out((Order(pid, pid, "set", values, is_lent=True),)):
        for why in filter(None, (answer.why, *(why for _, why in answer.failed))):
            yield cause("terminal-not-controlling").finding(why=why)


def commit_terminal(holder: TerminalHolder, attempt: RestoreAttempt, tree: ImageTree, root: int) -> Iterator[Finding]:
    """Report to the holder that the tree runs, whose root we see as `root`; yield what was lost."""
    checkpoint = attempt.checkpoint
    held = HeldTree(
        root, proc.start_time(root) or 0, tree.root.pid, tree.root.comm, checkpoint.job, checkpoint.id, holder.log
    )
    if why := holder.commit(held):
        yield cause("terminal-not-attachable").finding(why=why, log=holder.log)
