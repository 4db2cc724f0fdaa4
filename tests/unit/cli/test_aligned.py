"""Long lists as text: columns stand below each other, and no note can break a line."""

from __future__ import annotations

from crckpt.cli.render import aligned, escaped, on_one_line


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("a", "1", ""), ("long", "1000", "note {x} [b]")]
    assert list(aligned(("id", "n", "note"), rows, right=frozenset({"n"}))) == [
        "id       n  note\n",
        "a        1\n",
        "long  1000  note {x} [b]\n",
    ]


def test_what_would_break_a_line_is_replaced() -> None:
    assert on_one_line("a\n\x1b[31mb\udce9ö") == "a\N{REPLACEMENT CHARACTER}[31mb\N{REPLACEMENT CHARACTER}ö"


def test_what_rich_draws_breaks_no_line_either() -> None:
    assert escaped("a\n\x1b[2J[bold]\udce9") == ("a\N{REPLACEMENT CHARACTER}[2J\\[bold]\N{REPLACEMENT CHARACTER}")
