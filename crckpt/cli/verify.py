"""`crckpt verify`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import asdict

from crckpt.cli import options
from crckpt.cli.format import count, short_id, size
from crckpt.cli.output import emit
from crckpt.cli.progress import progress_bars
from crckpt.errors import IntegrityError, UsageError
from crckpt.ops.verify import repair as perform_repair
from crckpt.ops.verify import verify as perform
from crckpt.store import Damage, RepairResult, VerifyResult


def verify(
    ref: str | None = options.argument("REF", "The checkpoint to verify.", default=None, shown="all"),
    everything: bool = options.flag("--all", "Verify every checkpoint."),
    repair: bool = options.flag(
        "--repair", "Repair from the store named by --from. Without --from: only show what can be restored."
    ),
    source: Path | None = options.option(
        "--from DIR", "With --repair: another store, which may have an undamaged copy."
    ),
) -> None:
    """Check every byte of a checkpoint, or of the whole store, against its digest.

    Exits with 13 if anything is damaged, and names the damage and the checkpoints that it affects. A repair replaces
    damaged files with good copies only. It exits with 13 if some damage is left.
    """
    if everything and ref is not None:
        raise UsageError(
            f"--all and {ref} cannot be combined", hint=f"crckpt verify --all, or crckpt verify {shlex.quote(ref)}"
        )
    if source is not None and not repair:
        raise UsageError("--from needs --repair", hint=f"crckpt verify --repair --from {shlex.quote(str(source))}")
    with progress_bars("verifying") as (progress,):
        context = options.make_context(progress=progress)
        repaired = perform_repair(context, ref, source) if repair else None
        found = repaired.now if repaired else perform(context, ref)
    failure = None
    if found.damages:
        affected = f"; it affects {count(len(found.lost), 'checkpoint')}" if found.lost else ""
        failure = IntegrityError(
            f"the store is damaged in {count(len(found.damages), 'place')}{affected}",
            hint="find what can be restored or repaired: crckpt verify --repair",
            causes=tuple(map(_damage, found.damages)),
        )
    document: dict[str, object] = {**asdict(found), "intact": not found.damages}
    if repaired is not None:
        # Old names, which programs read.
        document |= {"mended": repaired.repaired, "unmended": repaired.unrepaired}
        document |= {"restorable": repaired.restorable, "lost": found.lost}
    # An empty store is no good news for whoever expects checkpoints there.
    is_answer = bool(found.damages) or not found.checkpoints
    emit(document, _lines(found, repaired), is_answer=is_answer, failure=failure)


def _lines(found: VerifyResult, repaired: RepairResult | None) -> Iterator[str]:
    if repaired is not None:
        yield from (f"repaired {damage.kind} {short_id(damage.name)}\n" for damage in repaired.repaired)
    yield from (f"{_damage(damage)}\n" for damage in found.damages)
    if repaired is not None:
        yield from (f"not repaired: {failure.why}\n" for failure in repaired.unrepaired)
    if not found.checkpoints and not found.damages:
        yield "the store has no checkpoints: nothing was verified\n"
    elif not found.damages:
        yield f"{count(len(found.checkpoints), 'checkpoint')} OK ({size(found.bytes)} verified)\n"
    elif repaired is None:
        if rest := len(set(found.checkpoints) - set(found.lost)):
            yield f"{count(rest, 'other checkpoint')} OK\n"
        yield "find what can be restored or repaired: crckpt verify --repair\n"
    else:
        yield f"can be restored: {', '.join(map(short_id, repaired.restorable)) or 'no checkpoint'}\n"
        if found.lost:
            lost = " ".join(map(short_id, found.lost))
            yield f"cannot be restored: {lost}\n"
            yield "if another store has a copy, repair the damage: crckpt verify --repair --from STORE\n"
            yield f"if not, remove these checkpoints: crckpt rm {lost}\n"


def _damage(damage: Damage) -> str:
    affected = ", ".join(short_id(identity) for identity in damage.checkpoints)
    # That of a manifest says so itself.
    kind = "" if damage.kind == "manifest" else "damaged: "
    return f"{kind}{damage.what}; affects {affected or 'no checkpoint'}"
