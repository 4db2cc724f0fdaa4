"""Names of jobs and tags that people give, and ids that become parts of paths."""

from __future__ import annotations

import pytest

from crckpt.errors import IntegrityError, UsageError
from crckpt.store.layout import IMAGE, check_id, check_name, check_note


@pytest.mark.parametrize("name", ["a", "7", "Job-1.old_x", "x" * 100])
def test_valid_names_are_accepted(name: str) -> None:
    assert check_name(name, "job") == name


@pytest.mark.parametrize("name", ["", ".", "..", "-x", ".x", "_x", "a/b", "a b", "a\n", "ü", "x" * 101])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid tag name") as caught:
        check_name(name, "tag")
    assert repr(name) in caught.value.message


@pytest.mark.parametrize("note", ["", "before the upgrade", "größer: 50 %", "\U0001f468\u200d\U0001f469"])
def test_valid_notes_are_accepted(note: str) -> None:
    assert check_note(note) == note


@pytest.mark.parametrize("note", ["two\nlines", "a\n", "a\tb", "\x1b[31mred", "\x7f", "\x9b1m", "a\u2028b", "a\u2029b"])
def test_invalid_notes_are_refused(note: str) -> None:
    with pytest.raises(UsageError, match="is not one line of text") as caught:
        check_note(note)
    assert repr(note) in caught.value.message


@pytest.mark.parametrize("name", ["", "ab", "g" * 64, "A" * 64, "a" * 63, "a" * 65, f"{'a' * 64}\n", f"../{'a' * 61}"])
def test_invalid_ids_are_refused(name: str) -> None:
    with pytest.raises(IntegrityError, match="is not a SHA-256"):
        check_id(name)


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("pages-1.img", True),
        ("...", True),
        (".hidden", True),
        ("x" * 255, True),
        ("", False),
        (".", False),
        ("..", False),
        ("a/b", False),
        ("a\0", False),
        ("a\n", False),
        ("x" * 256, False),
    ],
)
def test_image_name_is_a_valid_file_name(name: str, fits: bool) -> None:
    assert bool(IMAGE.fullmatch(name)) == fits
