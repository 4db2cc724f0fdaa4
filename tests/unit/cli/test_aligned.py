"""Long lists as text: columns stand below each other, and no note can break a line."""

from __future__ import annotations

import pytest

from crckpt.cli.render import Shown, aligned, emit, escaped, on_one_line


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("a", "1", ""), ("long", "1000", "note {x} [b]")]
    assert list(aligned(("id", "n", "note"), rows, right=frozenset({"n"}))) == [
        "id       n  note\n",
        "a        1\n",
        "long  1000  note {x} [b]\n",
    ]


def test_what_would_break_a_line_is_replaced() -> None:
    assert on_one_line("a\n\x1b[31mb\udce9ö") == "a\N{REPLACEMENT CHARACTER}[31mb\N{REPLACEMENT CHARACTER}ö"


def test_no_line_of_a_result_brings_another_or_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever files and programs are called."""
    emit("doctor", Shown({}, iter(("--file-locks: a lock on /tmp/\x1b[2J\n", "\n", "a\nb\n"))), as_json=False)
    sign = "\N{REPLACEMENT CHARACTER}"
    assert capsys.readouterr().out == f"--file-locks: a lock on /tmp/{sign}[2J\n\na{sign}b\n"


def test_what_rich_draws_breaks_no_line_either() -> None:
    assert escaped("a\n\x1b[2J[bold]\udce9") == ("a\N{REPLACEMENT CHARACTER}[2J\\[bold]\N{REPLACEMENT CHARACTER}")
