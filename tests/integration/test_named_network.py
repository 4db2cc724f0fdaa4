"""A tree in a named network namespace: CRIU's lock in that namespace is removed."""

import secrets
import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest
from command import Crckpt
from dump_moments import ENDS_WITHIN_S, kill_below
from remote import Remote, remote
from stopped_trees import JOB
from trees import wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a network namespace."""
    name = f"crckpt-test-{secrets.token_hex(4)}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield name
    subprocess.run(["ip", "netns", "delete", name], check=True)
    # `ip netns add` mounts it, and CRIU could not restore that mount of a tree that has mounts of its own.
    subprocess.run(["umount", "--lazy", "/run/netns"], check=True)


@pytest.fixture
def program(name: str) -> Iterator[Remote]:
    """A program in the namespace."""
    with remote() as program:
        program.ask(_ENTER % name)
        yield program


_ENTER = """
import ctypes, os
space = os.open('/run/netns/%s', os.O_RDONLY | os.O_CLOEXEC)
assert ctypes.CDLL(None).setns(space, 0x40000000) == 0
os.close(space)
"""


def _locks(name: str) -> str:
    listed = ["ip", "netns", "exec", name, "nft", "list", "tables"]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout


def test_network_lock_of_a_killed_criu_is_removed(crckpt: Crckpt, program: Remote, name: str) -> None:
    """The tree keeps running, and its packets arrive again."""
    dump = crckpt.start("dump", str(program.pid), JOB, "--stop", CRCKPT_STOP_AT="hold.commit")
    wait_for(lambda: psutil.Process(dump.pid).status() == psutil.STATUS_STOPPED, ENDS_WITHIN_S, "the hold")
    assert "CRIU-" in _locks(name)
    kill_below(dump.pid)
    dump.send_signal(signal.SIGCONT)
    _, error = dump.communicate(timeout=ENDS_WITHIN_S)
    assert dump.returncode == 21, error
    assert "the tree keeps running" in error
    assert "CRIU-" not in _locks(name)
    assert program.ask("answer = 42") == 42


def test_restore_lifts_the_network_lock(crckpt: Crckpt, program: Remote, name: str) -> None:
    """The tree is restored in another network namespace. The firewall rules that blocked the old one are removed."""
    crckpt.run("dump", str(program.pid), JOB, "--stop")
    program.wait_gone()
    assert "CRIU-" in _locks(name)
    crckpt.run("restore", JOB, "--detach")
    assert program.ask("answer = 42") == 42
    assert "CRIU-" not in _locks(name)


def test_removing_the_checkpoint_lifts_the_network_lock(crckpt: Crckpt, program: Remote, name: str) -> None:
    """The tree has ended. Other processes still use its namespace."""
    crckpt.run("dump", str(program.pid), JOB, "--stop")
    program.wait_gone()
    assert "CRIU-" in _locks(name)
    (lifted,) = crckpt.run("rm", JOB, "--yes", "--json").document["result"]["lifted_locks"]
    assert lifted.startswith("CRIU-")
    assert "CRIU-" not in _locks(name)
