"""After any fault at any step of a move, exactly one copy runs, or the suggested command starts one.

CI takes some moments. All of them take hours, in parts of some minutes, which -k chooses by their fault:
`CRCKPT_EXTENT=hours scripts/test tests/lab/test_migration_faults.py -k "at_every_step and killed"`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial

import pytest
from faults import (
    FAULTS,
    SIDES,
    Moment,
    can_matter,
    check_client,
    find_kinds_before,
    find_moments,
    find_resume_moments,
    kill_resume,
    move_address,
    strike,
    strike_all,
    strike_before,
    strike_connected,
)
from hosts import CannotMakeLab, Process, TwoHosts, talking, wait_for
from migrations import (
    FIRST,
    arrange,
    copies,
    crckpts,
    end,
    find_moves,
    judge,
    migrate_with_fault,
    migrate_words,
    served,
    wait_until_settled,
    wait_until_stopped,
)
from namespaces import Namespaces
from two_hosts import in_namespaces

HOOK_LOG = "/run/hook-log"
SOURCE = FIRST["source"]
DESTINATION = FIRST["destination"]

# For each fault, the moments around which its outcome changes.
MOMENTS_BY_FAULT = {
    "killed": (
        ("source", f"{SOURCE}>hold.unlink:1"),
        ("destination", f"{DESTINATION}>move.prepared:1"),
    ),
    "both killed": (
        ("destination", f"{DESTINATION}>send.Prepared:1"),
        ("destination", f"{DESTINATION}>hold.commit:1"),
    ),
    "stopped": (("source", f"{SOURCE}>hold.commit:1"),),
    "interrupted": (("source", f"{SOURCE}>send.Prepare:1"),),
    "full disk": (
        ("source", f"{SOURCE}>move.ended:1"),
        ("destination", f"{DESTINATION}>manifest.create:1"),
    ),
    "cut both ways": (("source", f"{SOURCE}>send.Ended:1"),),
    "cut to the destination": (("source", f"{SOURCE}>send.Prepare:1"),),
    "cut to the source": (("destination", f"{DESTINATION}>send.Prepared:1"),),
}
FAULTS_AND_MOMENTS = [(fault, moment) for fault, moments in MOMENTS_BY_FAULT.items() for moment in moments]
PARTS = 24


@pytest.fixture(scope="module")
def lab() -> Iterator[Namespaces]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with in_namespaces() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("fault", "moment"), FAULTS_AND_MOMENTS)
def test_exactly_one_copy_runs_after_a_fault(lab: Namespaces, fault: str, moment: Moment) -> None:
    with served(lab) as pid:
        judge(lab, str(strike(lab, pid, fault, moment)))


@pytest.mark.parametrize(
    ("fault", "moment", "version"),
    [
        ("killed", ("source", f"{SOURCE}>receive.Prepared:1"), 4),
        ("killed", ("destination", f"{DESTINATION}>hold.commit:1"), 6),
        ("criu killed", ("destination", f"{DESTINATION}>hold.commit:1"), 4),
        ("both killed", ("destination", f"{DESTINATION}>send.Prepared:1"), 4),
        ("both killed", ("destination", f"{DESTINATION}>hold.commit:1"), 6),
    ],
)
def test_client_stays_connected_through_a_fault_during_the_move(
    lab: Namespaces, fault: str, moment: Moment, version: int
) -> None:
    """The client's only connection continues on the host where the program continues, before and after the commit."""
    strike_connected(lab, fault, moment, version)


def test_failed_restore_keeps_the_tree_at_the_source(lab: Namespaces) -> None:
    """Another process takes the PID at the destination after the gate: the tree keeps running at the source."""
    with served(lab) as pid:
        process = migrate_with_fault(lab, pid, "destination", f"CRCKPT_STOP_AT={DESTINATION}")
        stopped = wait_until_stopped(lab, "destination", process)
        # In a lab's own PID namespace nobody else starts anything.
        lab.run(
            "destination", "sh", "-c", f"echo {pid - 1} > /proc/sys/kernel/ns_last_pid; sleep 1000 >/dev/null 2>&1 &"
        )
        try:
            for one in stopped:
                lab.send_signal(one, signal.SIGCONT)
            result = end(process)
            assert result.status == 24
            assert f"PID {pid}" in result.err
            assert judge(lab, str(result)) == "source"
        finally:
            lab.end("sleep", "destination")


