"""`crckpt list` as people and as scripts read it."""

from __future__ import annotations

from datetime import UTC, datetime

from command_line import CommandLine
from image_sets import manifest_path

from crckpt.model import JobName
from crckpt.store import Checkpoint, Repository


def test_a_line_for_each(
    typed: CommandLine, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    first, second = checkpoints
    repository.tag(second.id, "good")
    titles, *lines = typed.say("list").splitlines()
    assert titles.split() == ["id", "job", "created", "procs", "frozen", "raw", "new", "stored", "tags,", "note"]
    assert [line.split()[:2] for line in lines] == [[first.short_id, "job"], [second.short_id, "job"]]
    assert "good" in lines[1]
    result = typed.result("list", "job")
    assert [entry["id"] for entry in result["checkpoints"]] == [first.id, second.id]
    assert [entry["tags"] for entry in result["checkpoints"]] == [[], ["good"]]
    assert (result["pending"], result["unreadable"]) == ([], [])


def test_an_empty_store_says_what_to_do(typed: CommandLine) -> None:
    assert typed.say("list") == "no checkpoints yet; make one with: crckpt dump PID JOB\n"


def test_what_is_stored_now_and_what_cannot_be_read(
    typed: CommandLine, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    path = manifest_path(repository, checkpoints[0].id)
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    with repository.announced(JobName("other"), datetime.now(UTC), None, alone=False):
        text = typed.say("list")
        assert [entry["state"] for entry in typed.result("list")["pending"]] == ["committing"]
    first, *_, last = text.splitlines()
    assert checkpoints[0].short_id in first
    assert last.split()[:2] == ["committing", "other"]
