"""Results -> text for people (rich where tables and trees are drawn, lines elsewhere) or one JSON document."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from msgspec import Struct
from msgspec.structs import asdict

from crckpt.errors import CrckptError, PreflightRefused
from crckpt.model import PAGE_SIZE

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from crckpt.causes import Finding
    from crckpt.host.probes.fact import Fact
    from crckpt.ops.doctor import Diagnosis
    from crckpt.ops.dump.commit import Dumped
    from crckpt.ops.dump.examine import Copying, Examined
    from crckpt.ops.dump.lineage import Copied, Tracked
    from crckpt.ops.dump.predict import Foreseen
    from crckpt.ops.restore.restore import Restored
    from crckpt.store import Checkpoint

SCHEMA = 1
_WIDTH_ELSEWHERE = 200
"""Columns of output that goes to a file or a pipe, where nothing is to be folded."""
_STATES = {"ok": "[green]ok[/]", "limited": "[yellow]limited[/]", "missing": "[red]missing[/]"}


class Shown(Struct, frozen=True):
    """A result in both forms, of which one is made: `document` for JSON, `text` as lines or drawn on a console.

    Lines may hold text of others as it is; what is drawn wants it `escaped`.
    """

    document: object
    text: Iterator[str] | Callable[[Console], None]


def emit(command: str, shown: Shown, *, as_json: bool, to_stderr: bool = False) -> None:
    """Print a result. Raises CrckptError if it cannot be written.

    That whoever read it (head, less) has gone is no failure: then nothing more is written.
    """
    try:
        _print(command, shown, as_json=as_json, to_stderr=to_stderr)
    except (BrokenPipeError, SystemExit):  # rich makes the one into the other
        nobody_reads(sys.stderr if to_stderr else sys.stdout)
    except OSError as error:
        said = f"crckpt {command} is done, but what it says cannot be written: {error.strerror}"
        raise CrckptError(said, hint="let it be written elsewhere; crckpt list shows what there is") from error


def nobody_reads(stream: TextIO) -> None:
    """What is still written to it goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _print(command: str, shown: Shown, *, as_json: bool, to_stderr: bool) -> None:
    if as_json:
        document = {"schema": SCHEMA, "command": command, "status": "ok", "result": shown.document}
        sys.stdout.write(_indented(document) + "\n")
        sys.stdout.flush()
        return
    if isinstance(shown.text, Iterator):
        stream = sys.stderr if to_stderr else sys.stdout
        stream.writelines(map(_line, shown.text))
        stream.flush()
        return
    from rich.console import Console

    console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _WIDTH_ELSEWHERE
    shown.text(console)


def _line(text: str) -> str:
    return on_one_line(text.removesuffix("\n")) + "\n"


def error_document(command: str, error: CrckptError) -> dict[str, object]:
    """A failure as JSON."""
    told = {"code": error.exit_code, "message": error.message, "hint": error.hint, "causes": list(error.causes)}
    return {"schema": SCHEMA, "command": command, "status": "error", "error": told}


def error_text(error: CrckptError) -> str:
    """A failure as a sentence, what lies behind it, and what to type next."""
    if isinstance(error, PreflightRefused) and len(error.causes) > 1:
        # Each has its own remedy; the message and the hint are those of the first.
        lines = [f"crckpt: refused for {len(error.causes)} reasons:", *(f"  - {cause}" for cause in error.causes)]
        return "".join(f"{on_one_line(line)}\n" for line in lines)
    causes = error.causes if len(error.causes) > 1 else ()
    lines = [f"crckpt: {error.message}", *(f"  - {cause}" for cause in causes)]
    if error.hint:
        lines.append(f"  hint: {error.hint}")
    return "".join(f"{on_one_line(line)}\n" for line in lines)


