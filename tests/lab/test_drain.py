"""`crckpt migrate --all` empties a host of the lab, as its users see it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hosts import PROGRAMS, PYTHON, CannotMakeLab, Process, wait_for
from migrations import SERVER, STORE, arrange, crckpts, resume, wait_until_settled
from namespaces import Namespaces
from two_hosts import in_namespaces

STAYING_PROGRAM = "/srv/stays/run.py"
SIZES = {9001: 8, 9002: 24, 9003: 16}
"""MiB of memory by port: of the programs that can be moved."""
PARTLY_DONE = 3
INTERRUPTED = 130
FAILED_THERE = 30


@pytest.fixture(scope="module")
def lab() -> Iterator[Namespaces]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with in_namespaces() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


@contextmanager
def four_programs(lab: Namespaces) -> Iterator[dict[str, int]]:
    """Three servers and a program whose script the destination lacks: their PIDs by job, each with a checkpoint."""
    try:
        pids = {}
        for port, mebibytes in SIZES.items():
            words = (PYTHON, PROGRAMS / SERVER, "0.0.0.0", str(port), "--memory", str(mebibytes))  # noqa: S104 of a lab
            pids[f"port{port}"] = lab.start("source", *words)
        lab.run("source", "mkdir", "-p", "/srv/stays")
        lab.run(
            "source",
            "sh",
            "-c",
            f"cat > {STAYING_PROGRAM}",
            stdin="import time\nfile = open(__file__)\ntime.sleep(1000)\n",
        )
        pids["stays"] = lab.start("source", PYTHON, STAYING_PROGRAM)
        for port in SIZES:
            wait_for(lambda port=port: f":{port}" in lab.run("source", "ss", "-Hltn").out, f"port {port}")  # type: ignore[misc]
        script = f"/proc/{pids['stays']}/fd"
        wait_for(
            lambda: STAYING_PROGRAM in lab.run("source", "ls", "-l", script, status=None).out, "the script to be open"
        )
        for job, pid in pids.items():
            lab.run("source", "crckpt", "dump", str(pid), job)
        yield pids
    finally:
        lab.end(SERVER)
        lab.end(STAYING_PROGRAM)
        for host in ("source", "destination"):
            # A failed test may have left stopped processes of crckpt.
            for process in lab.find("crckpt", host):
                lab.send_signal(process, signal.SIGCONT)
            wait_for(lambda host=host: not lab.find("crckpt", host), f"crckpt to end on the {host}")  # type: ignore[misc]
            wait_for(lambda host=host: not crckpts(lab, host), f"crckpt to end on the {host}")  # type: ignore[misc]
            lab.run(host, "rm", "-rf", "/srv/stays")
            lab.run(host, "find", STORE, "-mindepth", "1", "-delete", status=None)


def find_hosts(lab: Namespaces) -> dict[str, list[str]]:
    """Where each program runs, by its job."""
    ports = {f"port{port}": str(port) for port in SIZES}
    servers = [process for process in lab.find(SERVER) if process.is_running]
    found = {job: [process.host for process in servers if port in process.command] for job, port in ports.items()}
    return found | {"stays": [process.host for process in lab.find(STAYING_PROGRAM) if process.is_running]}


ALL_MOVED = {**{f"port{port}": ["destination"] for port in SIZES}, "stays": ["source"]}
NONE_MOVED = {job: ["source"] for job in ALL_MOVED}


def test_all_movable_programs_move_and_the_rest_is_explained(lab: Namespaces) -> None:
    with four_programs(lab) as pids:
        checked = lab.run("source", "crckpt", "migrate", "--all", "destination", "--check", status=PARTLY_DONE)
        assert "3 of 4 programs can be moved to destination" in checked.out
        assert "1 of 4 programs would stay here" in checked.out
        assert find_hosts(lab) == NONE_MOVED

        result = lab.run("source", "crckpt", "migrate", "--all", "destination", "--bandwidth", "1G", status=PARTLY_DONE)
        assert find_hosts(lab) == ALL_MOVED
        assert "3 of 4 programs moved to destination" in result.out
        assert f"  port9001 (PID {pids['port9001']}): runs there as PID {pids['port9001']}" in result.out
        stayed = result.out[result.out.index("1 of 4 programs stayed here") :]
        assert f"stays (PID {pids['stays']})" in stayed
        assert STAYING_PROGRAM in stayed
        # The largest was the first to begin.
        begun = [line.partition(":")[0] for line in result.err.splitlines() if "moving PID" in line]
        assert set(begun) == set(pids)
        servers = [job for job in begun if job != "stays"]
        assert servers == ["port9002", "port9003", "port9001"]
        assert "port9002: round 1: copied" in result.err


def test_moved_programs_can_be_moved_back(lab: Namespaces) -> None:
    """Programs that already run at the destination do not prevent the moves."""
    with four_programs(lab):
        lab.run("source", "crckpt", "migrate", "--all", "destination", status=PARTLY_DONE)
        back = lab.run("destination", "crckpt", "migrate", "--all", "source", "--json", "--at-once", "3")
        assert find_hosts(lab) == NONE_MOVED
        result = json.loads(back.out)["result"]
        assert {job["job"]: job["outcome"] for job in result["jobs"]} == {f"port{port}": "moved" for port in SIZES}
        assert all(job["result"]["runs_on"] == "destination" for job in result["jobs"])


def test_drain_with_send_files_moves_all_programs_also_a_restored_one(lab: Namespaces) -> None:
    with four_programs(lab) as pids:
        lab.run("source", "crckpt", "dump", str(pids["port9003"]), "port9003", "--stop")
        lab.run("source", "crckpt", "restore", "port9003", "--detach")
        result = lab.run("source", "crckpt", "migrate", "--all", "destination", "--send-files")
        assert "4 of 4 programs moved to destination" in result.out
        assert find_hosts(lab) == {job: ["destination"] for job in ALL_MOVED}
        nothing = lab.run("source", "crckpt", "migrate", "--all", "destination")
        assert "no program of a job in this store is running here" in nothing.out


def test_drain_succeeds_if_programs_end_meanwhile(lab: Namespaces) -> None:
    """One program ends during its move and one before its move. The others are moved."""
    with four_programs(lab) as pids:
        with stopped_move(lab) as (process, _, _):
            for port in (9002, 9003):
                (server,) = [each for each in lab.find(SERVER, "source") if each.pid == pids[f"port{port}"]]
                lab.send_signal(server, signal.SIGKILL)
            # The later moves stop themselves, too.
            wait_for(lambda: has_ended(process, lab), "all moves to end")
            assert process.stdout is not None
            result = json.loads(process.stdout.read())["result"]
            assert process.wait() == PARTLY_DONE
        found = {job["job"]: job["outcome"] for job in result["jobs"]}
        # The program was killed when its checkpoint was complete, so it runs at the destination.
        assert found.pop("port9002") == "moved", result["jobs"][0]
        assert found == {"port9003": "ended", "port9001": "moved", "stays": "stayed"}


def has_ended(process: subprocess.Popen[str], lab: Namespaces) -> bool:
    """Whether the command has ended; continue crckpts that have stopped themselves."""
    for stopped in _find_stopped(lab):
        lab.send_signal(stopped, signal.SIGCONT)
    return process.poll() is not None


@contextmanager
def stopped_move(lab: Namespaces) -> Iterator[tuple[subprocess.Popen[str], Process, Process]]:
    """`--all`, one after the other, with a first move that has stopped itself before its commit: both crckpts."""
    crckpt = arrange(lab, "source", "CRCKPT_STOP_AT=move.handing-over")
    process = lab.open("source", crckpt, "migrate", "--all", "destination", "--at-once", "1", "--json")
    try:
        wait_for(lambda: _find_stopped(lab), "crckpt to stop")
        (stopped,) = _find_stopped(lab)
        (leader,) = [each for each in lab.find("crckpt", "source") if "--all" in each.command]
        yield process, leader, stopped
    finally:
        process.kill()
        process.communicate()


def test_drain_tries_an_unreachable_host_only_once(lab: Namespaces) -> None:
    with four_programs(lab):
        lab.run("destination", "mv", "/usr/local/bin/crckpt", "/usr/local/bin/crckpt.away")
        try:
            result = lab.run("source", "crckpt", "migrate", "--all", "destination", "--json", status=FAILED_THERE)
        finally:
            lab.run("destination", "mv", "/usr/local/bin/crckpt.away", "/usr/local/bin/crckpt")
        assert "crckpt cannot be run on destination" in json.loads(result.out)["error"]["message"]
        assert "job" not in result.err
        assert find_hosts(lab) == NONE_MOVED


def test_interrupted_drain_leaves_each_program_on_one_host(lab: Namespaces) -> None:
    with four_programs(lab) as pids:
        with stopped_move(lab) as (process, leader, stopped):
            lab.send_signal(leader, signal.SIGINT)
            wait_for(lambda: _has_pending_term(lab, stopped.pid), "crckpt to be told")
            lab.send_signal(stopped, signal.SIGCONT)
            assert process.stdout is not None
            result = json.loads(process.stdout.read())["result"]
            assert process.wait() == INTERRUPTED
        assert result["interrupted"]
        assert {job["job"]: job["outcome"] for job in result["jobs"]} == dict.fromkeys(pids, "stayed")
        wait_for(lambda: find_hosts(lab) == NONE_MOVED, "all to run here")


def test_move_of_a_drain_continues_if_the_crckpt_that_started_it_is_killed(lab: Namespaces) -> None:
    """A killed crckpt starts no more moves. The move that it has started continues, or gives up after a long stop."""
    with four_programs(lab):
        with stopped_move(lab) as (process, leader, stopped):
            lab.send_signal(leader, signal.SIGKILL)
            process.wait()
            lab.send_signal(stopped, signal.SIGCONT)
            wait_for(lambda: not lab.find("crckpt", "source", "destination"), "the move to end")
        wait_until_settled(lab)
        if not find_hosts(lab)["port9002"]:
            # The move was stopped when only one side knew its end. `--list` names the command that settles it.
            resume(lab)
        found = find_hosts(lab)
        assert found.pop("port9002") in (["source"], ["destination"])
        assert found == {job: hosts for job, hosts in NONE_MOVED.items() if job != "port9002"}


def _find_stopped(lab: Namespaces) -> list[Process]:
    return [process for process in lab.find("crckpt", "source") if process.state == "T"]


def _has_pending_term(lab: Namespaces, pid: int) -> bool:
    """Whether SIGTERM waits for a process."""
    lines = lab.run("source", "cat", f"/proc/{pid}/status").out.splitlines()
    (pending,) = [int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:")]
    return bool(pending & 1 << signal.SIGTERM - 1)
