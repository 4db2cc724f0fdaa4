"""Find the terminal of a restored tree, and connect ours to it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from crckpt.errors import HostCannot, TargetNotRunning, UsageError
from crckpt.helper.terminal.protocol import HeldTerminal
from crckpt.helper.terminal.relay import FoundTerminal, find_terminals
from crckpt.helper.terminal.relay import attach as connect

_ID: Final = re.compile(r"[0-9a-f]{4,64}")


class AttachedTerminal(Struct, frozen=True):
    """The end of an attachment. `status` is the program's exit status; None if the user has detached."""

    terminal: HeldTerminal
    status: int | None


def list_terminals() -> tuple[HeldTerminal, ...]:
    """Return the terminals of all restored trees."""
    return tuple(found.terminal for found in find_terminals() if isinstance(found, FoundTerminal))


def attach(
    name: str | None, ours: int, key: int | None, announce: Callable[[HeldTerminal], None] = lambda _: None
) -> AttachedTerminal:
    """Connect `ours`, a terminal, to that of the tree that `name` names, until the byte `key` is typed.

    Without a name there must be only one. `announce` is called before. Raises UsageError, TargetNotRunning, HostCannot.
    """
    found = pick_terminal(name, [each for each in find_terminals() if isinstance(each, FoundTerminal)])
    if other := found.terminal.attached:
        hint = f"detach it in its own terminal (^] unless it was given --detach-key), or end it: kill {other}"
        raise HostCannot(f"process {other} is attached already", hint=hint)
    announce(found.terminal)
    return AttachedTerminal(found.terminal, connect(found, ours, key))


def pick_terminal(name: str | None, terminals: Sequence[FoundTerminal]) -> FoundTerminal:
    """Pick the terminal of a job, of the root's PID, or of a checkpoint's id. Raises UsageError, TargetNotRunning."""
    found = []
    for each in terminals:
        tree = each.terminal.tree
        is_id = name is not None and _ID.fullmatch(name) is not None
        if name in (None, tree.job, str(tree.root)) or (is_id and tree.checkpoint.startswith(name or "")):
            found.append(each)
    if len(found) == 1:
        return found[0]
    if not found:
        what = "no restored program has a new terminal" if name is None else f"{name} has no terminal to attach to"
        others = f"these have: {_names(terminals)}; " if terminals else ""
        if name is None:
            how = "crckpt restore JOB --tty new"
        elif name.isdecimal():
            how = f"crckpt dump {int(name)} JOB --stop; crckpt restore JOB --tty new"
        else:
            job = shlex.quote(name)
            how = f"crckpt restore {job} --tty new; if it runs, first: crckpt dump PID {job} --stop"
        raise TargetNotRunning(what, hint=f"{others}a program gets one by its restore: {how}")
    what = "several programs have a terminal" if name is None else f"{name} runs {len(found)} times"
    raise UsageError(
        f"{what}: {_names(found)}", hint=f"name one by its PID: crckpt attach {found[0].terminal.tree.root}"
    )


def _names(terminals: Sequence[FoundTerminal]) -> str:
    return ", ".join(f"{each.terminal.tree.job} (PID {each.terminal.tree.root})" for each in terminals)
