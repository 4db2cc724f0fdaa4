"""Users of a number as PID, thread, group or session."""

from __future__ import annotations

import os

from small_programs import WAIT_STATEMENTS, free_pid, program, read

from crckpt.host import proc


def test_user_of_an_id_is_the_process_with_that_pid_before_members_of_its_group() -> None:
    with program(f"pid = os.fork()\nif pid == 0: sys.stdin.read(); os._exit(0)\n{WAIT_STATEMENTS}") as process:
        (child,) = proc.children(process.pid)
        (owner,) = proc.find_id_users([process.pid])
        assert (owner.role, owner.pid, owner.number) == ("PID", process.pid, process.pid)
        os.kill(child, 9)


def test_process_group_keeps_its_id_in_use_after_its_leader_ended() -> None:
    """The kernel does not reuse the number, although no process has it."""
    code = "pid = os.fork()\nif pid: print(pid, flush=True); sys.exit()\nsys.stdin.read()"
    with program(code) as process:
        process.wait()
        assert proc.read_process(process.pid) is None
        (owner,) = proc.find_id_users([process.pid])
        assert owner.role == "group"
        assert read(owner.pid).pgid == process.pid
        os.kill(owner.pid, 9)


def test_pid_that_is_free_is_used_by_nobody() -> None:
    assert proc.find_id_users([free_pid()]) == ()
