"""`crckpt rm`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from msgspec.structs import asdict

from crckpt.cli import options
from crckpt.cli.format import short_id, size, title
from crckpt.cli.output import ask, can_ask, emit, form, print_error
from crckpt.errors import PreflightRefused
from crckpt.ops.rm import PlannedRemoval, estimate_freed_bytes, plan_removal
from crckpt.ops.rm import rm as perform


def rm(
    refs: list[str] = options.argument(
        "REF...", "The checkpoints to remove: JOB (only its newest), JOB~2, JOB:TAG, or ids."
    ),
    everything: bool = options.flag("--all", "REF is a job: remove all its checkpoints."),
    dry_run: bool = options.flag("--dry-run", "Show what would be removed, and how much space that frees; do nothing."),
    yes: bool = options.flag(
        "--yes", "Do not ask, even about the last checkpoint of a program that dump --stop ended."
    ),
) -> None:
    """Remove checkpoints. Other checkpoints keep all their data; `crckpt gc` then frees the space.

    `crckpt dump --stop` ends a program. Until it is restored, only its last checkpoint has its state: crckpt asks
    before it removes that checkpoint. Where there is no terminal to ask on, it removes nothing and exits with 24,
    unless **--yes** is given.

    After `crckpt dump --stop --tcp keep`, a firewall rule drops the packets of the tree's connections until you restore
    the checkpoint. Removing the checkpoint removes that rule too.

    For example:

        crckpt rm trainer~3 trainer~4
        crckpt rm trainer --all --dry-run
    """
    context = options.make_context()
    plan = plan_removal(context, tuple(refs), whole_jobs=everything, dry_run=dry_run)
    if dry_run:
        freed = estimate_freed_bytes(context, plan.ids)
        document = {"removed": plan.ids, "lifted_locks": (), "dry_run": True, "bytes": freed}
        emit(document, _plan_lines(plan, freed), is_answer=True)
        return
    if plan.irreplaceable and not yes:
        _confirm(plan, refs, everything=everything)
    result = perform(context, plan.ids)
    lines = (
        *(f"removed {short_id(identity)}\n" for identity in result.removed),
        *(f"removed the network lock of the stopped tree (nftables: table inet {it})\n" for it in result.lifted_locks),
        "free the space with: crckpt gc\n",
    )
    emit({**asdict(result), "dry_run": False, "bytes": None}, lines)


def _confirm(plan: PlannedRemoval, refs: list[str], *, everything: bool) -> None:
    """Ask whether to remove what nothing else can bring back. Raises PreflightRefused unless the user says yes."""
    lines = tuple(_irreplaceable_lines(plan))
    if form.as_json or not can_ask():
        command = shlex.join(("crckpt", "rm", *refs, *(["--all"] if everything else []), "--yes"))
        raise PreflightRefused(f"nothing was removed: {'; '.join(lines)}", hint=f"to remove it anyway: {command}")
    print_error(*lines)
    if not ask("remove it?" if len(lines) == 1 else "remove them?"):
        raise PreflightRefused("nothing was removed")


def _irreplaceable_lines(plan: PlannedRemoval) -> Iterator[str]:
    for checkpoint in plan.irreplaceable:
        yield f"only {title(checkpoint)} has the last state of a program that dump --stop ended; it was not restored"


def _plan_lines(plan: PlannedRemoval, freed: int | None) -> Iterator[str]:
    yield from (f"would remove {short_id(identity)}\n" for identity in plan.ids)
    yield from (f"note: {line}\n" for line in _irreplaceable_lines(plan))
    if freed is None:
        yield "how much space that frees is unknown, because another checkpoint cannot be read: crckpt list\n"
    else:
        yield f"that would free {size(freed)}, once crckpt gc has run\n"
