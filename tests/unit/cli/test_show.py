"""`crckpt show` as people and as scripts read it."""

from __future__ import annotations

from command_line import CommandLine
from recorded_images import RECORDED

from crckpt.store import Checkpoint, Repository


def test_show_prints_the_whole_checkpoint(
    command_line: CommandLine, repository: Repository, recordings: tuple[Checkpoint, Checkpoint]
) -> None:
    first, second = recordings
    repository.tag(second.id, "good")
    text = command_line.run("show", "job")
    for words in (second.id, ":good", first.id, str(RECORDED.root.pid), "2 threads", "zombie", "tcp 127.0.0.1:47001"):
        assert words in text
    result = command_line.result("show", "job:good")
    assert (result["id"], result["parent"], result["tags"]) == (second.id, first.id, ["good"])
    assert [process["pid"] for process in result["tree"]] == [process.pid for process in RECORDED.processes]
    assert {"options", "host", "files", "sockets", "statistics"} <= result.keys()


def test_show_prints_only_the_requested_sections(
    command_line: CommandLine, recordings: tuple[Checkpoint, Checkpoint]
) -> None:
    result = command_line.result("show", "job", "--ps", "--maps")
    assert {"ps", "maps"} <= result.keys()
    assert not {"files", "sockets", "env", "strings", "tree"} & result.keys()
    assert result["ps"][0]["pid"] == RECORDED.root.pid
