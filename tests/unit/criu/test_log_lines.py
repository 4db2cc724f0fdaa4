"""Lines of a log that may contain the cause, as people and programs quote them."""

from __future__ import annotations

import pytest

from crckpt.criu.log_lines import (
    Line,
    RetypedLines,
    find_telling_lines,
    is_consequence,
    line_at,
    omit_consequences,
    rejoin_lines,
    search,
)

ERROR = "Error (criu/files.c:1): Can't open {}"


def texts(log: str) -> list[str]:
    return [line.text for line in find_telling_lines(log)]


@pytest.mark.parametrize(
    ("broken", "whole"),
    [
        ("(00.01) pie: 7: Error (a.c:1): one>\n(00.02) pie: 7:  two\n", "(00.01) pie: 7: Error (a.c:1): one two\n"),
        ("Error (criu/a.c:1): Can't open\n    /srv/data\n", "Error (criu/a.c:1): Can't open /srv/data\n"),
        ("Error (criu/a.c:1): a\n    b\n    c\n", "Error (criu/a.c:1): a b c\n"),
        ("criu failed: type NOTIFY\n\nlog file: /x/dump.log\n", "criu failed: type NOTIFY log file: /x/dump.log\n"),
        ("Error (criu/a.c:1): one\n(00.02) two\n", "Error (criu/a.c:1): one\n(00.02) two\n"),
    ],
    ids=["cut by the restorer", "wrapped", "wrapped twice", "the path of runc's log", "two lines"],
)
def test_broken_lines_of_a_log_are_joined(broken: str, whole: str) -> None:
    assert rejoin_lines(broken) == whole


def test_repeated_log_lines_that_differ_only_in_their_times_are_shown_once() -> None:
    log = f"(00.01) {ERROR.format('a')}\n(00.02) {ERROR.format('b')}\n(00.03) {ERROR.format('a')}\n(00.04) Dumping\n"
    assert texts(log) == [f"(00.01) {ERROR.format('a')}", f"(00.02) {ERROR.format('b')}"]
    assert texts(log.replace("\n", "\r\n")) == texts(log)


def test_harmless_messages_of_criu_do_not_count_as_complaints() -> None:
    assert texts("(00.01) Warn  (criu/kerndat.c:1): Zero page\n(00.02) Dumping task (pid: 7 comm: a)\n") == []


def test_long_line_keeps_its_start_and_end() -> None:
    (line,) = texts(f"Error (criu/a.c:1): begin {'x' * 5000} end\n")
    assert len(line) < 1010
    assert line.startswith("Error (criu/a.c:1): begin xxx")
    assert line.endswith("xxx end")


def test_lines_kept_of_a_log_of_only_complaints_are_limited() -> None:
    log = "".join(f"Error (criu/a.c:1): {number}\n" for number in range(2000))
    found = find_telling_lines(log)
    assert len(found) == 500
    assert found[0].text == "Error (criu/a.c:1): 0"


def test_line_at_a_position_has_its_begin_and_end() -> None:
    log = "first\nsecond\nthird"
    assert [line_at(log, at, 0) for at in (0, 5)] == [Line("first", 0, 5)] * 2
    assert line_at(log, 6, 0) == line_at(log, 11, 0) == Line("second", 6, 12)
    assert line_at(log, len(log), 0).text == "third"
    # The caller has already read what is before `earliest`.
    assert line_at(log, 9, earliest=8).text == "cond"


def test_consequences_of_an_unknown_complaint_are_kept() -> None:
    known, unknown = find_telling_lines(f"{ERROR.format('a')}\nError (criu/new.c:1): Something new\n")
    (failed,) = find_telling_lines("Error (criu/cr-dump.c:1): Dumping FAILED.\n")
    assert (is_consequence(known), is_consequence(failed)) == (False, True)
    assert list(omit_consequences([unknown, failed])) == [unknown]
    # A line before every complaint is the only one that there is.
    assert list(omit_consequences([failed, unknown])) == [failed, unknown]


def test_lines_of_a_log_that_were_typed_by_hand_are_recognized() -> None:
    """The lines have no mark of CRIU and other quotes. The last of them are used."""
    log = "\n".join(f"error: no. {number}" for number in range(150)) + "\n`Can\u2019t open` the file\n"
    retyped = list(RetypedLines(log, find_telling_lines(log)))
    assert all(line.retyped for line in retyped)
    assert len(retyped) == 100
    assert retyped[-1].forms[-1] == "Can't open' the file"
    assert search("can't open", "CANNOT OPEN it", retyped=True)
    assert not search("can't open", "CANNOT OPEN it", retyped=False)
