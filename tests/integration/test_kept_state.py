"""A restore sets state that CRIU loses, or the dump reports that it cannot."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest
from command import Crckpt
from stopped_trees import JOB, ObstructedCriu, foreground, program, restored_by, stopped
from trees import Tree, started, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

REFUSED = 24
EACH_KIND_OF_RESTORE = pytest.mark.parametrize("how", ["detached", "pid namespace"])


def look(tree: Tree) -> dict[str, Any]:
    """Let the program report all the state that it keeps."""
    (tree.workdir / "look").touch()
    wait_for((tree.workdir / "found.json").exists, 60, "the program to look")
    found: dict[str, Any] = json.loads((tree.workdir / "found.json").read_text())
    return found


@EACH_KIND_OF_RESTORE
def test_directories_root_and_umask_of_a_single_thread_are_restored(crckpt: Crckpt, how: str) -> None:
    with (
        stopped(crckpt, program("kept_state", "thread-directories", "thread-root")) as tree,
        restored_by(crckpt, how) as warnings,
    ):
        found = look(tree)
        assert found["thread-directories"]["thread"] == [str(tree.workdir / "own"), "/", "0027"]
        assert found["thread-directories"]["first"] == [str(tree.workdir), "/", "0022"]
        assert found["thread-root"]["thread"] == {"outside": False, "inside": True, "there": True}
        assert found["thread-root"]["first"] == {"outside": True, "inside": False, "there": False}
        assert warnings == []


def test_restore_is_refused_if_the_root_directory_of_a_thread_is_missing(crckpt: Crckpt) -> None:
    """Without this check, the thread would run outside of its root directory."""
    with stopped(crckpt, program("kept_state", "thread-root")) as tree:
        (tree.workdir / "jail").rename(tree.workdir / "elsewhere")
        error = crckpt.run("restore", JOB, "--detach", status=23).err
        assert "its own working directory, root and umask" in error
        assert "--allow-weaker" in error
        assert not Path(f"/proc/{tree.pid}").exists()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("thread-descriptors", "table of descriptors"),
        ("thread-network", "network namespace"),
        ("thread-host-name", "UTS namespace"),
    ],
)
def test_dump_of_a_thread_with_its_own_namespace_or_descriptor_table_is_refused(
    crckpt: Crckpt, name: str, what: str
) -> None:
    with started(program("kept_state", name)) as tree:
        for words in (("doctor", str(tree.pid)), ("dump", str(tree.pid), "--dry-run"), ("dump", str(tree.pid))):
            result = crckpt.run(*words, status=REFUSED)
            assert f"of process {tree.pid} (python3) has its own {what}" in result.out + result.err
        tree.wait_growth(tree.counters())


@EACH_KIND_OF_RESTORE
def test_restored_unix_socket_has_the_name_to_which_it_was_renamed(crckpt: Crckpt, how: str) -> None:
    """The first name did not exist at the dump, and does not exist after the restore."""
    with stopped(crckpt, program("kept_state", "renamed-socket")) as tree, restored_by(crckpt, how) as warnings:
        assert look(tree)["renamed-socket"] == [False, "name.tmp"]
        assert warnings == []


def test_renamed_socket_does_not_take_a_name_in_use(crckpt: Crckpt) -> None:
    with stopped(crckpt, program("kept_state", "renamed-socket")) as tree:
        (tree.workdir / "name").unlink()
        (tree.workdir / "name").write_text("another file")
        warnings = crckpt.run("restore", JOB, "--detach", "--json").document["result"]["warnings"]
        assert "another file has the name name" in " ".join(warnings)
        assert (tree.workdir / "name").read_text() == "another file"


@EACH_KIND_OF_RESTORE
def test_restored_wall_clock_timer_expires_at_the_set_time(crckpt: Crckpt, how: str) -> None:
    with stopped(crckpt, program("kept_state", "wall-clock-timer")) as tree, restored_by(crckpt, how):
        found = look(tree)["wall-clock-timer"]
        assert abs(found["late"]) < found["paused"] / 4
        assert found["interval"] == 7


def test_running_dump_keeps_the_time_of_a_timer(crckpt: Crckpt) -> None:
    with started(program("kept_state", "wall-clock-timer")) as tree:
        crckpt.run("dump", str(tree.pid), JOB)
        tree.end()
        tree.wait_gone()
        with restored_by(crckpt, "detached"):
            found = look(tree)["wall-clock-timer"]
            assert abs(found["late"]) < found["paused"] / 4


AT_0X1000, NOT_PRESENT = "ff0f001000f34000", "ffff00000073cf00"
"""Entries of the local descriptor table, in the order of their bytes."""


def test_segments_of_the_local_descriptor_table_are_restored(crckpt: Crckpt) -> None:
    """Wine uses such segments.

    Entry 3 has base 0x1000, entry 5 is marked as not present: both come back with the same 8 bytes.
    """
    with stopped(crckpt, program("kept_state", "segments")) as tree, restored_by(crckpt, "detached") as warnings:
        assert look(tree)["segments"] == ["", "", "", AT_0X1000, "", NOT_PRESENT]
        assert warnings == []


@EACH_KIND_OF_RESTORE
def test_descriptors_send_signals_of_input_again(crckpt: Crckpt, how: str) -> None:
    """The kernel ignores O_ASYNC when CRIU opens a path, and refuses it when CRIU makes an inotify."""
    with stopped(crckpt, program("kept_state", "signal-driven")) as tree, restored_by(crckpt, how) as warnings:
        assert look(tree)["signal-driven"] == dict.fromkeys(("master", "slave", "pipe", "inotify"), True)
        assert warnings == []


TERMINAL = {"output": "out\r\nin^\b^C\r\n", "input": "in\x03\n", "settings": True}


def test_unread_terminal_bytes_are_restored(crckpt: Crckpt) -> None:
    with stopped(crckpt, program("kept_state", "terminal")) as tree, restored_by(crckpt, "detached"):
        assert look(tree)["terminal"] == TERMINAL


def test_terminal_opened_exclusively_is_still_exclusive_after_a_restore(crckpt: Crckpt) -> None:
    with stopped(crckpt, program("kept_state", "exclusive-terminal")) as tree, restored_by(crckpt, "detached"):
        assert look(tree)["exclusive-terminal"] == 1


def test_dump_keeps_unread_bytes_of_a_terminal(crckpt: Crckpt) -> None:
    """CRIU reads the bytes and writes them back."""
    with started(program("kept_state", "terminal")) as tree:
        crckpt.run("dump", str(tree.pid), JOB)
        assert look(tree)["terminal"] == TERMINAL


@EACH_KIND_OF_RESTORE
def test_restored_terminal_that_was_hung_up_is_hung_up(crckpt: Crckpt, how: str) -> None:
    with stopped(crckpt, program("kept_state", "hung-up-terminal")) as tree, restored_by(crckpt, how) as warnings:
        assert look(tree)["hung-up-terminal"] == [True, False, False]
        assert warnings == []


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("waiting-datagram", "the sender's address of messages that it has not read yet"),
        ("empty-datagram", "an empty message that it has not read yet"),
        ("urgent-byte", "which byte was sent out of band (MSG_OOB)"),
        ("pending-error", "an error that the program has not been told yet"),
        ("moved-socket", "has another name now"),
        ("exit-signal", "sends its parent signal 10 when it ends"),
    ],
)
def test_dump_with_stop_refuses_losses_that_a_plain_dump_only_reports(crckpt: Crckpt, name: str, what: str) -> None:
    """doctor and a plain dump report the loss.

    `dump --stop` refuses and the program keeps running; with --force it ends.
    """
    words = ("--tcp", "close") if name == "pending-error" else ()
    with started(program("kept_state", name)) as tree:
        doctor = crckpt.run("doctor", str(tree.pid), status=REFUSED).out
        assert f"PID {tree.pid} can be checkpointed, but not without loss" in doctor
        assert what in doctor
        dumped = crckpt.run("dump", str(tree.pid), JOB, "--json", *words).document["result"]
        assert what in " ".join(dumped["warnings"])
        error = crckpt.run("dump", str(tree.pid), JOB, "--stop", *words, status=REFUSED).err
        assert what in error
        assert "--force" in error
        tree.wait_growth(tree.counters())
        stopped_by_force = crckpt.run("dump", str(tree.pid), JOB, "--stop", "--force", "--json", *words)
        assert what in " ".join(stopped_by_force.document["result"]["warnings"])
        tree.wait_gone()
        with restored_by(crckpt, "detached"):
            tree.wait_growth(tree.counters())


def test_message_queued_behind_the_first_is_found_in_the_freeze(crckpt: Crckpt) -> None:
    """Before the freeze, only the first message can be examined without side effects."""
    with started(program("kept_state", "second-datagram")) as tree:
        assert "sender's address" not in crckpt.run("doctor", str(tree.pid)).out
        error = crckpt.run("dump", str(tree.pid), JOB, "--stop", status=REFUSED).err
        assert "the sender's address of messages that it has not read yet" in error
        tree.wait_growth(tree.counters())
        assert look(tree)["second-datagram"] == ["first", "second", "client"]


def test_unread_output_of_an_ended_program_is_reported(crckpt: Crckpt) -> None:
    """The program at the other end has ended."""
    with started(program("kept_state", "last-words")) as tree:
        words = crckpt.run("dump", str(tree.pid), JOB, "--json").document["result"]["warnings"]
        assert "does not save the unread data" in " ".join(words)
        assert "(terminal)" in " ".join(words)
        assert look(tree)["last-words"] == "bye\r\n"


def test_dump_warns_of_a_wall_clock_timer_that_may_expire_late(crckpt: Crckpt) -> None:
    with started(program("kept_state", "posix-timer")) as tree:
        words = crckpt.run("dump", str(tree.pid), JOB, "--json").document["result"]["warnings"]
        assert f"process {tree.pid} (python3) has a timer of the wall clock" in " ".join(words)


def test_dump_warns_of_an_open_file_that_never_had_a_name(crckpt: Crckpt) -> None:
    with started(program("kept_state", "unnamed-file")) as tree:
        words = crckpt.run("dump", str(tree.pid), JOB, "--stop", "--json").document["result"]["warnings"]
        assert "O_TMPFILE" in " ".join(words)
        tree.wait_gone()


@EACH_KIND_OF_RESTORE
def test_locks_of_a_mapped_file_are_restored(crckpt: Crckpt, how: str) -> None:
    """CRIU takes the locks, and loses them when it maps the file."""
    with stopped(crckpt, program("kept_state", "locks-of-mapped-file")) as tree, restored_by(crckpt, how):
        assert look(tree)["locks-of-mapped-file"] == [False, True, False, False, True]


def test_lost_lock_that_another_program_takes_fails_the_restore(crckpt: Crckpt, obstructed: ObstructedCriu) -> None:
    """The other program takes the lock before crckpt can take it again."""
    with stopped(crckpt, program("kept_state", "locks-of-mapped-file")) as tree:
        with (
            (tree.workdir / "mapped").open("r+b") as file,
            obstructed.waits(committed=False) as obstacle,
            foreground(crckpt, "--criu", str(obstructed.path)) as front,
        ):
            obstacle.wait_reached()
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 120)
            obstacle.let_go()
            assert front.wait(60) == 23
        crckpt.run("restore", JOB, "--detach")
        assert look(tree)["locks-of-mapped-file"] == [False, True, False, False, True]


@EACH_KIND_OF_RESTORE
def test_reservations_larger_than_memory_are_restored(crckpt: Crckpt, how: str) -> None:
    """CRIU makes all private maps writable at first, which the kernel refuses if they are larger than all memory."""
    with stopped(crckpt, program("kept_state", "reservations")) as tree, restored_by(crckpt, how):
        assert look(tree)["reservations"] == ["used", "\0" * 4, "end"]
