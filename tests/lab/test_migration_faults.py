"""Whatever fails at whatever moment of a move: afterwards exactly one copy runs, or a command that is named brings it.

The moments are the steps of crckpt's own code: each message, write, sync and rename (`crckpt.host.steps`). CI takes
some of them; all of them with `CRCKPT_ALL_FAULTS=1 pytest tests/lab/test_migration_faults.py`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hosts import CannotMakeLab, TwoHosts, talking
from migrations import (
    FIRST,
    STORE,
    continue_stopped,
    end,
    judge,
    migrate_with_fault,
    name_moments,
    record_steps,
    served,
    wait_until_stopped,
)
from namespaces import Namespaces
from two_hosts import in_namespaces

SOURCE = FIRST["source"]
DESTINATION = FIRST["destination"]

# By side: the moments at which what a fault means changes.
CHOSEN = {
    "source": (
        SOURCE,
        f"{SOURCE}>send.Offer:1",
        f"{SOURCE}>sent.Prepare:1",
        f"{SOURCE}>receive.Prepared:1",
        f"{SOURCE}>manifest.create:1",
        f"{SOURCE}>move.committing:1",
        f"{SOURCE}>hold.commit:1",
        f"{SOURCE}>hold.unlink:1",
        f"{SOURCE}>move.ended:1",
        f"{SOURCE}>send.Ended:1",
        f"{SOURCE}>sent.Ended:1",
        f"{SOURCE}>move.done:1",
    ),
    "destination": (
        DESTINATION,
        f"{DESTINATION}>manifest.create:1",
        f"{DESTINATION}>owner.write:1",
        f"{DESTINATION}>move.prepared:1",
        f"{DESTINATION}>send.Prepared:1",
        f"{DESTINATION}>receive.Ended:1",
        f"{DESTINATION}>move.committed:1",
        f"{DESTINATION}>hold.commit:1",
        f"{DESTINATION}>restored.create:1",
        f"{DESTINATION}>move.done:1",
        f"{DESTINATION}>send.Running:1",
    ),
}
STOPPED = [
    ("source", f"{SOURCE}>sent.Prepare:1"),
    ("source", f"{SOURCE}>hold.commit:1"),
    ("source", f"{SOURCE}>send.Ended:1"),
    ("destination", f"{DESTINATION}>move.prepared:1"),
    ("destination", f"{DESTINATION}>receive.Ended:1"),
    ("destination", f"{DESTINATION}>hold.commit:1"),
]
CUTS = {
    "both ways": lambda lab: lab.cut(),
    "to the destination": lambda lab: lab.cut_one_way("source", "destination"),
    "to the source": lambda lab: lab.cut_one_way("destination", "source"),
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Namespaces]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with in_namespaces() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


def all_moments(lab: TwoHosts) -> list[tuple[str, str]]:
    steps = record_steps(lab)
    return [(side, moment) for side, first in FIRST.items() for moment in name_moments(steps[side], first)]


def test_chosen_moments_come(lab: Namespaces) -> None:
    """A test of a moment that never comes would test nothing."""
    found = all_moments(lab)
    assert [
        (side, moment) for side, moments in CHOSEN.items() for moment in moments if (side, moment) not in found
    ] == []


@pytest.mark.parametrize(("side", "moment"), [(side, moment) for side, moments in CHOSEN.items() for moment in moments])
def test_killed(lab: Namespaces, side: str, moment: str) -> None:
    with served(lab) as pid:
        done = end(migrate_with_fault(lab, pid, side, f"CRCKPT_KILL_AT={moment}"))
        assert done.status != 0 or side == "destination"
        judge(lab, str(done))


@pytest.mark.parametrize(("side", "moment"), STOPPED)
def test_stopped(lab: Namespaces, side: str, moment: str) -> None:
    with served(lab) as pid:
        process = migrate_with_fault(lab, pid, side, f"CRCKPT_STOP_AT={moment}")
        continue_stopped(lab, side)
        judge(lab, str(end(process)))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("side", "moment"), STOPPED)
def test_link_cut(lab: Namespaces, cut: str, side: str, moment: str) -> None:
    with served(lab) as pid:
        process = migrate_with_fault(lab, pid, side, f"CRCKPT_STOP_AT={moment}")
        stopped = wait_until_stopped(lab, side)
        CUTS[cut](lab)
        for one in stopped:
            lab.send_signal(one, signal.SIGCONT)
        said = end(process)
        assert said.status in (0, 21, 30, 31), str(said)
        assert (said.status == 31) == ("crckpt migrate --resume" in said.err), str(said)
        lab.heal()
        judge(lab, str(said))


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(
    ("side", "moment"),
    [
        ("destination", f"{DESTINATION}>send.Prepared:1"),
        ("source", f"{SOURCE}>receive.Prepared:1"),
        ("source", f"{SOURCE}>hold.commit:1"),
        ("source", f"{SOURCE}>move.ended:1"),
        ("destination", f"{DESTINATION}>receive.Ended:1"),
        ("destination", f"{DESTINATION}>hold.commit:1"),
    ],
)
def test_the_client_stays_connected(lab: Namespaces, version: int, side: str, moment: str) -> None:
    """Built over there or not, committed or not: its one connection goes on where the program does."""
    net = f"{lab.services[version]}@{lab.device}"
    try:
        with served(lab, "--memory", "4", address=lab.service(version)) as pid, talking(lab, version) as client:
            client.wait_for_replies()
            options = ("--tcp", "keep", "--move-ip", net)
            done = end(migrate_with_fault(lab, pid, side, f"CRCKPT_KILL_AT={moment}", options=options))
            host = judge(lab, str(done))
            report = client.wait_for_replies()
            assert (report["wrong"], report["ended"]) == (None, None), f"{report}\n{done}"
            assert report["hosts"][-1] == host
            assert client.check()["memory"] == "intact"
    finally:
        lab.bring_service_back(version)


@pytest.mark.parametrize("side", FIRST)
def test_full_disk(lab: Namespaces, side: str) -> None:
    """No space is left in the store of a side at any of its writes: the tree runs on at the source."""
    with served(lab, "--memory", "8") as pid:
        lab.run(side, "mount", "-t", "tmpfs", "-o", "size=2m", "store", STORE)
        try:
            done = end(migrate_with_fault(lab, pid, side))
            assert done.status in (10, 21, 24, 30), str(done)
            assert judge(lab, str(done)) == "source"
        finally:
            lab.run(side, "umount", "--lazy", STORE)


def test_restore_fails(lab: Namespaces) -> None:
    """Another process takes the PID over there after the gate: the tree runs on at the source."""
    with served(lab) as pid:
        process = migrate_with_fault(lab, pid, "destination", f"CRCKPT_STOP_AT={DESTINATION}")
        stopped = wait_until_stopped(lab, "destination")
        # In a lab's own PID namespace nobody else starts anything.
        lab.run(
            "destination", "sh", "-c", f"echo {pid - 1} > /proc/sys/kernel/ns_last_pid; sleep 1000 >/dev/null 2>&1 &"
        )
        try:
            for one in stopped:
                lab.send_signal(one, signal.SIGCONT)
            done = end(process)
            assert done.status == 30
            assert judge(lab, str(done)) == "source"
        finally:
            lab.end("sleep", "destination")


@pytest.mark.skipif(not os.environ.get("CRCKPT_ALL_FAULTS"), reason="takes some 15 minutes: CRCKPT_ALL_FAULTS=1")
def test_killed_at_every_moment(lab: Namespaces) -> None:
    found = all_moments(lab)
    wrong = []
    for side, moment in found:
        with served(lab) as pid:
            done = end(migrate_with_fault(lab, pid, side, f"CRCKPT_KILL_AT={moment}"))
            try:
                judge(lab, str(done))
            except AssertionError as error:
                wrong.append(f"{side} {moment}: {error}")
    assert len(found) > 150
    assert wrong == []
