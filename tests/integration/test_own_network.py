"""A tree in its own network namespace is checkpointed and restored in a new one, without iptables."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from command import Crckpt
from remote import remote
from stopped_trees import JOB
from trees import PYTHON, Case, Tree, started

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

FAILED, REFUSED = 21, 24
LISTENING_PROGRAM = Case(
    "own-network",
    ("unshare", "--net", "sh", "-c", f"ip link set lo up; exec {PYTHON} {{programs}}/tcp_listen.py {{workdir}}"),
)
GREETING_CLIENT = (
    "import socket, sys; print(socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=60).recv(5))"
)


def test_listening_tree_in_its_own_network_is_restored(crckpt: Crckpt) -> None:
    """During a running dump, packets are held back only for the time of the dump."""
    with started(LISTENING_PROGRAM) as tree:
        result = crckpt.run("doctor", str(tree.pid), "--json").document["result"]
        assert (result["blockers"], result["warnings"]) == ([], [])
        crckpt.run("dump", str(tree.pid), JOB)
        assert _greeted(tree)
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        before = tree.counters()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        network = Path(f"/proc/{tree.pid}/ns/net").readlink()
        assert network != Path("/proc/self/ns/net").readlink()
        assert _greeted(tree)
        assert not _inside(tree, "nft", "list", "tables")


@pytest.mark.parametrize("kind", ["net", "uts", "ipc"])
def test_descriptor_of_its_own_namespace_is_restored(crckpt: Crckpt, kind: str) -> None:
    with remote() as program:
        flag = {"net": 0x40000000, "uts": 0x04000000, "ipc": 0x08000000}[kind]
        program.ask(
            "import ctypes, os\n"
            f"left = os.open('/proc/self/ns/{kind}', os.O_RDONLY); ctypes.CDLL(None).unshare({flag})\n"
            f"held = os.open('/proc/self/ns/{kind}', os.O_RDONLY)"
        )
        words = ("dump", str(program.pid), JOB, "--stop")
        for more in ((), ("--dry-run",)):
            assert "that none of its processes is in" in crckpt.run(*words, *more, status=REFUSED).err
        program.ask("os.close(left)")
        crckpt.run(*words)
        program.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        same = f"answer = os.path.samestat(os.fstat(held), os.stat('/proc/self/ns/{kind}'))"
        assert program.ask(same) is True


def test_descriptor_of_a_mounted_namespace_is_refused(crckpt: Crckpt) -> None:
    """`ip netns add` mounts such a namespace."""
    with remote() as program:
        place = program.workdir / "mounted"
        place.touch()
        subprocess.run(["mount", "--bind", "/proc/self/ns/uts", place], check=True)
        try:
            program.ask(f"import os; held = os.open({str(place)!r}, os.O_RDONLY)")
            words = ("dump", str(program.pid), JOB, "--stop")
            for more in ((), ("--dry-run",)):
                error = crckpt.run(*words, *more, status=REFUSED).err
                assert f"is the namespace that is mounted at {place}" in error
            error = crckpt.run(*words, "--rehearse", "--no-preflight", status=FAILED).err
            assert "the tree keeps running" in error
            program.ask("os.close(held)")
            crckpt.run(*words)
        finally:
            subprocess.run(["umount", place], check=True)


def _greeted(tree: Tree) -> bool:
    port = (tree.workdir / "ports").read_text().split()[0]
    return _inside(tree, PYTHON, "-c", GREETING_CLIENT, port) == "b'hello'"


def _inside(tree: Tree, *words: str) -> str:
    argv = ("nsenter", "--net", "--target", str(tree.pid), *words)
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
