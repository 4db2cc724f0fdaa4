"""After any fault while memory is missing at the destination, a program never continues with wrong memory.

With --lazy it ends, and comes back as it was when it was frozen. With --local-lazy it goes on, or its end is said.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from faults import FAULTS, can_matter, strike_all
from hosts import CannotMakeLab
from migrations import JOB, copies, crckpts, wait_until_settled
from namespaces import Namespaces
from post_copy_faults import (
    FATAL_FAULTS,
    HARMLESS_FAULTS,
    REQUESTS_BEFORE_THE_MOVE,
    LateMove,
    ask,
    count,
    fill,
    find_late_moments,
    moving_unfilled,
    strike_at_late_moment,
    strike_late,
)
from two_hosts import in_namespaces

PARTS = 12


@pytest.fixture(scope="module")
def lab() -> Iterator[Namespaces]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with in_namespaces() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("fault", FATAL_FAULTS)
def test_program_is_restored_as_it_was_frozen_if_a_move_fails_while_its_memory_is_filled(
    lab: Namespaces, fault: str
) -> None:
    output = strike_late(lab, FATAL_FAULTS[fault], ends=True)
    if fault == "cut both ways":
        assert "not all of its memory" in output


@pytest.mark.parametrize("fault", HARMLESS_FAULTS)
def test_program_continues_if_only_the_guard_is_killed_or_the_helper_is_stopped(lab: Namespaces, fault: str) -> None:
    strike_late(lab, HARMLESS_FAULTS[fault], ends=False)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("fault", FAULTS)
def test_program_runs_once_after_a_fault_at_any_step_of_the_end(lab: Namespaces, fault: str, part: int) -> None:
    """The steps are those after the end at the source. The program continues as it was frozen."""
    found = find_late_moments(lab)
    assert len(found) > 100
    moments = [moment for moment in found if can_matter(fault, moment[1])][part::PARTS]
    failed = strike_all(
        {f"{fault} {moment}": partial(strike_at_late_moment, fault=fault, moment=moment) for moment in moments}
    )
    assert failed == []


@pytest.mark.parametrize(
    "strike",
    [
        lambda move: move.signal("destination", signal.SIGKILL),
        lambda move: move.signal_guard(signal.SIGKILL),
    ],
    ids=["crckpt killed", "guard killed"],
)
def test_local_lazy_move_is_filled_after_crckpt_and_guard_were_killed(
    lab: Namespaces, strike: Callable[[LateMove], None]
) -> None:
    """With --local-lazy neither crckpt nor the guard is needed any more."""
    with moving_unfilled(lab) as move:
        strike(move)
        fill(lab)
        wait_until_settled(lab)
        assert (count(lab, "destination"), ask(lab, "destination", "check")) == (
            REQUESTS_BEFORE_THE_MOVE + 1,
            "check intact",
        )


@pytest.mark.parametrize("fault", ["helper killed", "helper and guard killed"])
def test_end_of_a_partly_filled_program_is_reported(lab: Namespaces, fault: str) -> None:
    """With --local-lazy the program is not restarted automatically. `crckpt restore` restores it."""
    with moving_unfilled(lab) as move:
        FATAL_FAULTS[fault](move)
        move.wait_for_end()
        wait_until_settled(lab)
        assert copies(lab) == []
        assert "which has ended" in lab.run("destination", "crckpt", "migrate", "--list").out
        lab.run("source", "crckpt", "restore", JOB, "--detach", status=24)
        lab.run("destination", "crckpt", "restore", JOB, "--detach")
        assert (count(lab, "destination"), ask(lab, "destination", "check")) == (
            REQUESTS_BEFORE_THE_MOVE + 1,
            "check intact",
        )
        assert crckpts(lab, "destination") == []
