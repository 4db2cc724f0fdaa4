"""A tree with an object whose restore is not tested is ended only with --force."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from cases import CASES
from checkout import PROJECT
from command import Crckpt
from kind_tests import TESTS
from remote import remote
from trees import PYTHON, runs, wait_for

REFUSED: Final = 24
ROOT: Final = PROJECT
PROGRAM_WITH_UNTESTED_KINDS: Final = """
import os, socket, sys, time
held = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 0)
named = os.open("/sys/kernel", os.O_RDONLY)
open(sys.argv[1], "w").close()
while os.path.exists(sys.argv[1]): time.sleep(0.02)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a netlink socket of a rare type, and a directory of the kernel's."""
    ready = tmp_path / "ready"
    null = subprocess.DEVNULL
    words = (PYTHON, "-c", PROGRAM_WITH_UNTESTED_KINDS, str(ready))
    process = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True)
    try:
        wait_for(ready.exists, 60, "the program to be ready")
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("orphans_are_reaped")
def test_dump_with_stop_of_an_untested_kind_needs_force(crckpt: Crckpt, holder: subprocess.Popen[bytes]) -> None:
    words = ("dump", str(holder.pid), "job")
    for more in ((), ("--no-preflight",), ("--dry-run",)):
        error = crckpt.run(*words, "--stop", *more, status=REFUSED).err
        assert f"no test covers the restore of: socket AF_NETLINK SOCK_DGRAM (fd 3 of process {holder.pid})" in error
        assert f"directory of /sys (fd 4 of process {holder.pid}, /sys/kernel)" in error
        assert "--force" in error
    assert runs(holder.pid)
    assert "no test covers" in crckpt.run(*words).out
    assert "no test covers" in crckpt.run("doctor", str(holder.pid)).out
    assert runs(holder.pid)
    crckpt.run(*words, "--stop", "--force")
    holder.wait(60)
    assert crckpt.run("show", "job").out


def test_dump_with_stop_of_a_program_with_a_packet_ring_needs_force(crckpt: Crckpt) -> None:
    """The kernel restarts a new ring at its start, where the program does not wait. No rehearsal shows this."""
    with remote() as program:
        program.ask(
            "import mmap, socket, struct\n"
            "held = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)\n"
            "held.setsockopt(263, 5, struct.pack('4I', 4096, 1, 1024, 4))\n"  # PACKET_RX_RING
            "ring = mmap.mmap(held.fileno(), 4096)"
        )
        words = ("dump", str(program.pid), "job")
        for more in ((), ("--rehearse",), ("--dry-run",), ("--no-preflight",)):
            error = crckpt.run(*words, "--stop", *more, status=REFUSED).err
            assert f"PID {program.pid} reads packets from memory that it shares with the kernel" in error
        assert "PACKET_RX_RING" in crckpt.run(*words).out
        assert "PACKET_RX_RING" in crckpt.run("doctor", str(program.pid)).out


def test_dump_reports_unread_packets_of_a_packet_socket(crckpt: Crckpt) -> None:
    with remote() as program:
        program.ask(
            "import socket\n"
            "held = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0); held.bind(('lo', 0x88B6))\n"
            "held.sendto(b'unread', ('lo', 0x88B6, 0, 0, bytes(6)))"
        )
        output = crckpt.run("dump", str(program.pid), "job").out
        assert f"does not save the unread data of descriptor 3 of PID {program.pid} (packets)" in output


def test_tree_without_untested_kinds_needs_no_force(crckpt: Crckpt, tmp_path: Path) -> None:
    null = subprocess.DEVNULL
    process = subprocess.Popen(("sleep", "60"), stdin=null, stdout=null, stderr=null, start_new_session=True)
    try:
        crckpt.run("dump", str(process.pid), "job", "--stop")
        process.wait(60)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind", TESTS)
def test_each_tested_kind_has_its_test(kind: str) -> None:
    file, _, name = TESTS[kind].partition("::")
    function, _, case = name.rstrip("]").partition("[")
    tree = ast.parse((ROOT / file).read_text())
    assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert not case or case in {case.name for case in CASES}
