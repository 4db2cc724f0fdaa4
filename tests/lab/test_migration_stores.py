"""The stores of both hosts keep what an unfinished move needs, and say so."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hosts import HOSTS, CannotMakeLab, wait_for
from migrations import (
    FIRST,
    JOB,
    STORE,
    arrange,
    copies,
    crckpts,
    end,
    find_moves,
    migrate_with_fault,
    served,
    wait_until_settled,
    wait_until_stopped,
)
from namespaces import Namespaces
from two_hosts import in_namespaces

LOCKED = 11
REFUSED = 24
SIDES = HOSTS[:2]


@pytest.fixture(scope="module")
def lab() -> Iterator[Namespaces]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with in_namespaces() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


@contextmanager
def sleeping(lab: Namespaces) -> Iterator[int]:
    """A program on the source that could run twice there, in two PID namespaces; its job has a checkpoint."""
    try:
        pid = lab.start("source", "sleep", "1000")
        lab.run("source", "crckpt", "dump", str(pid), JOB)
        yield pid
    finally:
        lab.end("sleep")
        for host in SIDES:
            wait_for(lambda host=host: not crckpts(lab, host), f"crckpt to end on the {host}")  # type: ignore[misc]
            lab.run(host, "find", STORE, "-mindepth", "1", "-delete", status=None)


NEW_PIDS = ("crckpt", "restore", JOB, "--detach", "--new-pid-namespace")


@pytest.mark.parametrize(
    ("moment", "status", "message"),
    [
        (FIRST["source"], LOCKED, f"{JOB} is being moved to destination by crckpt (PID"),
        ("move.committing", REFUSED, f"{JOB} is being moved to destination"),
    ],
)
def test_restore_with_new_pids_is_refused_during_a_move(
    lab: Namespaces, moment: str, status: int, message: str
) -> None:
    with sleeping(lab) as pid:
        process = migrate_with_fault(lab, pid, "source", f"CRCKPT_STOP_AT={moment}")
        (stopped,) = wait_until_stopped(lab, "source", process)
        try:
            assert message in lab.run("source", "env", "CRCKPT_LOCK_S=1", *NEW_PIDS, status=status).err
        finally:
            lab.send_signal(stopped, signal.SIGCONT)
            end(process)


@pytest.mark.parametrize("words", [NEW_PIDS, NEW_PIDS[:-1]])
def test_move_is_refused_during_a_restore(lab: Namespaces, words: tuple[str, ...]) -> None:
    """The restore has checked that no move is recorded. A later move could make a second copy."""
    with sleeping(lab) as pid:
        crckpt = arrange(lab, "source", "CRCKPT_STOP_AT=restore-lock.write")
        restore = lab.open("source", crckpt, *words[1:])
        (stopped,) = wait_until_stopped(lab, "source", restore)
        try:
            migrate = ("env", "CRCKPT_LOCK_S=1", "crckpt", "migrate", str(pid), "destination", JOB)
            refused = lab.run("source", *migrate, status=LOCKED)
            assert f"another restore of {JOB} is in progress" in refused.err
            assert [each.host for each in lab.find("sleep")] == ["source"]
        finally:
            lab.send_signal(stopped, signal.SIGCONT)
            end(restore)


def test_list_shows_an_unfinished_move(lab: Namespaces) -> None:
    with served(lab) as pid:
        end(migrate_with_fault(lab, pid, "source", f"CRCKPT_KILL_AT={FIRST['source']}>send.Ended:1"))
        wait_until_settled(lab)
        assert copies(lab) == []
        (here,) = find_moves(lab, "source")
        (move_there,) = find_moves(lab, "destination")
        assert (here["state"], move_there["state"], here["id"]) == ("ended", "prepared", move_there["id"])
        for move in (here, move_there):
            # Both sides name the same command, to be typed on the source.
            assert (move["runs_on"], move["next_on"]) == (None, "source")
            assert move["next_command"] == f"crckpt migrate --resume {here['id']}"
        for host in SIDES:
            for words in (("rm", JOB, "--all", "--yes"), ("restore", JOB, "--detach", "--despite-move")):
                refused = lab.run(host, "crckpt", *words, status=REFUSED)
                assert f"crckpt migrate --resume {here['id']}" in refused.err
                assert ("on source: crckpt" in refused.err) == (host == "destination")
            assert "unfinished move" in lab.run(host, "crckpt", "list").out
            lab.run(host, "crckpt", "gc")
            lab.run(host, "crckpt", "verify", "--all")
        resumed = json.loads(lab.run("source", "crckpt", "migrate", "--resume", str(here["id"]), "--json").out)[
            "result"
        ]
        (process,) = copies(lab)
        assert (process.host, process.pid) == ("destination", resumed["pid"])
        assert (resumed["runs_on"], resumed["next_command"]) == ("destination", "")
        # A program that runs on the other host needs no checkpoint here.
        assert "(moved to destination)" in lab.run("source", "crckpt", "list").out
        lab.run("source", "crckpt", "rm", JOB, "--all")
        assert crckpts(lab, "source") == []


def list_notes(lab: Namespaces) -> list[str | None]:
    """The notes of all checkpoints on the source, oldest first."""
    found = json.loads(lab.run("source", "crckpt", "list", "--json").out)["result"]["checkpoints"]
    return [checkpoint["note"] for checkpoint in sorted(found, key=lambda each: str(each["created"]))]


def test_failed_move_leaves_its_checkpoint_until_the_next_move_succeeds(lab: Namespaces) -> None:
    """The next move counts from the checkpoint of the failed one."""
    with served(lab) as pid:
        words = ("crckpt", "migrate", str(pid), "destination", JOB, "--json")
        failing = ("--address-hook", "test $CRCKPT_MOVE_STEP != prepare")
        failed = lab.run("source", *words, *failing, status=None)
        assert failed.status == 20
        (note,) = list_notes(lab)
        assert note is not None
        assert note.startswith("move to destination, round ")
        lab.run("source", *words, *failing, status=None)
        assert len(list_notes(lab)) == 1
        done = json.loads(lab.run("source", *words).out)["result"]
        assert done["rounds"][0]["raw_bytes"] < done["raw_bytes"] / 2
        assert list_notes(lab) == [None]
        assert [each.host for each in copies(lab)] == ["destination"]


def test_rounds_of_a_killed_crckpt_are_listed(lab: Namespaces) -> None:
    with served(lab) as pid:
        end(migrate_with_fault(lab, pid, "source", "CRCKPT_KILL_AT=send.CheckRestore:2"))
        wait_until_settled(lab)
        assert list_notes(lab) == ["move to destination, round 1", "move to destination, round 2"]
        lab.run("source", "crckpt", "tag", f"{JOB}~1", "mine")
        (move,) = find_moves(lab, "source")
        assert (move["state"], move["runs_on"], move["next_command"]) == ("aborted", "source", "")
        assert find_moves(lab, "destination") == []
        assert [each.host for each in copies(lab)] == ["source"]
        own = "move to destination, round 9"
        lab.run("source", "crckpt", "dump", str(pid), JOB, "--note", own)
        lab.run("source", "crckpt", "migrate", str(pid), "destination", JOB)
        assert list_notes(lab) == ["move to destination, round 1", own, None]


def test_move_to_a_store_that_is_too_small_is_refused_before_copying(lab: Namespaces) -> None:
    lab.run("destination", "sh", "-c", "mkdir -p /srv/small && mount -t tmpfs -o size=8m,mode=755 small /srv/small")
    try:
        with served(lab, "--memory", "64") as pid:
            words = ("crckpt", "migrate", str(pid), "destination", JOB, "--remote-store", "/srv/small/store")
            for more in (("--check",), ()):
                refused = lab.run("source", *words, *more, status=REFUSED).err
                assert "the move needs at least " in refused
                assert "in the store there, /srv/small/store, and only 8.0 MiB are free" in refused
                assert "--remote-store DIR" in refused
            assert list_notes(lab) == []
            lab.run("destination", "sh", "-c", "head -c 9m /dev/zero >/srv/small/zero", status=None)
            full = lab.run("source", *words, status=30).err
            assert "destination: no space is left for the store /srv/small/store" in full
            assert (
                "free space there (crckpt rm, crckpt gc), or use a store on a larger disk: --remote-store DIR" in full
            )
    finally:
        lab.run("destination", "umount", "/srv/small")
