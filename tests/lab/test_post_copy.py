"""`crckpt migrate --lazy` when something ends it before all memory is there: one copy in the end, as it was frozen."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hosts import CannotMakeLab, Process, TwoHosts, wait_for
from migrations import SERVER, arrange, copies, end, find_moves, judge, migrate_words, served, wait_until_settled
from two_hosts import two_hosts

SIDES = ("source", "destination")


@pytest.fixture(scope="module")
def lab() -> Iterator[TwoHosts]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with two_hosts() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


@contextmanager
def moving(lab: TwoHosts) -> Iterator[tuple[subprocess.Popen[str], Process]]:
    """A move with --lazy whose program runs on the destination, and whose memory is still being sent."""
    for side in SIDES:
        arrange(lab, side)
    with served(lab, "--memory", "48") as pid:
        lab.slow("20mbit")
        move = lab.open("source", *migrate_words(pid, "--lazy"))
        try:
            wait_for(lambda: move.poll() is not None or is_there(lab), "the program to run there")
            assert move.poll() is None, end(move)
            (moved,) = copies(lab)
            yield move, moved
        finally:
            if move.poll() is None:
                move.kill()
                move.communicate()


def is_there(lab: TwoHosts) -> bool:
    """Whether the program runs on the destination, and its record says that the source is still needed."""
    states = {str(move["state"]) for move in find_moves(lab, "destination")}
    return states == {"committed"} and [process.host for process in copies(lab)] == ["destination"]


def find_helpers(lab: TwoHosts, name: str) -> list[Process]:
    """Find processes of the destination by a word of their command."""
    return [process for process in lab.list_processes("destination") if process.is_live and name in process.command]


def test_a_lost_connection_ends_it_and_brings_it_back(lab: TwoHosts) -> None:
    """The program ends there, because it would miss memory; it starts again there once the link is back."""
    with moving(lab) as (move, moved):
        lab.cut()
        wait_for(lambda: not any(process.is_same(moved) for process in lab.find(SERVER, "destination")), "its end")
        lab.heal()
        done = end(move, 120)
        assert "not all of its memory" in done.out + done.err
        assert judge(lab, done.out + done.err) == "destination"
        (now,) = copies(lab)
        assert not now.is_same(moved)


@pytest.mark.parametrize("name", ["receive", "crckpt.ops.lazy.server"])
def test_a_killed_crckpt_ends_it_and_brings_it_back(lab: TwoHosts, name: str) -> None:
    with moving(lab) as (move, moved):
        # The last one is the helper; its parent, of the same words, is its guard.
        lab.send_signal(find_helpers(lab, name)[-1], signal.SIGKILL)
        wait_for(lambda: not any(process.is_same(moved) for process in lab.find(SERVER, "destination")), "its end")
        lab.heal()
        done = end(move, 120)
        assert judge(lab, done.out + done.err) == "destination"


def test_a_killed_source_leaves_the_way_back(lab: TwoHosts) -> None:
    """crckpt is killed on the source: its record brings the program back."""
    with moving(lab) as (move, moved):
        (crckpt,) = [
            process
            for process in lab.list_processes("source")
            if process.is_live and "migrate" in process.command and "python" in process.command[0]
        ]
        lab.send_signal(crckpt, signal.SIGKILL)
        wait_for(lambda: not any(process.is_same(moved) for process in lab.find(SERVER, "destination")), "its end")
        end(move, 60)
        lab.heal()
        wait_until_settled(lab)
        assert [str(found["state"]) for found in find_moves(lab, "source")] == ["ended"]
        assert judge(lab, "") == "destination"
