"""`crckpt attach`."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from typing import Final

import typer

from crckpt.cli import options
from crckpt.cli.format import align, short_id
from crckpt.cli.output import emit, form, pick, print_error, print_progress
from crckpt.errors import UsageError
from crckpt.helper.terminal.protocol import HeldTerminal
from crckpt.ops.attach import attach as perform
from crckpt.ops.attach import list_terminals

_KILLED: Final = 128 + signal.SIGKILL


def attach(
    terminal: str | None = options.argument(
        "JOB",
        "The program: the job or the id of the checkpoint that it was restored from, or its PID.",
        default=None,
        shown="the only one",
    ),
    detach_key: str = options.option(
        "--detach-key KEY", "The key that detaches: ^ and a letter or ], or `none`.", default="^]"
    ),
    list_them: bool = options.flag("--list", "List the programs with such a terminal; attach to none."),
) -> None:
    """Connect your terminal to the terminal of a program that was restored with `crckpt restore --tty new`.

    What you type goes to the program, ^C and ^Z too, until you press ^] (Ctrl and ]): then the program keeps running
    without you, and you can attach again. When the program ends, crckpt exits with its exit status. Only one terminal
    can be attached at a time. **--json** needs **--list**.

    For example:

        crckpt attach trainer
        crckpt attach 4711 --detach-key ^P
    """
    options.require_root("to attach to a program")
    if list_them:
        found = list_terminals()
        documents = [
            {
                **pick(each.tree, "comm", "job", "checkpoint", "log"),
                "pid": each.tree.root,
                "holder": each.holder,
                "attached": each.attached or None,
            }
            for each in found
        ]
        emit({"terminals": documents}, _lines(found), is_answer=True)
        return
    if form.as_json:
        raise UsageError("--json needs --list: the terminal shows what the program writes", hint="crckpt attach --list")
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("crckpt attach needs a terminal", hint="run it in one; or read the log: crckpt attach --list")
    key = _parse_key(detach_key)

    def announce(found: HeldTerminal) -> None:
        detaches = "" if key is None else f"; {detach_key} detaches"
        print_error(f"attaching to {found.tree.job} (PID {found.tree.root}){detaches}")

    result = perform(terminal, 0, key, announce)
    tree = result.terminal.tree
    if result.status is None:
        print_progress("")
        print_progress(f"detached; {tree.job} keeps running as PID {tree.root}: crckpt attach {tree.job}")
        return
    # As SIGKILL ends it, so does a dump with --stop, and a move.
    hint = f"; if it was dumped or moved: crckpt list {tree.job}" if result.status == _KILLED else ""
    print_progress("")
    print_progress(f"{tree.job} (PID {tree.root}) has ended with status {result.status}{hint}")
    raise typer.Exit(result.status)


def _parse_key(text: str) -> int | None:
    """Return the byte that a key sends: `^]` is 29. Raises UsageError."""
    if text == "none":
        return None
    if re.fullmatch(r"\^[A-Za-z\[\\\]^_]", text) is None:
        raise UsageError(f"--detach-key {text} is not ^ and a letter or ]", hint="for example: --detach-key ^P")
    return ord(text[1].upper()) & 0x1F


def _lines(terminals: tuple[HeldTerminal, ...]) -> Iterator[str]:
    if not terminals:
        yield "no restored program has a new terminal; to restore one onto it: crckpt restore JOB --tty new\n"
        return
    rows = (
        (
            *(each.tree.job, each.tree.root, each.tree.comm, short_id(each.tree.checkpoint)),
            f"PID {each.attached}" if each.attached else "no",
            each.tree.log,
        )
        for each in terminals
    )
    yield from align(("job", "pid", "program", "from", "attached", "log"), rows, "pid")
