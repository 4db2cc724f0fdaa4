"""Log lines of CRIU 4.2 for each cause (tests/data/logs/lines.tsv: key, line) match that cause only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from checkout import TESTS

from crckpt.causes.catalogue import BUGS, CATALOGUE, EARLIER, ENGINES, OUTER, OUTSIDE, SILENT, SPECIFIC
from crckpt.criu.explain import explain

LOGS = TESTS / "data" / "logs"
LINES = [tuple(line.split("\t", 1)) for line in (LOGS / "lines.tsv").read_text().splitlines()]
VERSION_LINES = {"crashed-later": "(00.001234) Version: 4.1 (gitid 0)\n"}
"""What a log says before that line, where the same line has another cause in an older CRIU."""
CAUSES_OF_OTHER_PROGRAMS = {entry.key for entry in (*ENGINES, *OUTER, *OUTSIDE)}
"""What others say, who do not begin with a time as CRIU does."""
FAILED = "(00.02) Error (criu/cr-dump.c:2128): Dumping FAILED.\n"
LINES_AFTER = {
    **{entry.key: FAILED for entry in SILENT},
    "executable-memory": "(00.02) Error (criu/cr-dump.c:1500): Can't infect (pid: 812) with parasite\n",
    "cuda-plugin-off": "(00.02) Error (criu/proc_parse.c:663): Can't handle non-regular mapping on 812's map 7f00\n",
}
"""What a log says after that line, which alone is no complaint."""

DEVICE = "(00.05) Error (criu/files-ext.c:94): Can't dump file 7 of that type [20600] (chr 10:229)\n"

PLACES = {
    "address": "process 4711, fd 7",
    "bad-size": "process 4711, fd 3",
    "cannot-trace": "None",
    "capabilities": "process 4711",
    "file-hidden": "process 4711 (python3), fd 3 (/srv/program/file)",
    "foreign-user-namespace": "None",
    "crashed-later": "None",
    "fork-pid": "None",
    "freeze-timeout": "None",
    "groups": "None",
    "open-failed": "process 4711, fd 3",
    "page-server": "None",
    "secretmem": "process 4711 (python3)",
    "tcp-in-flight": "process 4711 (python3), fd 3",
    "thread-leader-gone": "None",
}
"""Where CRIU was in each whole log."""


def test_every_cause_with_a_pattern_has_a_log_line() -> None:
    from_log = {entry.key for entry in CATALOGUE if entry.pattern}
    assert len(from_log) >= 150
    assert {key for key, _ in LINES} == from_log
    assert {log.stem for log in LOGS.glob("*.log")} == set(PLACES)


@pytest.mark.parametrize(("key", "line"), LINES, ids=[f"{key}-{number}" for number, (key, _) in enumerate(LINES)])
def test_each_line_of_the_table_finds_its_cause(key: str, line: str) -> None:
    time = "" if key in CAUSES_OF_OTHER_PROGRAMS else "(00.012345) "
    explanation = explain(f"{VERSION_LINES.get(key, '')}{time}{line}\n{LINES_AFTER.get(key, '')}")
    assert explanation.finding is not None
    assert explanation.finding.key == key
    assert "{" not in str(explanation.finding)


def test_warning_explains_only_related_errors() -> None:
    warned = {entry.key for entry in EARLIER}
    for line in (line for key, line in LINES if key in warned):
        explanation = explain(
            f"(00.01) {line}\n(00.02) Error (criu/sk-inet.c:912): inet: Connected TCP socket in image\n"
        )
        assert explanation.finding is not None
        assert explanation.finding.key == "tcp-established"


def test_no_line_of_the_table_fits_two_causes() -> None:
    bugs = {bug.key for bug in BUGS}
    lines = [(key, line) for key, line in LINES if key not in bugs]
    fits = [(key, entry.key) for key, line in lines for entry in SPECIFIC if re.search(entry.pattern, line)]
    assert [(key, other) for key, other in fits if key != other] == []


def test_kernel_errno_counts_only_without_a_specific_cause() -> None:
    refused = "(00.01) Error (criu/new.c:1): news: Operation not permitted\n"
    first, both = explain(refused), explain(refused + DEVICE)
    assert first.finding is not None
    assert both.finding is not None
    assert (first.finding.key, both.finding.key) == ("not-permitted", "device")


@pytest.mark.parametrize("log", sorted(LOGS.glob("*.log")), ids=lambda log: log.stem)
def test_each_recorded_log_finds_its_cause(log: Path) -> None:
    """The logs are from tests/integration/test_explained.py, with other names and PIDs. Each is named for its cause."""
    explanation = explain(log.read_text())
    assert explanation.finding is not None
    assert explanation.finding.key == log.stem
    assert str(explanation.place) == PLACES[log.stem]
