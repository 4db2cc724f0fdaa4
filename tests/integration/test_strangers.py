"""Another user of the host reaches CRIU's sockets: that keeps no tree frozen, and ends no restore."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from stopped_trees import BY_NAME, JOB
from trees import NOBODY, PYTHON, started

pytestmark = pytest.mark.usefixtures("adopted")

STRANGER: Final = r"""
import os, re, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
reached, kept = set(), []
print("ready", flush=True)
while True:
    for name, kind in re.findall(r"@(/crtools-(pr|fd)-\S+)", open("/proc/net/unix").read()):
        try:
            if kind == "pr" and name not in reached:
                kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                kept[-1].setblocking(False)
                kept[-1].connect("\0" + name)
            elif kind == "fd":
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                    sender.setblocking(False)
                    sender.connect("\0" + name)
                    socket.send_fds(sender, [b"x" * 64], [0])
        except OSError:
            continue
        if name not in reached:
            reached.add(name)
            print(kind, flush=True)
"""


@contextmanager
def stranger(report: Path) -> Iterator[None]:
    """A program of nobody's that connects, and sends, to each such socket, and writes which it has reached."""
    with report.open("w") as file:
        words = (PYTHON, "-c", STRANGER, f"{NOBODY}")
        program = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, start_new_session=True)
        try:
            yield
        finally:
            program.kill()
            program.wait()


def test_dumps_and_restores_ignore_connections_of_other_users(crckpt: Crckpt, tmp_path: Path) -> None:
    report = tmp_path / "report"
    with started(BY_NAME["unix-sockets"]) as tree, stranger(report):
        for _ in range(10):
            before = tree.counters()
            crckpt.run("dump", str(tree.pid), JOB, "--stop")
            tree.wait_gone()
            crckpt.run("restore", JOB, "--detach")
            tree.wait_growth(before)
            if {"pr", "fd"} <= set(report.read_text().split()):
                break
        else:
            pytest.fail(f"it has not reached both: {report.read_text()!r}")
