"""`migrate --list`, `list`, `show`, `rm` and `gc` for a job during and after a move."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import CommandLine
from image_sets import described, of_pages, store
from msgspec.structs import replace
from recorded_moves import PEER, STATES, ended_root, live_root, record_move

from crckpt.cli.completion import complete
from crckpt.model import JobName
from crckpt.store import Checkpoint, Repository
from crckpt.store.layout import move_name
from crckpt.store.move_states import Side, State

USAGE = 2
REFUSED = 24
UNUSABLE = 10

# By side and state, once the crckpt of the record has died and its tree has ended: where the program runs, and on
# which side the next command is typed.
STATUS: dict[tuple[Side, State], tuple[Side | None, Side | None]] = {
    ("source", "copying"): ("source", None),
    ("source", "handing-over"): ("source", None),
    ("source", "committing"): (None, "source"),
    ("source", "ended"): (None, "source"),
    ("source", "done"): ("destination", None),
    ("source", "aborted"): ("source", None),
    ("destination", "receiving"): ("source", None),
    ("destination", "prepared"): (None, "source"),
    ("destination", "committed"): (None, "destination"),
    ("destination", "done"): ("destination", None),
    ("destination", "aborted"): ("source", None),
}
UNFINISHED = [key for key, (runs_on, _) in STATUS.items() if runs_on is None]
MOVED_AWAY = {("source", "done"), ("destination", "aborted"), ("destination", "receiving")}


@pytest.mark.parametrize(("side", "state"), STATES)
def test_move_status_names_the_host_and_the_next_command(
    command_line: CommandLine,
    repository: Repository,
    checkpoints: tuple[Checkpoint, Checkpoint],
    side: Side,
    state: State,
) -> None:
    ended = ended_root()
    move = record_move(repository, side, state, checkpoints[1], root=ended)
    runs_on, next_on = STATUS[side, state]
    (found,) = command_line.result("migrate", "--list")["moves"]
    command = f"crckpt migrate --resume {move.id}" if next_on else ""
    assert (found["runs_on"], found["next_on"], found["next_command"]) == (runs_on, next_on, command)
    assert (found["id"], found["job"], found["side"], found["peer"]) == (move.id, "job", side, PEER)
    assert (found["crckpt_pid"], found["checkpoint"]) == (None, checkpoints[1].id)
    assert found["is_over"] == (runs_on is not None)
    text = command_line.run("migrate", "--list")
    assert text.startswith(f"{move.id}  ")
    undecided = {"ended": "has ended here", "prepared": f"only {PEER} knows"}.get(state, "")
    here = f"it ran here as PID {ended.pid}, which has ended"
    assert {None: undecided, side: here}.get(runs_on, f"it runs on {PEER}") in text
    if next_on:
        where = "" if next_on == side else f" on {PEER}"
        assert text.endswith(f"\n  hint: finish the move{where}: {command}\n")


def test_migrate_list_shows_a_move_in_progress(command_line: CommandLine, repository: Repository) -> None:
    record_move(repository, "source", "handing-over", alive=True)
    (found,) = command_line.result("migrate", "--list")["moves"]
    assert (found["runs_on"], found["crckpt_pid"], found["next_command"]) == (None, os.getpid(), "")
    assert f"crckpt (PID {os.getpid()}) is moving it" in command_line.run("migrate", "--list")


def test_aborted_move_lists_what_the_destination_keeps(command_line: CommandLine, repository: Repository) -> None:
    move = record_move(repository, "source", "aborted", is_settled=False)
    (found,) = command_line.result("migrate", "--list")["moves"]
    assert (found["runs_on"], found["next_on"]) == ("source", "source")
    text = command_line.run("migrate", "--list")
    assert "it runs here" in text
    assert f"  hint: remove what the other host keeps of it: crckpt migrate --resume {move.id}" in text


def test_migrate_list_shows_unreadable_records(command_line: CommandLine, repository: Repository) -> None:
    assert command_line.run("migrate", "--list") == "no job was moved to or from this store\n"
    record_move(repository, "source", "done")
    path = repository.root / move_name(JobName("job"))
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    text = command_line.run("migrate", "--list")
    assert text.startswith("the record of the move of job cannot be read")
    assert f"remove the file {path}" in text
    result = command_line.result("migrate", "--list")
    assert (result["moves"], [bad["job"] for bad in result["unreadable"]]) == ([], ["job"])


@pytest.mark.parametrize(("side", "state"), STATES)
def test_list_marks_checkpoints_of_a_moved_program_with_the_host(
    command_line: CommandLine,
    repository: Repository,
    recordings: tuple[Checkpoint, Checkpoint],
    side: Side,
    state: State,
) -> None:
    """The mark is short and has the host's name."""
    first, second = recordings
    move = record_move(repository, side, state, first, root=ended_root())
    if (side, state) in MOVED_AWAY:
        # Later checkpoints are of a program that ran here again.
        marks = [f"(moved to {PEER})" if side == "source" else f"(runs on {PEER})", ""]
    elif (side, state) in UNFINISHED:
        marks = [f"(unfinished move to {PEER})" if side == "source" else f"(unfinished move here from {PEER})"] * 2
    else:
        marks = ["", ""]
    _, *lines = command_line.run("list").splitlines()
    entries = command_line.result("list")["checkpoints"]
    for checkpoint, mark, line, entry in zip((first, second), marks, lines, entries, strict=True):
        assert line.startswith(checkpoint.short_id)
        assert mark in line
        assert (PEER in line) == bool(mark)
        shown = command_line.result("show", checkpoint.id)["move"]
        assert entry["move"] == shown
        assert (shown and shown["id"]) == (move.id if mark else None)
    assert ("move " in command_line.run("show", first.id)) == bool(marks[0])


