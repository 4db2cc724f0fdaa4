"""core-TID.img: what a thread was."""

from __future__ import annotations

import signal

from image_trees import child, one

from crckpt.images import core, magics, wire
from crckpt.images.core import read_core
from crckpt.images.tree import ImageTree


def test_root_process_of_the_recorded_tree_is_read_with_its_threads_and_ids(tree: ImageTree) -> None:
    root = tree.root
    assert (root.ppid, root.pgid, root.sid, root.comm, root.state) == (0, root.pid, root.pid, "python3", core.ALIVE)
    assert root.threads[0].tid == root.pid
    assert [thread.core.comm for thread in root.threads] == ["python3", "python3"]
    assert root.core.arch == "x86_64"
    assert root.core.credentials == core.Credentials(0, 0, 0, 0, ())


def test_blocked_signals_of_the_root_process_are_read(tree: ImageTree) -> None:
    assert tree.root.core.blocked == (signal.SIGUSR1,)
    assert tree.root.core.pending == (), "the signal waits for the process"


def test_states_of_children_are_read(tree: ImageTree) -> None:
    assert {process.ppid for process in tree.processes[1:]} == {tree.root.pid}
    assert child(tree, core.ALIVE, own_session=True).pgid != tree.root.pgid
    stopped = child(tree, core.STOPPED)
    assert (stopped.pgid, stopped.sid) == (stopped.pid, tree.root.sid)
    assert len(stopped.descriptors) == len(tree.root.descriptors)


def test_unlisted_architecture_is_read_as_unknown() -> None:
    assert read_core(one(magics.CORE, (1, wire.VARINT, 40))).arch == "unknown"
    assert read_core(one(magics.CORE, (1, wire.VARINT, 3))).arch == "aarch64"
