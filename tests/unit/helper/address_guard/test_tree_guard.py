"""The guard of a move without addresses ends what crckpt and CRIU leave when both are killed; else it does nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from crckpt.helper.address_guard.client import guarded_addresses
from crckpt.host import proc
from crckpt.model import MoveId

MOVE = MoveId("0123456789abcdef")
PROGRAM_WITH_AN_OPEN_LOG = "import sys, time\nfile = open(sys.argv[1], 'a')\nprint(flush=True)\ntime.sleep(1000)"


@pytest.mark.parametrize("is_kept", [False, True], ids=["crckpt is killed", "the tree runs"])
def test_address_guard_ends_a_tree_whose_restore_is_unfinished(tmp_path: Path, is_kept: bool) -> None:
    log = tmp_path / "restore.log"
    programs = []
    try:
        for _ in range(2):
            program = subprocess.Popen(
                (sys.executable, "-c", PROGRAM_WITH_AN_OPEN_LOG, log), stdout=subprocess.PIPE, cwd=tmp_path
            )
            programs.append(program)
            assert program.stdout is not None
            assert program.stdout.readline() == b"\n"
        builder, root = programs
        process = proc.read_process(root.pid)
        assert process is not None
        with guarded_addresses((), MOVE) as guard:
            guard.claim()
            guard.expect(proc.identify_live_root(process, builder.pid))
            builder.kill()
            builder.wait()
            if is_kept:
                assert guard.release() == guard.keep() == ""
            # The end of the block closes the guard's socket, as the death of crckpt does, and waits for the guard.
        assert root.poll() == (None if is_kept else -9) or root.wait() == -9
        assert (root.poll() is None) == is_kept
    finally:
        for program in programs:
            program.kill()
            program.communicate()


def test_move_succeeds_although_its_address_guard_was_killed(tmp_path: Path) -> None:
    process = proc.read_process(1)
    assert process is not None
    with guarded_addresses((), MOVE) as guard:
        subprocess.run(["kill", "-9", str(guard.guard)], check=True)
        guard.claim()
        guard.expect(proc.identify_live_root(process))
        assert guard.release() == guard.keep() == ""
