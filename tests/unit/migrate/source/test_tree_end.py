"""The end of a tree is noticed, however many processes it has."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from crckpt.host import proc
from crckpt.host.process.run import start_with_pipes
from crckpt.migrate.source.hand_over import TreeEnd

_CHILDREN = """
import os, signal, sys
for _ in range(int(sys.argv[1])):
    if not os.fork():
        signal.pause()
        os._exit(0)
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Set the usual limit of descriptors, because a tree may have more processes."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(320, before[0]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def tree() -> Iterator[proc.Tree]:
    """A tree with more processes than a process may have descriptors by default."""
    with subprocess.Popen((sys.executable, "-c", _CHILDREN, "400"), stdout=subprocess.PIPE) as root:
        assert root.stdout is not None
        root.stdout.readline()
        process = proc.read_process(root.pid)
        assert process is not None
        found = proc.read_tree(process)
        yield found
        # Those that have ended are zombies, or have no successor yet: PIDs are not used again so soon.
        for each in found.processes:
            if each.identity.keeps_pid:
                os.kill(each.pid, signal.SIGKILL)


@pytest.mark.usefixtures("few_descriptors")
def test_end_of_a_tree_with_more_processes_than_descriptors_is_seen(tree: proc.Tree) -> None:
    assert len(tree.pids) == 401
    end = TreeEnd(tree)
    for pid in tree.pids:
        os.kill(pid, signal.SIGKILL)
    end.wait()
    assert all(found is None or found.state == "zombie" for found in map(proc.read_process, tree.pids))


def test_pidfd_above_1023_is_waited_for() -> None:
    """select(2) accepts no descriptor above 1023."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2048:
        pytest.skip("this process may not have so many descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    child, pipes = start_with_pipes(("cat",), {})
    try:
        low = child.pidfd
        child.pidfd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1500)
        os.close(low)
        assert not child.ends_within(0)
        for descriptor in (pipes.stdin, pipes.stdout, pipes.stderr):
            os.close(descriptor)
        assert child.ends_within(60)
    finally:
        child.kill()
        child.wait()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