@pytest.mark.parametrize("moment", ["prepare", "commit"])
def test_move_stopped_by_the_terminal_and_then_killed_completes(lab: Namespaces, moment: str) -> None:
    """^Z stops crckpt once the program runs at the destination, not while it runs on neither host."""
    hook = f"echo $CRCKPT_MOVE_STEP >> {HOOK_LOG}; test $CRCKPT_MOVE_STEP != {moment} || kill -TSTP $PPID"
    # The kernel stops no process whose parent is not in its session.
    script = '"$@" & while kill -0 $! 2> /dev/null; do sleep 0.1; done; wait $!'
    with served(lab) as pid:
        for side in SIDES:
            arrange(lab, side)
        process = lab.open("source", "bash", "-mc", script, "bash", *migrate_words(pid, "--address-hook", hook))
        try:
            (stopped,) = wait_until_stopped(lab, "source", process)
            assert [move["state"] for move in find_moves(lab, "source")] == ["done"]
            assert [found.host for found in copies(lab)] == ["destination"]
            lab.send_signal(stopped, signal.SIGTERM)
            lab.send_signal(stopped, signal.SIGCONT)
            result = end(process)
            assert result.status == 0, result
            assert "runs on destination" in result.out
            assert lab.run("source", "cat", HOOK_LOG).out == "prepare\ncommit\n"
            assert judge(lab, str(result)) == "destination"
        finally:
            lab.run("source", "rm", "-f", HOOK_LOG)


def test_interruption_does_not_end_the_commit_hook(lab: Namespaces) -> None:
    """A hook killed half-way would leave the clients at a host that the program has left."""
    hook = (
        f"test $CRCKPT_MOVE_STEP != commit || {{ kill -TERM $PPID; sleep 0.5; }}; echo $CRCKPT_MOVE_STEP >> {HOOK_LOG}"
    )
    with served(lab) as pid:
        for side in SIDES:
            arrange(lab, side)
        try:
            result = lab.run("source", *migrate_words(pid, "--address-hook", hook))
            assert "runs on destination" in result.out
            assert lab.run("source", "cat", HOOK_LOG).out == "prepare\ncommit\n"
        finally:
            lab.run("source", "rm", "-f", HOOK_LOG)


def test_move_is_complete_only_after_criu_let_the_tree_run_if_crckpt_was_killed(lab: Namespaces) -> None:
    """crckpt was killed while CRIU holds the restored tree: the move is complete only once CRIU lets the tree run."""
    with served(lab) as pid:
        moment = f"{DESTINATION}>hold.commit:1"
        process = migrate_with_fault(lab, pid, "destination", f"CRCKPT_STOP_AT={moment}")
        stopped = wait_until_stopped(lab, "destination", process)
        (waiting,) = [found for found in crckpts(lab, "destination") if found.command[0].endswith("/hold-action")]
        lab.send_signal(waiting, signal.SIGSTOP)
        for each in stopped:
            lab.send_signal(each, signal.SIGKILL)
        wait_for(lambda: not is_alive(lab, stopped), "the end of crckpt")
        (move,) = find_moves(lab, "destination")
        assert move["state"] == "committed"
        lab.send_signal(waiting, signal.SIGCONT)
        judge(lab, str(end(process)))