def test_list_marks_checkpoints_of_a_move_in_progress(
    command_line: CommandLine, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    record_move(repository, "source", "copying", checkpoints[0], alive=True)
    assert command_line.run("list").count(f"(being moved to {PEER})") == 2


@pytest.mark.parametrize(("side", "state"), STATES)
def test_rm_keeps_checkpoints_of_an_unfinished_move(
    command_line: CommandLine,
    repository: Repository,
    checkpoints: tuple[Checkpoint, Checkpoint],
    side: Side,
    state: State,
) -> None:
    first, second = checkpoints
    move = record_move(repository, side, state, second, root=ended_root())
    if (side, state) not in UNFINISHED:
        command_line.run("rm", "job", "--all")
        assert repository.checkpoints() == ()
        return
    for words in (["job"], ["job", "--all"], [second.id, "--dry-run"], ["job", "--yes"]):
        output = command_line.run("rm", *words, status=REFUSED)
        assert f"nothing was removed: {second.short_id} is needed to move job" in output
        where = f", on {PEER}" if STATUS[side, state][1] != side else ""
        assert f"finish the move first{where}: crckpt migrate --resume {move.id}" in output
    assert repository.checkpoints() == checkpoints
    command_line.run("rm", first.id)
    command_line.run("gc")
    command_line.run("verify", second.id)
    assert (repository.root / move_name(JobName("job"))).exists()


def test_rm_keeps_the_rounds_of_a_move(
    command_line: CommandLine, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    """The next round counts from the rounds. Older checkpoints are not needed."""
    first, second = checkpoints
    began = second.created + timedelta(microseconds=1)
    record_move(repository, "source", "copying", alive=True, began=began)
    taken = store(repository, tmp_path, of_pages(7), described(created=began))
    output = command_line.run("rm", "job", status=REFUSED)
    assert f"wait until crckpt (PID {os.getpid()}) has moved it" in output
    command_line.run("rm", first.id, second.id)
    assert repository.checkpoints() == (taken,)


def test_rm_refuses_only_the_job_whose_move_record_is_damaged(
    command_line: CommandLine, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    other = store(repository, tmp_path, of_pages(7), described("other"))
    record_move(repository, "source", "done", checkpoints[1])
    path = repository.root / move_name(JobName("job"))
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    assert f"remove the file {path}" in command_line.run("rm", "job", status=UNUSABLE)
    command_line.run("rm", other.id)
    assert repository.checkpoints() == checkpoints


def test_rm_ignores_a_program_that_runs_on_another_host(
    command_line: CommandLine, repository: Repository, tmp_path: Path
) -> None:
    """The move has ended the program on this host, as dump --stop does."""
    moved = store(repository, tmp_path, of_pages(1), replace(described(), stopped=True))
    command_line.run("rm", "job", status=REFUSED)
    record_move(repository, "source", "done", moved)
    command_line.run("rm", "job")
    assert repository.checkpoints() == ()


def test_rm_asks_about_a_program_stopped_after_a_move(
    command_line: CommandLine, repository: Repository, tmp_path: Path
) -> None:
    moved = store(repository, tmp_path, of_pages(1), replace(described(), stopped=True))
    record_move(repository, "source", "done", moved)
    later = described(created=datetime.now(UTC) + timedelta(seconds=1))
    store(repository, tmp_path, of_pages(2), replace(later, stopped=True))
    assert "has the last state" in command_line.run("rm", "job", status=REFUSED)


def test_rm_is_allowed_during_a_move_if_the_tree_still_runs(
    command_line: CommandLine, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]
) -> None:
    with live_root() as root:
        record_move(repository, "source", "committing", checkpoints[1], root=root)
        command_line.run("rm", "job")
        assert repository.checkpoints() == checkpoints[:1]


def test_migrate_with_a_pid_in_place_of_the_host_is_a_usage_error(command_line: CommandLine) -> None:
    output = command_line.run("migrate", "1", str(os.getpid()), status=USAGE)
    assert f"{os.getpid()} is a PID, not a host" in output


@pytest.mark.parametrize(
    ("words", "needed"),
    [(["--source-is-gone"], "--resume"), (["1", "node2", "--abort-over"], "--max-downtime"), (["1"], "a host")],
)
def test_migrate_refuses_options_without_the_option_that_they_need(
    command_line: CommandLine, words: list[str], needed: str
) -> None:
    assert needed in command_line.run("migrate", *words, status=USAGE)


def test_completion_of_migrate_resume_offers_finished_moves_only_if_none_is_unfinished(repository: Repository) -> None:
    """If all moves are finished, the completion offers all of them."""
    words = ("migrate", "--store", str(repository.root), "--resume", "")
    assert list(complete.complete(words)) == ["words"]
    over = record_move(repository, "source", "done", job="one")
    assert list(complete.complete(words)) == ["words", f"{over.id}\tone, {PEER}"]
    unfinished = record_move(repository, "source", "ended", job="two")
    assert list(complete.complete(words)) == ["words", f"{unfinished.id}\ttwo, {PEER}"]


def test_completion_of_migrate_offers_hosts_of_the_ssh_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ("migrate", "1", "root@n")
    assert list(complete.complete(words)) == ["words"]
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text('Host node1 node2 *.lan\nhost=near\nHostName no\nHost "name" far\n\n')
    found = [f"root@{name}\t" for name in ("node1", "node2", "near", "name")]
    assert list(complete.complete(words)) == ["words", *found]
