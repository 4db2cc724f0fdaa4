"""Run the user's commands around a move (`--before-freeze`, `--address-hook`), on the source.

- `before-freeze`: the tree still runs, the last copy of its memory comes next. It may take long, to drain a server.
- `claim`: the tree is frozen, and is about to be restored on the destination. Nothing may reach it there yet.
- `release`: the tree has ended here, for good. Send its clients to the destination.
- `give-up`: the move was aborted, the tree runs here. Undo what `before-freeze` and `claim` did.

`before-freeze` is the step of `--before-freeze`; `--address-hook` is run for the other three. A hook that fails before
the commit aborts the move. One that fails after it, or after an abort, changes nothing: it is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.host.process import run
from crckpt.host.steps import step

MoveStep: TypeAlias = Literal["before-freeze", "claim", "release", "give-up"]

SECONDS: Final[Mapping[MoveStep, int]] = {"before-freeze": 600, "claim": 10, "release": 60, "give-up": 60}
"""Time limits. During `claim` the tree stands still."""


class HookedMove(Struct, frozen=True):
    """What hooks learn of a move, and the commands of the user; an empty one is none.

    `source` and `destination` are names of hosts, the latter as the user typed it.
    """

    move_id: str
    source: str
    destination: str
    job: str
    before_freeze: str = ""
    address_hook: str = ""


def run_hook(move: HookedMove, name: MoveStep) -> None:
    """Run the user's command for a step, if there is one. Raises HostCannot if it fails or takes too long."""
    command = move.before_freeze if name == "before-freeze" else move.address_hook
    if not command:
        return
    step("hook.run", name)
    option = "--before-freeze" if name == "before-freeze" else "--address-hook"
    more = _environment(move, name)
    hint = f"try it: {' '.join(f'{key}={value}' for key, value in more.items())} {run.quote(('sh', '-c', command))}"
    try:
        done = run.run_shell(command, more, timeout=SECONDS[name])
    except HostCannot as error:
        raise error.reword(f"{option} failed at the step {name}: {error.message}", hint=hint) from error
    if done.ok:
        return
    end = f"exit status {done.status}" if done.status >= 0 else f"signal {-done.status}"
    output = done.output.strip()
    said = f":\n{output}" if output else ", no output"
    raise HostCannot(f"{option} failed at the step {name} ({end}){said}", hint=hint)


def run_late_hook(move: HookedMove, name: Literal["release", "give-up"]) -> str:
    """Run the user's command for a step that nothing can stop any more. Return how it failed; empty if it did not."""
    try:
        run_hook(move, name)
    except HostCannot as error:
        return f"{error.message}\n{error.hint}"
    return ""


def _environment(move: HookedMove, name: MoveStep) -> dict[str, str]:
    return {
        "CRCKPT_MOVE_ID": move.move_id,
        "CRCKPT_MOVE_STEP": name,
        "CRCKPT_SOURCE": move.source,
        "CRCKPT_DESTINATION": move.destination,
        "CRCKPT_JOB": move.job,
    }
