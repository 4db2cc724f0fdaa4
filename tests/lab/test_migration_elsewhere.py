"""A move is aborted with its destination in doubt, and the program moves elsewhere: the first host is remembered.

Another store on the destination is the other host.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from faults import SIDES, strike
from hosts import CannotMakeLab, wait_for
from migrations import (
    FIRST,
    JOB,
    copies,
    crckpts,
    end,
    find_moves,
    is_criu,
    migrate_with_fault,
    served,
    wait_until_settled,
    wait_until_stopped,
)
from namespaces import Namespaces
from two_hosts import in_namespaces

MOMENT_IN_DOUBT = f"{FIRST['destination']}>send.Prepared:1"
OTHER_STORE = "/var/lib/other"
RESUME = ("crckpt", "migrate", "--resume")


@pytest.fixture(scope="module")
def lab() -> Iterator[Namespaces]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with in_namespaces() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


@contextmanager
def served_with_other(lab: Namespaces) -> Iterator[int]:
    """The server, and another store on the destination."""
    with served(lab) as pid:
        try:
            yield pid
        finally:
            lab.run("destination", "rm", "-rf", OTHER_STORE)


def migrate_elsewhere(lab: Namespaces, pid: int) -> None:
    lab.run("source", "crckpt", "migrate", str(pid), "destination", JOB, "--remote-store", OTHER_STORE)
    (process,) = copies(lab)
    assert (process.host, process.pid) == ("destination", pid)


def check_settled(lab: Namespaces, move: str) -> None:
    """The source reports the abort, whatever has become of the job; then nothing can make a second copy."""
    (old, _) = find_moves(lab, "source")
    assert (old["id"], old["state"], old["runs_on"], old["next_on"]) == (move, "aborted", None, "source")
    assert old["next_command"] == f"crckpt migrate --resume {move}"
    listed = lab.run("source", "crckpt", "migrate", "--list").out
    assert f"  hint: remove what the other host keeps of it: crckpt migrate --resume {move}\n" in listed
    output = lab.run("source", *RESUME, move).out
    assert output == f"the move of {JOB} to destination was aborted, and nothing is left of it there\n"
    assert [(found["side"], found["state"]) for found in find_moves(lab, "source")] == [("source", "done")]
    assert [(found["id"], found["state"]) for found in find_moves(lab, "destination")] == [(move, "aborted")]
    lab.run("destination", *RESUME, move, "--source-is-gone")
    assert len(copies(lab)) == 1


def test_source_remembers_a_host_of_which_it_does_not_know_the_outcome(lab: Namespaces) -> None:
    with served_with_other(lab) as pid:
        output = str(strike(lab, pid, "cut both ways", ("destination", MOMENT_IN_DOUBT)))
        wait_until_settled(lab)
        (move,) = find_moves(lab, "source")
        assert (move["state"], move["next_on"]) == ("aborted", "source"), output
        assert [found["state"] for found in find_moves(lab, "destination")] == ["prepared"]
        migrate_elsewhere(lab, pid)
        refused = lab.run("destination", *RESUME, str(move["id"]), status=31)
        assert f"on source: crckpt migrate --resume {move['id']}" in refused.err
        check_settled(lab, str(move["id"]))


def test_source_reports_a_crckpt_that_hangs_at_the_destination(lab: Namespaces) -> None:
    """The source does not wait until it ends, and the program keeps running. The user kills it to settle the move."""
    with served(lab) as pid:
        process = migrate_with_fault(lab, pid, "destination", f"CRCKPT_STOP_AT={MOMENT_IN_DOUBT}")
        (hanging,) = wait_until_stopped(lab, "destination", process)
        assert end(process).status == 30
        # CRIU ends the tree that it has built without crckpt.
        wait_for(lambda: not any(map(is_criu, crckpts(lab, "destination"))), "CRIU to end")
        (process_here,) = copies(lab)
        assert (process_here.host, process_here.pid) == ("source", pid)
        (move,) = find_moves(lab, "source")
        refused = lab.run("source", *RESUME, str(move["id"]), status=24)
        assert f"crckpt (PID {hanging.pid}) is still moving {JOB}" in refused.err
        assert f"on destination: try again in a moment; if it hangs: kill -9 {hanging.pid}" in refused.err
        lab.send_signal(hanging, signal.SIGKILL)
        wait_for(lambda: not crckpts(lab, "destination"), "the end of crckpt")
        output = lab.run("source", *RESUME, str(move["id"])).out
        assert output == f"{JOB} runs here as PID {pid}: the move was aborted\n"
        assert [found["state"] for found in find_moves(lab, "destination")] == ["aborted"]


def test_next_move_to_a_host_settles_the_interrupted_one(lab: Namespaces) -> None:
    with served_with_other(lab) as pid:
        strike(lab, pid, "cut both ways", ("destination", MOMENT_IN_DOUBT))
        wait_until_settled(lab)
        lab.run("source", "crckpt", "migrate", str(pid), "destination", JOB)
        assert [len(find_moves(lab, host)) for host in SIDES] == [1, 1]
        (process,) = copies(lab)
        assert process.host == "destination"
