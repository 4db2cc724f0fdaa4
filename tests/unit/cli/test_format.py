"""Columns are aligned, and text of others cannot break a line or hide from the reader."""

from __future__ import annotations

import unicodedata
from io import StringIO

import pytest
from rich.console import Console

from crckpt.causes import cause
from crckpt.cli.format import FoldedPath, align, draw_table, escape, fold, note_lines, on_one_line
from crckpt.cli.output import emit, form


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("a", "1", ""), ("long", "1000", "note {x} [b]")]
    assert list(align(("id", "n", "note"), rows, "n")) == [
        "id       n  note\n",
        "a        1\n",
        "long  1000  note {x} [b]\n",
    ]


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("/etc/passwd", 20, ["/etc/passwd"]),
        ("", 20, [""]),
        ("/usr/lib/python3.11/lib-dynload/_json.so", 20, ["/usr/lib/python3.11/", "lib-dynload/_json.so"]),
        ("/a/name-that-is-longer-than-the-line", 12, ["/a/", "name-that-is", "-longer-than", "-the-line"]),
        ("unix stream /run/app/control.sock", 20, ["unix stream /run/", "app/control.sock"]),
        ("four five", 4, ["four", "five"]),
    ],
)
def test_path_is_folded_after_a_slash(text: str, width: int, lines: list[str]) -> None:
    assert fold(text, width) == lines


def test_table_folds_paths_at_slashes() -> None:
    """A name is split only if it is too long by itself. Brackets in it are not markup."""
    path = "/usr/lib/python3/[dist]-packages/numpy/_core/_multiarray_umath.cpython-311-x86_64-linux-gnu.so"
    written = StringIO()
    console = Console(file=written, width=80, highlight=False, soft_wrap=True)
    console.print(draw_table(("file", "used by"), [(FoldedPath(path), "PID 812: map")]))
    lines = [line.rstrip() for line in written.getvalue().splitlines()]
    assert lines[1] == "/usr/lib/python3/[dist]-packages/numpy/_core/                       PID 812: map"
    assert lines[2:] == ["_multiarray_umath.cpython-311-x86_64-linux-gnu.so"]
    wide = StringIO()
    Console(file=wide, width=200, soft_wrap=True).print(draw_table(("file",), [(FoldedPath(path),)]))
    assert path in wide.getvalue()


def test_characters_that_break_a_line_are_replaced() -> None:
    assert on_one_line("a\n\x1b[31mb\udce9ö") == "a\N{REPLACEMENT CHARACTER}[31mb\N{REPLACEMENT CHARACTER}ö"


def test_invisible_characters_are_written_as_their_number() -> None:
    """These are marks of direction or without width, line breaks of some terminals, private and unused code points."""
    assert on_one_line("exe\u202egpj.\u200b\u2028\u2029\u2066\ufeff") == (
        "exe\\u202egpj.\\u200b\\u2028\\u2029\\u2066\\ufeff"
    )
    assert on_one_line("\xad\ue000\U000e0041\U000f0000\u0378") == "\\xad\\ue000\\U000e0041\\U000f0000\\u0378"
    assert on_one_line("a\xa0\u3000ö\N{SNOWMAN}") == "a\xa0\u3000ö\N{SNOWMAN}"


def test_warnings_with_the_same_remedy_are_printed_as_one() -> None:
    """The JSON document contains all causes."""
    down = [cause("device-unlinked").finding(device=f"eth{number}") for number in range(3)]
    assert list(note_lines([down[0], "other", *down[1:]])) == [
        "note: eth0 has no link: connect its cable (and 2 more like this)\n",
        "note: other\n",
    ]


@pytest.mark.parametrize("category", ["Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"])
def test_text_on_one_line_has_no_character_of_an_unprintable_category(category: str) -> None:
    all_of_it = "".join(
        character for character in map(chr, range(0x110000)) if unicodedata.category(character) == category
    )
    shown = on_one_line(all_of_it)
    assert shown
    assert {unicodedata.category(character) for character in set(shown)} & {category} == set()
    assert escape(all_of_it).replace("\\\\", "\\").isprintable()


def test_result_line_stays_one_line_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of files and programs may contain any character."""
    monkeypatch.setattr(form, "as_json", False)
    emit({}, iter(("--file-locks: a lock on /tmp/\x1b[2J\n", "\n", "a\nb\n")))
    sign = "\N{REPLACEMENT CHARACTER}"
    assert capsys.readouterr().out == f"--file-locks: a lock on /tmp/{sign}[2J\n\na{sign}b\n"


def test_escaped_text_stays_on_one_line_in_rich() -> None:
    assert escape("a\n\x1b[2J[bold]\udce9") == ("a\N{REPLACEMENT CHARACTER}[2J\\[bold]\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("character", ["\u034f", "\u115f", "\u2800", "\u3164", "\ufe0f", "\uffa0", "\U000e0100"])
def test_invisible_letters_and_marks_are_written_as_numbers(character: str) -> None:
    """Otherwise two different names could look the same."""
    assert on_one_line(f"a{character}b \u00e9") == f"a{character.encode('ascii', 'backslashreplace').decode()}b \u00e9"
