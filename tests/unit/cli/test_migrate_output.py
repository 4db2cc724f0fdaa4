"""The text and the JSON document of a move."""

from __future__ import annotations

import pytest
from documents.json_documents import MigrateDocument
from msgspec import convert, to_builtins
from msgspec.structs import replace

from crckpt.cli.migrate_output import print_round, result_document, result_lines
from crckpt.migrate.request import FileToSend, MigrateResult, RoundSummary
from crckpt.model import CheckpointId

ID = CheckpointId("ab" * 32)
ROUND = RoundSummary(raw_bytes=4096, sent_bytes=100, seconds=1.0, frozen_ms=5.0, estimated_ms=200.0)
MOVE_RESULT = MigrateResult(
    "app", "node2", "3f0c9a7be1d24c58", 12, ID, (ROUND, ROUND), "little was left to copy", 100, 4096, 250.0, 1.5
)
CHECK_RESULT = MigrateResult("app", "node2", is_check=True, memory_bytes=1 << 20)
RESUME_RESULT = MigrateResult("app", "node2", "3f0c9a7be1d24c58", None, ID)


@pytest.mark.parametrize(
    ("result", "runs_on", "text"),
    [
        (MOVE_RESULT, "destination", "app runs on node2 as PID 12: downtime 250 ms; 100 B sent for 4.0 KiB of images"),
        (CHECK_RESULT, "source", "app can be moved to node2: it has 1.0 MiB of memory to send, before compression"),
        (RESUME_RESULT, "destination", "app runs on node2; the connection was lost, so the downtime is not known"),
    ],
)
def test_output_of_migrate_says_where_the_program_runs(result: MigrateResult, runs_on: str, text: str) -> None:
    lines = list(result_lines(result))
    assert text in "".join(lines)
    if result.why_stopped:
        assert lines[0] == "no more rounds after 2: little was left to copy\n"
    document = result_document(result)
    assert (document["runs_on"], document["check"]) == (runs_on, result.is_check)
    convert(to_builtins(document), MigrateDocument)


@pytest.mark.parametrize("result", [MOVE_RESULT, RESUME_RESULT])
def test_output_of_migrate_says_how_to_attach_to_the_new_terminal(result: MigrateResult) -> None:
    lines = list(result_lines(replace(result, terminal_log="/var/log/crckpt/app.log"), "/opt/crckpt"))
    expected = (
        "connect to its terminal: ssh -t node2 /opt/crckpt attach app; its output there: /var/log/crckpt/app.log\n"
    )
    assert expected in lines


def test_output_of_migrate_lists_files_to_send_up_to_a_limit() -> None:
    files = tuple(FileToSend(f"/srv/{number}", 1024) for number in range(23))
    lines = list(result_lines(MigrateResult("app", "node2", is_check=True, to_send=files)))
    assert lines[0] == "would send /srv/0 (1.0 KiB)\n"
    assert lines[20] == "would send 3 more files\n"
    assert len(lines) == 22


def test_output_of_migrate_has_one_line_for_each_round(capsys: pytest.CaptureFixture[str]) -> None:
    print_round(1, ROUND)
    print_round(2, replace(ROUND, written_per_s=3e6))
    copied = "copied 4.0 KiB, sent 100 B in 1.0 s, frozen 5 ms"
    assert capsys.readouterr().err.splitlines() == [
        f"round 1: {copied}; estimated downtime 200 ms",
        f"round 2: {copied}; dirty rate 2.9 MiB/s; estimated downtime 200 ms",
    ]
