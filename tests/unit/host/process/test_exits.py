"""The ends of processes of a PID namespace, which are not our children."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from own_process import descriptors

from crckpt.host import proc
from crckpt.host.process.pidfd import watched_exits

# Each child ends on request, and is reaped at once, like children of a restored program.
NAMESPACE = """
import os, signal, sys
children = [os.fork() or (signal.pause(), os._exit(7)) for _ in range(2)]
print(*children, flush=True)
sys.stdin.readline()
os.kill(children[0], signal.SIGTERM)
os.waitpid(children[0], 0)
print("reaped", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def namespace() -> Iterator[tuple[subprocess.Popen[str], int, list[int]]]:
    """A PID namespace: who made it, its init from outside, and two children by their PIDs inside."""
    argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "python3", "-c", NAMESPACE]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as unshare:
        assert unshare.stdout is not None
        line = unshare.stdout.readline()
        if not line:
            pytest.skip("no PID namespace can be made here")
        (init,) = proc.children(unshare.pid)
        yield unshare, init, [int(word) for word in line.split()]
        unshare.kill()


def test_watched_exits_report_only_the_process_that_has_ended(
    namespace: tuple[subprocess.Popen[str], int, list[int]],
) -> None:
    unshare, init, (first, second) = namespace
    assert unshare.stdin is not None
    before = descriptors()
    with watched_exits(init, [first, second, 4242]) as watch:
        assert watch.find_ended() == {}
        print(file=unshare.stdin, flush=True)
        assert watch.wait(first, 20) < 20
        ended = watch.find_ended()
        assert ended.keys() == {first}
        # Before Linux 6.15 the kernel does not report the exit status of a reaped process.
        assert ended[first] in (-15, None)
        assert watch.wait(second, 0) >= 0
        assert second not in watch.find_ended()
    assert descriptors() == before
