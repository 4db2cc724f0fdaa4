"""List the processes and locks of crckpt on this host: whose they are, since when, and what ends them. End trackers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct

from crckpt.errors import HostCannot, UsageError
from crckpt.helper.channel import HelperSilent
from crckpt.helper.kinds import FILLER, KEEPER, KINDS, HelperRecord, find_records, record_directory
from crckpt.helper.terminal.relay import FoundTerminal, find_terminals
from crckpt.host import proc
from crckpt.host.disk.users import user_name
from crckpt.host.network.claim import find_fences, table_name
from crckpt.host.network.packet_filter import find_locks
from crckpt.host.proc.fd import read_head, read_targets
from crckpt.host.proc.file_users import parse_locks
from crckpt.host.proc.status import real_user
from crckpt.host.target import resolve
from crckpt.host.usage import CriuProcess, ProcessUsage, find_criu_processes, read_process_usage
from crckpt.ops.lazy.family import is_unfilled
from crckpt.tracking.keeper.client import forget_killed, keepers, mark_ended
from crckpt.tracking.keeper.protocol import Keeper

_KINDS: Final = {kind.module: kind for kind in KINDS}
# A program can declare all of its memory to be its arguments.
_LONGEST_COMMAND: Final = 4096
_COMMAND_ENDS: Final = "the end of its work"
_CRIU_ENDS: Final = "the crckpt that started it, or a time limit"
_LOCK_ENDS: Final = "the end of its process"

_Targets: TypeAlias = tuple[tuple[int, str], ...]
"""The descriptors of a process, and what they lead to."""


class KeeperUsage(Struct, frozen=True):
    """A keeper, and what it uses; None if it has just ended."""

    keeper: Keeper
    usage: ProcessUsage | None


class ListedProcess(Struct, frozen=True):
    """A process of crckpt or CRIU: its kind, the root of its tree if it has one, its user, and what ends it.

    `program` is the name of the tree's program, or the command.
    """

    pid: int
    kind: str
    tree: int | None
    program: str
    user: str
    started: datetime
    cpu_s: float
    memory_bytes: int
    ends: str


class ListedLock(Struct, frozen=True):
    """A lock, or what a killed helper left: its file or table, the process that holds it if any, and what ends it."""

    name: str
    pid: int | None
    ends: str


class Listing(Struct, frozen=True):
    """All of them; with `ended`, only the trackers that were ended.

    `trackers` are the keepers, as they describe themselves. `unanswered`: for each that does not answer, what to do.
    """

    trackers: tuple[KeeperUsage, ...]
    processes: tuple[ListedProcess, ...] = ()
    locks: tuple[ListedLock, ...] = ()
    ended: bool = False
    unanswered: tuple[str, ...] = ()


def list_processes() -> Listing:
    """List the processes and locks of crckpt."""
    found, silent, killed_keepers = _ask_keepers(None, is_end=False)
    terminals = tuple(find_terminals())
    killed = dict.fromkeys(killed_keepers, "the next dump; crckpt ps --end {pid}")
    killed |= {each: "the end of its tree" for each in terminals if isinstance(each, HelperRecord)}
    trees = {each.keeper.pid: (each.keeper.root, each.keeper.comm) for each in found}
    held = (each.terminal for each in terminals if isinstance(each, FoundTerminal))
    trees |= {terminal.holder: (terminal.tree.root, terminal.tree.comm) for terminal in held}
    running = find_criu_processes()
    opened: dict[int, _Targets] = {}
    for process in running:
        opened[process.pid] = ()
        # It may have ended. What processes of others have open is their choice.
        with suppress(OSError):
            if process.is_foreign:
                continue
            opened[process.pid] = tuple(read_targets(process.pid))
    return Listing(
        found,
        tuple(sorted(_describe(running, found, trees, opened), key=lambda each: each.pid)),
        tuple(_find_locks(opened, killed)),
        unanswered=tuple(f"{one.message}; {one.hint}" for one in silent),
    )


def end_trackers(target: str) -> Listing:
    """End the tracker of the tree that `target` names, or all of them (`all`).

    Raises UsageError if that tree is not tracked, HostCannot if the keeper does not answer, and what `resolve` raises.
    """
    root = resolve(target) if target != "all" else None
    found, silent, killed = _ask_keepers(root, is_end=True)
    # Raise it only after the others were ended.
    if silent:
        raise silent[0]
    for record in killed:
        # The next dump would start it again.
        forget_killed(record)
    if root is not None and not found and not killed:
        raise UsageError(f"the tree of PID {root} is not tracked", hint="list the tracked trees: crckpt ps")
    return Listing(found, ended=True)


def _ask_keepers(
    root: int | None, *, is_end: bool
) -> tuple[tuple[KeeperUsage, ...], list[HelperSilent], list[HelperRecord]]:
    """Return the keepers that answer; for each that does not, why; and the records of those that were killed."""
    found: list[KeeperUsage] = []
    silent: list[HelperSilent] = []
    killed: list[HelperRecord] = []
    for one in keepers(root):
        if isinstance(one, HelperSilent):
            silent.append(one)
        elif isinstance(one, HelperRecord):
            killed.append(one)
        else:
            keeper, session = one
            # Read the usage before the keeper is ended.
            found.append(KeeperUsage(keeper, read_process_usage(keeper.pid)))
            if is_end:
                session.end()
                mark_ended(keeper.root)
            session.close()
    return tuple(found), silent, killed


def _describe(
    running: tuple[CriuProcess, ...],
    trackers: tuple[KeeperUsage, ...],
    trees: dict[int, tuple[int, str]],
    opened: dict[int, _Targets],
) -> Iterator[ListedProcess]:
    for process in running:
        if (helper := _KINDS.get(process.module)) is not None:
            tree, program = trees.get(process.pid) or _find_filled(opened[process.pid])
            yield _make_row(process.pid, helper.name, tree, program, process.usage, helper.ends)
        else:
            ends = _CRIU_ENDS if process.program == "criu" else _COMMAND_ENDS
            words = proc.command_line(process.pid)
            # As a user types it: without what runs the program (Python, a loader), and without its path.
            start = next((at for at, word in enumerate(words) if Path(word).name == process.program), None)
            command = " ".join(words if start is None else (process.program, *words[start + 1 :]))[:_LONGEST_COMMAND]
            yield _make_row(process.pid, process.program, None, command, process.usage, ends)
    listed = {process.pid for process in running}
    for each in trackers:
        # It may have been started after we looked.
        if each.usage is not None and each.keeper.pid not in listed:
            keeper = each.keeper
            yield _make_row(keeper.pid, KEEPER.name, keeper.root, keeper.comm, each.usage, KEEPER.ends)


def _make_row(pid: int, kind: str, tree: int | None, program: str, usage: ProcessUsage, ends: str) -> ListedProcess:
    owner = real_user(pid)
    user = user_name(owner) if owner is not None else "?"
    return ListedProcess(pid, kind, tree, program, user, usage.started, usage.cpu_s, usage.memory_bytes, ends)


def _find_filled(targets: _Targets) -> tuple[int | None, str]:
    """The root of the tree whose memory a process fills, and its program: it holds the tree's mark."""
    for _, target in targets:
        path = Path(target)
        root = proc.parse_identity(path.name) if path.parent == record_directory(FILLER) else None
        if root is not None and (found := root.find()) is not None:
            return root.pid, found.comm
    return None, ""


def _find_locks(opened: dict[int, _Targets], killed: dict[HelperRecord, str]) -> Iterator[ListedLock]:
    """Find locks, and what helpers of living trees left that were `killed`, each with what ends that."""
    for pid, targets in opened.items():
        for fd, target in targets:
            # It may have been closed since.
            with suppress(OSError):
                if target.startswith("/") and parse_locks(read_head(pid, fd), pid, fd):
                    yield ListedLock(target, pid, _LOCK_ENDS)
    for record, ends in killed.items():
        yield ListedLock(str(record.path), None, ends.format(pid=record.root.pid))
    files = {target for targets in opened.values() for _, target in targets}
    for mark in find_records(FILLER):
        # Nobody fills its memory any more, and it waits for that.
        if str(mark.path) not in files and is_unfilled(mark.root):
            yield ListedLock(str(mark.path), None, f"the end of its tree: kill -9 {mark.root.pid}")
    with suppress(HostCannot, OSError):
        for move in sorted(find_fences()):
            ends = f"the end of its move: crckpt migrate --resume {move}"
            yield ListedLock(f"nft table {table_name(move)}", None, ends)
        for table in find_locks():
            yield ListedLock(f"nft table {table}", None, "the restore of its checkpoint, or crckpt rm")
