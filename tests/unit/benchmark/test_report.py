"""The benchmark's report: bounds that hold or not, in both forms of output."""

from __future__ import annotations

import io
import json
from dataclasses import asdict

import pytest
from benchmark.report import Choice, Report, Row, document, line, show
from rich.console import Console

MACHINE = {"machine": "2 cores", "disk": "/var/tmp on [ext4]"}
CHOICE = Choice("python, 256 MB", "level -1", True, 1.0, 2**20, 0.5, 2**19, 0.25)


def compared(ours: float, peer: float, bound: float | None = 1.05) -> Row:
    """Make a row with a peer; a single slow sample must not decide."""
    return Row("pause", "python", "s", (ours, 100 * ours, ours), "criu dump", (peer, peer, 100 * peer), bound)


def absolute(ours: float, bound: float | None) -> Row:
    """Make a row without a peer."""
    return Row("startup", "crckpt --version", "s", (ours,), bound=bound)


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (compared(1.05, 1.0), True),
        (compared(1.06, 1.0), False),
        (compared(0.5, 1.0), True),
        (compared(9.0, 1.0, None), None),
        (absolute(0.05, 0.05), True),
        (absolute(0.051, 0.05), False),
        (absolute(9.0, None), None),
    ],
)
def test_row_of_the_benchmark_is_met_if_its_ratio_is_within_the_bound(row: Row, met: bool | None) -> None:
    assert row.met is met
    assert Report(MACHINE, (row,)).all_met is (met is not False)
    assert ("NOT MET" in line(row)) is (met is False)


def test_benchmark_report_is_not_met_if_one_bound_is_missed() -> None:
    assert not Report(MACHINE, (absolute(0.01, 0.05), compared(2.0, 1.0), absolute(0.01, 0.05))).all_met


def test_ratio_of_a_row_compares_medians() -> None:
    row = Row("pause", "python", "s", (1.0, 9.0, 2.0), "criu dump", (4.0, 4.0, 0.1))
    assert row.ratio == 0.5


def test_json_report_of_the_benchmark_has_every_field_and_verdict() -> None:
    found = json.loads(document(Report(MACHINE, (compared(2.0, 1.0), absolute(0.01, 0.05)), (CHOICE,))))
    assert list(found) == ["schema", "machine", "all_met", "rows", "choices"]
    assert (found["schema"], found["machine"], found["all_met"]) == (1, MACHINE, False)
    assert found["rows"][0] == {
        "group": "pause",
        "what": "python",
        "unit": "s",
        "ours": [2.0, 200.0, 2.0],
        "peer_name": "criu dump",
        "peer": [1.0, 1.0, 100.0],
        "bound": 1.05,
        "ours_median": 2.0,
        "peer_median": 1.0,
        "ratio": 2.0,
        "met": False,
    }
    assert (found["rows"][1]["peer_median"], found["rows"][1]["ratio"], found["rows"][1]["met"]) == (None, None, True)
    assert found["choices"] == [asdict(CHOICE)]


def test_table_of_the_benchmark_shows_both_sides_ratio_bound_and_verdict() -> None:
    text = io.StringIO()
    bytes_row = Row("series", "redis", "B", (3 * 2**20,), "restic", (10 * 2**20,), 0.2)
    show(
        Report(MACHINE, (compared(2.0, 0.5), absolute(0.01, 0.05), bytes_row), (CHOICE,)), Console(file=text, width=160)
    )
    lines = text.getvalue().splitlines()
    assert lines[:2] == ["machine: 2 cores", "disk: /var/tmp on [ext4]"]
    rows = [" ".join(line.split()) for line in lines]
    assert "pause python 2.00 s 500 ms criu dump 4.00 ≤ 1.05 NOT MET" in rows
    assert "startup crckpt --version 10 ms ≤ 50 ms met" in rows
    assert "series redis 3.0 MiB 10.0 MiB restic 0.30 ≤ 0.2 NOT MET" in rows
    assert "python, 256 MB level -1 1.00 s 1.0 MiB 500 ms 0.5 MiB 250 ms" in rows
    assert rows[-1] == "1 of 3 bounds hold"