@pytest.mark.parametrize(
    ("version", "source_is_gone"),
    [
        (4, True),
        (4, False),
        (6, True),
        (6, False),
    ],
)
def test_destination_finishes_the_move_alone_once_the_source_has_ended(
    lab: Namespaces, version: int, *, source_is_gone: bool
) -> None:
    """The destination has the address and the connections as soon as it learns that the source has ended."""
    options = move_address(lab, version)
    moment = "receive.Ended:1" if source_is_gone else "hold.commit:1"
    try:
        with served(lab, "--memory", "1", address=lab.service(version)) as pid, talking(lab, version) as client:
            client.wait_for_replies(5)
            process = migrate_with_fault(
                lab, pid, "destination", f"CRCKPT_STOP_AT={DESTINATION}>{moment}", options=options
            )
            for each in [*wait_until_stopped(lab, "destination", process), *crckpts(lab, "source")]:
                lab.send_signal(each, signal.SIGKILL)
            output = str(end(process))
            wait_until_settled(lab)
            assert copies(lab) == []
            (move,) = find_moves(lab, "destination")
            words = ("crckpt", "migrate", "--resume", str(move["id"]))
            if source_is_gone:
                refused = lab.run("destination", *words, status=31)
                assert "on source: crckpt migrate --resume" in refused.err
            said_so = ("--source-is-gone",) if source_is_gone else ()
            lab.run("destination", *words, *said_so)
            # The second resume finds nothing to do.
            lab.run("destination", *words)
            check_client(client, judge(lab, output, version), output)
            lab.run("source", *words)
            assert [move["state"] for host in SIDES for move in find_moves(lab, host)] == ["done", "done"]
    finally:
        lab.bring_service_back(version)


@pytest.mark.parametrize(
    ("side", "moment"),
    [
        ("source", ("destination", "hold.commit:1")),
        ("source", ("source", "receive.Prepared:1")),
        ("destination", ("destination", "hold.commit:1")),
    ],
    ids=["by the source at the commit", "by the source before", "by the destination"],
)
def test_killed_migrate_resume_can_be_repeated(lab: Namespaces, side: str, moment: Moment) -> None:
    kill_resume(lab, side, moment, 4)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("side", SIDES)
def test_migrate_resume_killed_at_any_step_can_be_repeated(lab: Namespaces, side: str, part: int) -> None:
    found = find_resume_moments(lab, side, 4)
    assert len(found) > 50
    failed = strike_all(
        {
            f"{side} {moment}": partial(kill_resume, side=side, moment=moment, version=(4, 6)[number % 2])
            for number, moment in enumerate(found[part::PARTS])
        }
    )
    assert failed == []


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("fault", FAULTS)
def test_exactly_one_copy_runs_after_a_fault_at_any_step(lab: Namespaces, fault: str, part: int) -> None:
    """Each fault runs with a connected client."""
    found = find_connected_moments(lab)
    assert len(found) > 300
    moments = [moment for moment in found if can_matter(fault, moment[1])][part::PARTS]
    failed = strike_all(
        {
            f"{fault} {moment}": partial(strike_connected, fault=fault, moment=moment, version=(4, 6)[number % 2])
            for number, moment in enumerate(moments)
        }
    )
    assert failed == []


@pytest.mark.parametrize("part", range(PARTS))
def test_exactly_one_copy_runs_after_a_fault_before_the_handover(lab: Namespaces, part: int) -> None:
    """Each step gets one fault. The moves send files and a log, and run hooks."""
    found = find_kinds_before(lab)
    assert len(found) > 50
    strikes = {}
    for number, moment in list(enumerate(found))[part::PARTS]:
        faults = [fault for fault in FAULTS if can_matter(fault, moment[1])]
        fault = faults[number % len(faults)]
        strikes[f"{fault} {moment}"] = partial(strike_before, fault=fault, moment=moment)
    assert strike_all(strikes) == []


def is_alive(lab: TwoHosts, processes: list[Process]) -> bool:
    live = [process for process in lab.list_processes(processes[0].host) if process.is_live]
    return any(process.is_same(other) for process in processes for other in live)


def find_connected_moments(lab: TwoHosts) -> list[Moment]:
    try:
        return find_moments(lab, *move_address(lab, 4), address=lab.service(4))
    finally:
        lab.bring_service_back(4)
