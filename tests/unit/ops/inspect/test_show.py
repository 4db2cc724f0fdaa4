"""A checkpoint of a tree that has one of everything."""

from __future__ import annotations

from recorded_images import RECORDED

from crckpt.ops.context import Context
from crckpt.ops.inspect.show import show
from crckpt.store import Checkpoint, Repository


def test_show_lists_processes_files_and_sockets(
    context: Context, repository: Repository, recordings: tuple[Checkpoint, Checkpoint]
) -> None:
    _, second = recordings
    repository.tag(second.id, "good")
    detail = show(context, "job")
    assert (detail.checkpoint, detail.tags) == (second, ("good",))
    assert [process.pid for process in detail.processes] == [process.pid for process in RECORDED.processes]
    root = detail.processes[0]
    assert (root.threads, root.state, root.ppid) == (2, "alive", 0)
    assert root.memory_bytes > 1 << 20
    assert {process.memory_bytes for process in detail.processes if process.state == "zombie"} == {0}
    files = {file.path: file for file in detail.files}
    assert len(files) == len(detail.files), "each path once"
    assert files["/tmp/crckpt-images/run/plain"].bytes == 100
    assert (files["/tmp/crckpt-images/run/log"].state, files["/tmp/crckpt-images/run/log"].bytes) == ("append", None)
    assert {file.bytes for file in detail.files if file.state == "deleted"} >= {1000, 77, 8 << 20}
    assert "tcp 127.0.0.1:47001 (listen)" in detail.sockets
