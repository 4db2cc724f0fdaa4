"""Sections of `crckpt show` as tables, in the order of the options."""

from __future__ import annotations

from command_line import CommandLine
from recorded_images import RECORDED

from crckpt.store import Checkpoint


def test_show_prints_each_section(command_line: CommandLine, recordings: tuple[Checkpoint, Checkpoint]) -> None:
    root = str(RECORDED.root.pid)
    processes = command_line.run("show", "job", "--ps")
    assert root in processes
    assert "zombie" in processes
    files = command_line.run("show", "job", "--files")
    assert "/tmp/crckpt-images/run/plain" in files
    assert "append" in files
    sockets = command_line.run("show", "job", "--sockets")
    assert "127.0.0.1:47001" in sockets
    assert "@crckpt-images" in sockets
    maps = command_line.run("show", "job", "--maps")
    assert "heap" in maps
    assert "append" not in maps


def test_json_of_show_strings_without_a_match_is_an_empty_list(
    command_line: CommandLine, recordings: tuple[Checkpoint, Checkpoint]
) -> None:
    assert command_line.result("show", "job", "--strings", "no such text is in it")["strings"] == []
    assert command_line.run("show", "job", "--strings", "(", status=2).startswith("crckpt: ")
