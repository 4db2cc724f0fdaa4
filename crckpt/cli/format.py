"""Values as text: columns, sizes, times, short ids, and names of others made safe to print."""

from __future__ import annotations

import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.measure import Measurement
    from rich.text import Text

    from crckpt.causes import Finding
    from crckpt.ops.dump.result import RoundResult
    from crckpt.store import Checkpoint

# Findings with the same remedy that are all named.
_MOST_ALIKE: Final = 8

# Titles of columns that a drawn table keeps on one line.
_NEVER_FOLDED: Final = ("id", "created", "frozen", "raw", "new", "stored", "size")

# Control characters, and surrogates: bytes of names that are no UTF-8.
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")

# Letters, marks and symbols without a shape, most of them from Unicode's Default_Ignorable_Code_Point.
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


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


def local_time(when: datetime) -> str:
    """A time in the reader's own zone."""
    # Without the offset from UTC.
    return when.astimezone().isoformat(" ", "seconds")[:19]


def creation_time(checkpoint: Checkpoint) -> str:
    """Format the time at which a checkpoint was made."""
    future = " (in the future)" if checkpoint.is_in_future(datetime.now(UTC)) else ""
    return local_time(checkpoint.created) + future


def short_id(identity: str) -> str:
    """The digits of an id that people need."""
    return identity[:12]


def title(checkpoint: Checkpoint) -> str:
    """A checkpoint in a sentence: its id, job and time."""
    return f"{short_id(checkpoint.id)} ({checkpoint.job}, {local_time(checkpoint.created)})"


def note_lines(findings: Iterable[Finding | str]) -> Iterator[str]:
    """Findings that do not stop the operation, as lines: one for each cause, of which the first is named."""
    alike: dict[str, list[Finding | str]] = {}
    for finding in findings:
        alike.setdefault(finding if isinstance(finding, str) else finding.key, []).append(finding)
    for first, *others in alike.values():
        yield f"note: {first}{f' (and {len(others)} more like this)' if others else ''}\n"


def finding_lines(findings: Iterable[Finding], mark: str = "  - ") -> Iterator[str]:
    """Yield findings with their remedies as lines that begin with `mark`. A shared remedy stands once, after them."""
    by_remedy: dict[str, list[str]] = {}
    for finding in findings:
        by_remedy.setdefault(finding.remedy, []).append(finding.what)
    for remedy, whats in by_remedy.items():
        if len(whats) == 1:
            yield f"{mark}{whats[0]}: {remedy}" if remedy else f"{mark}{whats[0]}"
            continue
        yield from (f"{mark}{what}" for what in whats[:_MOST_ALIKE])
        if len(whats) > _MOST_ALIKE:
            yield f"{mark}{len(whats) - _MOST_ALIKE} more like these"
        if remedy:
            yield f"    hint: {remedy}"


def round_line(copied: RoundResult) -> str:
    """One round of a pre-copy, as a line."""
    pages = f"{count(copied.pages, 'page')}, {size(copied.bytes)}"
    return f"round {copied.number}: {pages} in {duration(copied.ms)}, frozen {duration(copied.frozen_ms)}\n"


def align(titles: Sequence[str], rows: Iterable[Sequence[object]], right: str = "") -> Iterator[str]:
    """Lines with aligned columns, never folded; the columns that `right` names are aligned to the right."""
    # Not a table of rich: over thousands of rows that takes seconds.
    lines = [titles, *([on_one_line("" if cell is None else str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    form = "  ".join(
        f"{{:{'>' if column in right.split() else '<'}{width}}}" for column, width in zip(titles, widths, strict=True)
    )
    return (form.format(*line).rstrip() + "\n" for line in lines)


def cut(text: str, width: int) -> str:
    """The text, or as much of it as so many columns hold."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def terminal_width() -> int | None:
    """Columns of the terminal on stdout; None if it is a file or a pipe, where nothing is cut."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size((0, 0)).columns or None


def draw_table(
    columns: Iterable[str], rows: Iterable[Iterable[RenderableType]], *, right: frozenset[str] = frozenset()
) -> RenderableType:
    """Make a plain table of rich; columns named in `right` are aligned to the right."""
    from rich.table import Table  # 60 ms, and most commands draw nothing

    titles = tuple(columns)
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(titles))
    for column in titles:
        table.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=column in _NEVER_FOLDED
        )
    for row in rows:
        table.add_row(*row)
    return table


def fold(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken after a slash or a blank where there is one: as a path is read."""
    lines = [""]
    for part in re.findall(r"[^/ ]*[/ ]*", text):
        if lines[-1] and len(lines[-1]) + len(part.rstrip(" ")) > width:
            lines.append("")
        lines[-1] += part
        while len(lines[-1].rstrip(" ")) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return [line.rstrip(" ") for line in lines]


class FoldedPath:
    """A path, or text with paths, that rich folds as `fold` does."""

    def __init__(self, text: str) -> None:
        """`text` may be of others."""
        self._text = on_one_line(text)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the widths that it can have."""
        from rich.measure import Measurement

        del console, options
        return Measurement(max(map(len, re.split("[/ ]", self._text))), len(self._text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield its lines."""
        from rich.text import Text

        del console
        yield Text("\n".join(fold(self._text, options.max_width)))


def on_one_line(text: str) -> str:
    """Text of others with nothing in it that breaks a line, a terminal or its encoding, and nothing that is invisible.

    Characters without a shape (marks of direction, separators, code points that no font has) become their numbers.
    """
    if text.isprintable() and (text.isascii() or _BLANK.search(text) is None):
        return text

    def show(character: str) -> str:
        # Blanks of other widths are no printable characters to Python.
        is_visible = character.isprintable() and _BLANK.match(character) is None
        if is_visible or unicodedata.category(character) == "Zs":
            return character
        return character.encode("ascii", "backslashreplace").decode()

    return "".join(map(show, _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)))


def escape(text: str) -> str:
    """Text of others (paths, names) for rich: on one line, and no bracket in it is markup."""
    from rich.markup import escape as escape_markup  # only where something is drawn

    return escape_markup(on_one_line(text))
