"""Rows and their bounds, and their output: a table or a JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Literal

from rich.console import Console
from rich.table import Table

SCHEMA = 1

Unit = Literal["s", "B", "x"]


@dataclass(frozen=True)
class Row:
    """One comparison with all samples. `unit` is seconds, bytes, or x for a factor.

    `bound`: the most that ours may be, as a multiple of the peer's, or without a peer in `unit`. None: no bound.
    """

    group: str
    what: str
    unit: Unit
    ours: tuple[float, ...]
    peer_name: str = ""
    peer: tuple[float, ...] = ()
    bound: float | None = None

    @property
    def ratio(self) -> float | None:
        """Our median divided by the peer's; None without a peer."""
        return median(self.ours) / median(self.peer) if self.peer else None

    @property
    def met(self) -> bool | None:
        """Whether the bound holds; None if there is none."""
        if self.bound is None:
            return None
        ratio = self.ratio
        return (median(self.ours) if ratio is None else ratio) <= self.bound


@dataclass(frozen=True)
class Choice:
    """The cost of settings for storing: medians in seconds and bytes of two checkpoints, and of unpacking.

    `default`: these are crckpt's own settings.
    """

    target: str
    way: str
    default: bool
    first_s: float
    first_bytes: float
    second_s: float
    second_bytes: float
    unpack_s: float


@dataclass(frozen=True)
class Report:
    """All results, and the machine."""

    machine: Mapping[str, str]
    rows: tuple[Row, ...]
    choices: tuple[Choice, ...] = ()

    @property
    def all_met(self) -> bool:
        """Whether all bounds hold."""
        return all(row.met is not False for row in self.rows)


def document(report: Report) -> str:
    """Return the report as JSON."""
    rows = [{**asdict(row), **_with_verdict(row)} for row in report.rows]
    choices = [asdict(choice) for choice in report.choices]
    return json.dumps(
        {
            "schema": SCHEMA,
            "machine": dict(report.machine),
            "all_met": report.all_met,
            "rows": rows,
            "choices": choices,
        },
        indent=2,
    )


def show(report: Report, console: Console) -> None:
    """Print the report."""
    for name, value in report.machine.items():
        console.print(f"{name}: {value}", markup=False)
    if report.rows:
        console.print(_rows_drawn(report.rows))
    if report.choices:
        console.print(_choices_drawn(report.choices))
    missed = [row for row in report.rows if row.met is False]
    judged = [row for row in report.rows if row.met is not None]
    console.print(f"{len(judged) - len(missed)} of {len(judged)} bounds hold")


def line(row: Row) -> str:
    """Format a row as one line, to print it at once."""
    return f"{row.group}: {row.what}: " + "  ".join(cell for cell in _cells(row)[2:] if cell)


def format_amount(amount: float, unit: Unit) -> str:
    """Format an amount."""
    if unit == "x":
        return f"{amount:.2f}"
    if unit == "s":
        return f"{amount * 1000:.0f} ms" if amount < 1 else f"{amount:.2f} s"
    return f"{amount / 2**20:.1f} MiB"


def _with_verdict(row: Row) -> dict[str, object]:
    return {
        "ours_median": median(row.ours),
        "peer_median": median(row.peer) if row.peer else None,
        "ratio": row.ratio,
        "met": row.met,
    }


def _cells(row: Row) -> tuple[str, ...]:
    ratio = row.ratio
    bound = "" if row.bound is None else f"≤ {row.bound:g}" if row.peer else f"≤ {format_amount(row.bound, row.unit)}"
    return (
        row.group,
        row.what,
        format_amount(median(row.ours), row.unit),
        f"{format_amount(median(row.peer), row.unit)} {row.peer_name}" if row.peer else "",
        "" if ratio is None else f"{ratio:.2f}",
        bound,
        {None: "", True: "met", False: "NOT MET"}[row.met],
    )


def _rows_drawn(rows: Iterable[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("rows", "what", "ours", "peer's", "ratio", "bound", ""):
        table.add_column(title, justify="right" if title in ("ours", "ratio", "bound") else "left")
    for row in rows:
        table.add_row(*_cells(row), style="red" if row.met is False else None)
    return table


def _choices_drawn(choices: Iterable[Choice]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title="what the defaults are chosen from")
    for title in ("target", "way to store", "first", "its bytes", "second", "its bytes", "unpack second"):
        table.add_column(title, justify="left" if title in ("target", "way to store") else "right")
    for choice in choices:
        table.add_row(
            choice.target,
            choice.way,
            format_amount(choice.first_s, "s"),
            format_amount(choice.first_bytes, "B"),
            format_amount(choice.second_s, "s"),
            format_amount(choice.second_bytes, "B"),
            format_amount(choice.unpack_s, "s"),
            style="bold" if choice.default else None,
        )
    return table
