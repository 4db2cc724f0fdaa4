"""A tree in a network namespace of its own is checkpointed and comes back in such a one, without iptables."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from command import Crckpt
from stopped import JOB
from trees import PYTHON, Case, Tree, started

pytestmark = pytest.mark.usefixtures("adopted")

LISTENING = Case(
    "own-network",
    ("unshare", "--net", "sh", "-c", f"ip link set lo up; exec {PYTHON} {{programs}}/tcp_listen.py {{workdir}}"),
)
GREETED = "import socket, sys; print(socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=30).recv(5))"


def test_it_listens_again(crckpt: Crckpt) -> None:
    """While it runs, too, its packets are held back only for the dump."""
    with started(LISTENING) as tree:
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


def _greeted(tree: Tree) -> bool:
    port = (tree.workdir / "ports").read_text().split()[0]
    return _inside(tree, PYTHON, "-c", GREETED, port) == "b'hello'"


def _inside(tree: Tree, *words: str) -> str:
    argv = ("nsenter", "--net", "--target", str(tree.pid), *words)
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=20).stdout.strip()
