"""`crckpt pre-dump`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import asdict, replace

from crckpt.cli import options
from crckpt.cli.format import note_lines, round_line
from crckpt.cli.output import criu_document, emit, pick
from crckpt.cli.progress import progress_bars
from crckpt.ops.dump.pre_dump import pre_dump as perform
from crckpt.ops.dump.request import DumpRequest
from crckpt.ops.dump.result import PreDumpResult


def pre_dump(
    target: str = options.TARGET,
    job: str | None = options.JOB,
    staging: Path | None = options.STAGING,
    no_preflight: bool = options.NO_PREFLIGHT,
    other_program: bool = options.OTHER_PROGRAM,
) -> None:
    """Copy a tree's memory while it runs, so that the next dump freezes it for less time.

    Each call copies what the tree wrote since the call before. The copies are not a checkpoint: the next `crckpt dump`
    uses them. They are kept where the first call put them, and are removed with the tree's tracker (`crckpt ps`).
    `crckpt dump --pre-copy` does it in one step.

    For example:

        crckpt pre-dump 812 trainer
        crckpt dump 812 trainer
    """
    options.require_root("to checkpoint a process")
    # A round copies memory only; what happens to TCP connections is up to the dump.
    request = DumpRequest(
        target, job, tcp="close", preflight=not no_preflight, skip_in_flight=True, other_program=other_program
    )
    context = options.make_context(staging=staging)
    with progress_bars("copying") as (copying,):
        result = perform(request, replace(context, copy_progress=copying))
    lineage = asdict(result.lineage)
    document = {
        **pick(result, "job", "pid"),
        **criu_document(result.criu),
        # The counts of pages are known for a dump only.
        "tracked": {name: value for name, value in lineage.items() if not name.endswith("_pages")},
        "copied": asdict(result.round),
    }
    emit(document, _lines(result))


def _lines(result: PreDumpResult) -> Iterator[str]:
    yield from note_lines(result.criu.passed_over)
    yield f"{result.lineage.why}\n"
    yield from (f"copied in full: {why}\n" for why in result.lineage.whole)
    yield round_line(result.round)
    yield f"the tree keeps running; dump what it writes from now on: crckpt dump {result.pid} {result.job}\n"