def size(count: int) -> str:
    """Bytes for people: 512 B, 1.5 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def count(number: int, noun: str) -> str:
    """A number of things: 1 process, 2 processes."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def duration(milliseconds: float) -> str:
    """Time for people: 840 ms, 12.3 s."""
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def moment(when: datetime) -> str:
    """A time in the reader's own zone."""
    return when.astimezone().isoformat(" ", "seconds")[:19]


def made(checkpoint: Checkpoint) -> str:
    """When a checkpoint was made."""
    return moment(checkpoint.created) + (" (in the future)" if checkpoint.is_in_future(datetime.now(UTC)) else "")


def short(identity: str) -> str:
    """The digits of an id that people need."""
    return identity[:12]


_WHOLE = ("id", "created", "frozen", "raw", "new", "stored", "size")
"""Columns that are never folded."""


def table(
    columns: Iterable[str], rows: Iterable[Iterable[RenderableType]], *, right: frozenset[str] = frozenset()
) -> RenderableType:
    """A plain table; columns named in `right` are aligned to the right."""
    from rich.table import Table

    titles = tuple(columns)
    drawn = Table(box=None, pad_edge=False, header_style="bold", show_header=any(titles))
    for column in titles:
        drawn.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=column in _WHOLE
        )
    for row in rows:
        drawn.add_row(*row)
    return drawn


