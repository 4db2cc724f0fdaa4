"""Run the user's commands around a move (`--before-freeze`, `--address-hook`), on the source.

- `before-freeze`: the tree still runs, the last copy of its memory comes next. Draining a server may take long.
- `prepare`: the tree is frozen, and is restored on the destination next. Nothing may reach it there yet.
- `commit`: the tree has ended here, for good. Send its clients to the destination.
- `abort`: the move was aborted, the tree keeps running here. Undo what `before-freeze` and `prepare` did.

`--before-freeze` names the command for `before-freeze`, `--address-hook` that for the other three. A command that fails
before the commit aborts the move. A failure after it, or after an abort, is only reported.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from crckpt.causes import Finding, cause
from crckpt.errors import HostCannot
from crckpt.host.process import run
from crckpt.host.steps import step
from crckpt.migrate.request import MigrateRequest
from crckpt.store.moves import Move

MoveStep: TypeAlias = Literal["before-freeze", "prepare", "commit", "abort"]

SECONDS: Final[Mapping[MoveStep, int]] = {"before-freeze": 600, "prepare": 10, "commit": 60, "abort": 60}
"""Time limits. During `prepare` the tree is frozen."""

_LATE: Final = ("commit", "abort")


def run_hook(request: MigrateRequest, move: Move, name: MoveStep) -> None:
    """Run the user's command for a step, if there is one. Raises HostCannot if it fails or takes too long."""
    command = request.before_freeze if name == "before-freeze" else request.address_hook
    if not command:
        return
    step("hook.run", name)
    failed = "--before-freeze failed" if name == "before-freeze" else f"--address-hook failed at step {name}"
    more = {
        "CRCKPT_MOVE_ID": move.id,
        "CRCKPT_MOVE_STEP": name,
        "CRCKPT_SOURCE": platform.node(),
        "CRCKPT_DESTINATION": request.host,
        "CRCKPT_JOB": move.job,
    }
    hint = f"try it: {' '.join(f'{key}={value}' for key, value in more.items())} {run.quote(('sh', '-c', command))}"
    try:
        done = run.run_shell(command, more, timeout=SECONDS[name], can_interrupt=name not in _LATE)
    except HostCannot as error:
        raise error.reword(f"{failed}: {error.message}", hint=hint) from error
    if done.ok:
        return
    end = f"exit status {done.status}" if done.status >= 0 else f"signal {-done.status}"
    # An error is one line.
    output = "; ".join(line.strip() for line in done.output.splitlines() if line.strip())
    said = f": {output}" if output else ", without output"
    raise HostCannot(f"{failed} ({end}){said}", hint=hint)


def run_late_hook(request: MigrateRequest, move: Move, name: Literal["commit", "abort"]) -> Finding | None:
    """Run the user's command for a step that nothing can stop. Return how it failed; None if it did not."""
    try:
        run_hook(request, move, name)
    except HostCannot as error:
        return cause("address-hook").finding(failure=error.message, advice=error.hint)
    return None
