"""The memory fill of a restore finds tasks that are missing, and those that are killed during it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from crckpt.errors import RestoreFailed
from crckpt.images.tree import ImageTree
from crckpt.ops.restore.images import ImageStreams, fill_memory


class Streams(ImageStreams):
    """Streams whose fill only counts, or kills a process."""

    def __init__(self, victim: int = 0) -> None:
        self.victim, self.fills = victim, 0

    def fill(self, init: int | None) -> None:
        self.fills += 1
        if self.victim:
            kill(self.victim)


def kill(pid: int) -> None:
    """Kill a process, and wait until it is a zombie."""
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.001)


def test_memory_of_a_complete_tree_is_filled_once(tree: ImageTree) -> None:
    streams = Streams()
    fill_memory(tree, None, streams)
    assert streams.fills == 1


def test_missing_task_fails_the_restore_before_the_fill(tree: ImageTree) -> None:
    kill(tree.root.pid)
    streams = Streams()
    with pytest.raises(RestoreFailed, match=f"did not restore these processes: {tree.root.pid}"):
        fill_memory(tree, None, streams)
    assert streams.fills == 0


def test_task_killed_during_the_fill_fails_the_restore(tree: ImageTree) -> None:
    """CRIU would wait for the task forever, or crash."""
    with pytest.raises(RestoreFailed, match=f"PID {tree.root.pid} ended while crckpt filled its memory"):
        fill_memory(tree, None, Streams(tree.root.pid))