def aligned(titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: frozenset[str]) -> Iterator[str]:
    """The same as lines, never folded: over thousands of rows `table` takes seconds."""
    lines = [titles, *(tuple(map(on_one_line, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    form = "  ".join(
        f"{{:{'>' if title in right else '<'}{width}}}" for title, width in zip(titles, widths, strict=True)
    )
    return (form.format(*line).rstrip() + "\n" for line in lines)


_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")

_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters, marks and symbols without a shape, most of them from Unicode's Default_Ignorable_Code_Point."""


def on_one_line(text: str) -> str:
    """Text of others without what would break a line, a terminal or its encoding, and with all of it to be seen.

    What has no shape (marks of direction, separators, characters that no font has) is written as its number.
    """
    if text.isprintable() and (text.isascii() or _BLANK.search(text) is None):
        return text
    return "".join(map(_seen, _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)))


def _seen(character: str) -> str:
    # Blanks of other widths are no printable characters to Python.
    is_visible = character.isprintable() and _BLANK.match(character) is None
    if is_visible or unicodedata.category(character) == "Zs":
        return character
    return character.encode("ascii", "backslashreplace").decode()


def summary(checkpoint: Checkpoint) -> dict[str, object]:
    """What every document says of a checkpoint."""
    return {
        "id": checkpoint.id,
        "job": checkpoint.job,
        "created": checkpoint.created,
        "in_future": checkpoint.is_in_future(datetime.now(UTC)),
        "parent": checkpoint.parent,
        "stopped": checkpoint.stopped,
        "note": checkpoint.note,
        "processes": len(checkpoint.tree),
        "statistics": checkpoint.statistics,
    }


def noted(findings: Iterable[Finding | str]) -> Iterator[str]:
    """Findings that do not stop the operation, as lines."""
    return (f"note {finding}\n" for finding in findings)


def escaped(text: str) -> str:
    """Text of others (paths, names) on one line, so that rich takes no bracket in it for markup."""
    from rich.markup import escape

    return escape(on_one_line(text))


def dumped(result: Dumped, *, verbose: bool) -> Shown:
    """What `dump` says."""
    checkpoint = result.checkpoint
    document = {
        "job": result.job,
        "pid": result.pid,
        "dry_run": checkpoint is None and not result.pending,
        "committing": result.pending,
        "stopped": result.stop and checkpoint is not None,
        "root_ended": result.root_ended,
        "criu": result.criu.path,
        "criu_passed_over": result.criu.passed_over,
        "command": result.command,
        "reasons": result.plan.reasons,
        "warnings": [str(finding) for finding in result.plan.warnings],
        "unreaped": result.unreaped,
        "tracked": result.tracked,
        "copying": result.copying,
        "checkpoint": None if checkpoint is None else summary(checkpoint),
    }

    def text() -> Iterator[str]:
        yield from noted(result.criu.passed_over)
        yield from noted(result.plan.warnings)
        if verbose or (checkpoint is None and not result.pending):
            for reason in result.plan.reasons:
                yield f"{reason.option}: {reason.why}\n"
            yield f"{shlex.join(result.command)}\n"
        if result.copying is not None:
            yield from _copying(result.copying, planned=checkpoint is None and not result.pending, stop=result.stop)
        if result.tracked is not None:
            planned = checkpoint is None and not result.pending
            yield from _tracked(result.tracked, planned=planned, after_rounds=planned and result.copying is not None)
        if result.pending:
            yield f"{result.job}: frozen {duration(result.frozen_ms)}; {_how_it_goes_on(result)}\n"
            yield f"its checkpoint is being stored; see when it is safe: crckpt list {result.job}\n"
            return
        if checkpoint is None:
            yield f"nothing stands against a checkpoint of PID {result.pid} as {result.job}\n"
            return
        numbers = checkpoint.statistics
        yield (
            f"{short(checkpoint.id)}  {checkpoint.job}: {count(len(checkpoint.tree), 'process')}, "
            f"frozen {duration(numbers.frozen_ms)}, {size(numbers.raw_bytes)} of images; "
            f"the store grew by {size(numbers.stored_bytes)}\n"
        )
        end = "the tree has ended" if result.stop else _how_it_goes_on(result)
        yield f"{end}; bring it back with: crckpt restore {checkpoint.job}\n"
        if result.unreaped:
            yield f"PIDs not yet given back by their parent: {', '.join(str(pid) for pid in result.unreaped)}\n"

    return Shown(document, text())


def _how_it_goes_on(result: Dumped) -> str:
    return f"its root, PID {result.pid}, has ended since" if result.root_ended else "the tree runs on"


def _tracked(found: Tracked, *, planned: bool, after_rounds: bool) -> Iterator[str]:
    """What was incremental, or would be; `after_rounds` that are still to be taken."""
    if found.why:
        yield f"{found.why}\n"
    if found.base is None and not found.rounds:
        full = "without rounds it would be a full dump" if after_rounds else "full dump"
        yield f"{full}: {found.why_full}\n"
        return
    since = f"round {found.rounds}" if found.rounds else short(found.base or "")
    written, left = (size(pages * PAGE_SIZE) for pages in (found.written_pages, found.left_pages))
    if planned:
        yield f"incremental: what was written since {since}\n"
    else:
        yield f"incremental: {written} written since {since}, {left} as they were there\n"
    yield from (f"dumped whole: {why}\n" for why in found.whole)


def copied(found: Copied) -> str:
    """A round."""
    pages = f"{count(found.pages, 'page')}, {size(found.bytes)}"
    return f"round {found.number}: {pages} in {duration(found.ms)}, frozen {duration(found.frozen_ms)}\n"


def _copying(found: Copying, *, planned: bool, stop: bool) -> Iterator[str]:
    if planned:
        yield "memory is copied in rounds first, and the dump is of what is written after the last\n"
    yield from map(copied, found.rounds)
    if found.foreseen_ms is not None and found.max_freeze_ms is not None:
        over = "longer than" if found.foreseen_ms > found.max_freeze_ms else "within"
        limit = duration(found.max_freeze_ms)
        foreseen = f"a freeze of {duration(found.foreseen_ms)} was foreseen, {over} the {limit} of --max-freeze"
        yield f"{foreseen}{'; with --stop the tree is then held until it is stored' if stop else ''}\n"


def examined(result: Examined, foreseen: Foreseen) -> Shown:
    """What `doctor TARGET` says."""
    document = {
        "pid": result.pid,
        "able": not result.blockers,
        "criu": result.criu.path,
        "criu_passed_over": result.criu.passed_over,
        "blockers": result.blockers,
        "warnings": result.plan.warnings,
        "reasons": result.plan.reasons,
        "prediction": foreseen.prediction,
        "prediction_assumes": foreseen.assumes or None,
        "prediction_missing": foreseen.why_not or None,
    }

    def text() -> Iterator[str]:
        for finding in result.blockers:
            yield f"blocker {finding}\n"
        yield from noted(result.criu.passed_over)
        yield from noted(result.plan.warnings)
        for reason in result.plan.reasons:
            yield f"{reason.option}: {reason.why}\n"
        yield _predicted(foreseen)
        against = count(len(result.blockers), "thing") if result.blockers else "nothing"
        verb = "stand" if len(result.blockers) > 1 else "stands"
        yield f"{against} {verb} against a checkpoint of PID {result.pid}\n"

    return Shown(document, text())


def _predicted(foreseen: Foreseen) -> str:
    cost = foreseen.prediction
    if cost is None:
        return f"what a dump would cost is not known: {foreseen.why_not}\n"
    return (
        f"a dump would take about {duration(cost.dump_ms)}, with the tree frozen for {duration(cost.frozen_ms)}, "
        f"and {duration(cost.commit_ms)} more to be durable: {size(cost.raw_bytes)} of images, "
        f"{size(cost.stored_bytes)} stored, {foreseen.assumes}\n"
    )


def restored(result: Restored, *, verbose: bool, program_status: int | None = None) -> Shown:
    """What `restore` says."""
    checkpoint = result.checkpoint
    document = {
        "checkpoint": summary(checkpoint),
        "dry_run": result.pid is None,
        "pid": result.pid,
        "restore_ms": result.restore_ms,
        "criu": result.criu.path,
        "criu_passed_over": result.criu.passed_over,
        "command": result.command,
        "warnings": [str(finding) for finding in result.verdict.warnings],
        "passed_over": [{"id": bad, "reason": reason} for bad, reason in result.passed_over],
        "program_status": program_status,
    }

    def text() -> Iterator[str]:
        for bad, reason in result.passed_over:
            yield f"passed over {short(bad)}: {reason}\n"
        yield from noted(result.criu.passed_over)
        yield from noted(result.verdict.warnings)
        if verbose:
            yield f"{shlex.join(result.command)}\n"
        named = f"{short(checkpoint.id)} ({checkpoint.job}, {moment(checkpoint.created)})"
        if result.pid is None:
            yield f"nothing stands against a restore of {named}\n"
        else:
            yield f"restored {named} as PID {result.pid} in {duration(result.restore_ms)}\n"

    return Shown(document, text())


def diagnosed(result: Diagnosis) -> Shown:
    """What `doctor` says."""

    def text(console: Console) -> None:
        console.print(table(("", "fact", "what was found"), map(_fact_row, result.facts)))
        console.print("this host can checkpoint" if result.able else "this host cannot checkpoint: see what is missing")

    return Shown({"able": result.able, "facts": result.facts, "fixes": result.fixes}, text)


def _fact_row(fact: Fact) -> tuple[str, str, str]:
    lines = [escaped(line) for line in (fact.found, fact.consequence) if line]
    if fact.fix:
        lines.append(f"[bold]{escaped(fact.fix)}[/]")
    return _STATES[fact.state], fact.key, "\n".join(lines)


def _indented(document: object) -> str:
    """As json.dumps(indent=2), which over thousands of checkpoints takes three times as long."""
    import msgspec

    text = json.dumps(document, default=_plain)
    try:
        return msgspec.json.format(text)
    except msgspec.DecodeError:  # a lone surrogate: a name or a note in no encoding
        return json.dumps(json.loads(text), indent=2)


def _plain(value: object) -> object:
    """What json does not know, in its own types."""
    if isinstance(value, Struct):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Iterator):
        return list(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"no JSON for {value!r}")
