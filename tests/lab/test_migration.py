"""`crckpt migrate` between two hosts, as its users see it: what runs where, what the client gets, what is printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hosts import PROGRAMS, PYTHON, CannotMakeLab, TwoHosts, talking, wait_for
from migrations import JOB, SERVER, copies, find_moves, served
from two_hosts import is_here, two_hosts


@pytest.fixture(scope="module")
def lab() -> Iterator[TwoHosts]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with two_hosts() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


def migrate(lab: TwoHosts, pid: int, *options: str, there: str = "destination", here: str = "source") -> dict[str, Any]:
    """Migrate; return the result."""
    completed = lab.run(here, "crckpt", "migrate", str(pid), there, JOB, "--json", *options)
    result: dict[str, Any] = json.loads(completed.out)["result"]
    return result


@pytest.mark.parametrize("version", [4, 6])
def test_client_sees_a_move_only_as_a_pause(lab: TwoHosts, version: int) -> None:
    """The client's one connection survives: every answer comes once and in order from both hosts."""
    address = lab.service(version)
    try:
        with served(lab, "--memory", "8", "--rewrite", "0.05", address=address) as pid:
            with talking(lab, version) as client:
                client.wait_for_replies()
                with lab.watched(SERVER) as watch:
                    result = migrate(lab, pid, "--tcp", "keep", "--move-ip", f"{lab.services[version]}@{lab.device}")
                    report = client.wait_for_replies()
                assert (report["wrong"], report["ended"], report["hosts"]) == (None, None, ["source", "destination"])
                assert client.check()["memory"] == "intact"
                assert watch.doubled == ()
                assert watch.looks > 0
            (process,) = copies(lab)
            assert (process.host, process.pid) == ("destination", result["pid"] and pid)
            assert lab.is_at("destination", version)
            assert not lab.is_at("source", version)
            for host in ("source", "destination"):
                assert lab.run(host, "nft", "list", "tables").out == ""
    finally:
        lab.bring_service_back(version)


def test_moved_tree_of_twenty_processes_has_lost_no_memory(lab: TwoHosts) -> None:
    """Each process counts in shared and in private memory: no count is lost or repeated."""
    directory = "/srv/counters"
    for host in ("source", "destination"):
        lab.run(host, "mkdir", "-p", directory)
    pid = lab.start("source", PYTHON, PROGRAMS / "sharing_counters.py", directory, "20")
    try:
        wait_for(lambda: lab.run("source", "ls", directory).out.count("count-") == 20, "20 processes")
        result = migrate(lab, pid)
        assert result["pid"] == pid
        found = lab.find("sharing_counters.py")
        assert [process.host for process in found] == ["destination"] * 21
        report = f"{directory}/report"
        wait_for(lambda: lab.run("destination", "cat", report, status=None).out == "intact", "all to count on")
    finally:
        lab.end("sharing_counters.py")
        clean(lab, directory)


def test_local_lazy_move_runs_before_its_memory_is_filled(lab: TwoHosts) -> None:
    """The client's connection survives, all memory is as before, and the program can be moved back at once."""
    try:
        with served(lab, "--memory", "32", "--rewrite", "0.05", address=lab.service(4)) as pid:
            with talking(lab, 4) as client:
                client.wait_for_replies()
                options = ("--tcp", "keep", "--move-ip", f"{lab.services[4]}@{lab.device}", "--local-lazy")
                migrate(lab, pid, *options)
                report = client.wait_for_replies()
                assert (report["wrong"], report["ended"], report["hosts"]) == (None, None, ["source", "destination"])
                assert client.check()["memory"] == "intact"
                migrate(lab, pid, *options, here="destination", there="source")
                assert client.wait_for_replies()["ended"] is None
                assert client.check()["memory"] == "intact"
            (process,) = copies(lab)
            assert (process.host, process.pid) == ("source", pid)
    finally:
        lab.bring_service_back(4)


def test_lazy_move_runs_before_its_memory_is_sent(lab: TwoHosts) -> None:
    """The client's connection survives, all memory is as before, and both stores have the checkpoint in the end."""
    try:
        with served(lab, "--memory", "32", "--rewrite", "0.05", address=lab.service(4)) as pid:
            with talking(lab, 4) as client:
                client.wait_for_replies()
                options = ("--tcp", "keep", "--move-ip", f"{lab.services[4]}@{lab.device}", "--lazy")
                result = migrate(lab, pid, *options)
                report = client.wait_for_replies()
                assert (report["wrong"], report["ended"], report["hosts"]) == (None, None, ["source", "destination"])
                assert client.check()["memory"] == "intact"
            for host, state in (("source", "done"), ("destination", "done")):
                assert [move["state"] for move in find_moves(lab, host)] == [state]
                lab.run(host, "crckpt", "verify", result["checkpoint"])
            (process,) = copies(lab)
            assert (process.host, process.pid) == ("destination", pid)
    finally:
        lab.bring_service_back(4)


@pytest.mark.parametrize("mode", ["w", "a"])
def test_program_that_writes_during_the_move_loses_no_line(lab: TwoHosts, mode: str) -> None:
    """Both hosts have the file. It only grows, and no line is lost or repeated."""
    path = f"/srv/shared/counted-{mode}"
    pid = lab.start("source", PYTHON, PROGRAMS / "writes_on.py", path, mode)

    def lines() -> list[list[str]]:
        # The last line may be incomplete.
        return [line.split() for line in lab.run("source", "cat", path, status=None).out.splitlines()[:-1]]

    try:
        wait_for(lambda: len(lines()) > 1, "the first lines")
        migrate(lab, pid)
        wait_for(lambda: lines()[-1][1] == "destination", "lines of the destination")
        migrate(lab, pid, here="destination", there="source")
        before = len(lines())
        wait_for(lambda: len(lines()) > before, "lines of the source")
        found = lines()
        assert [int(number) for number, _ in found] == list(range(1, len(found) + 1))
        assert found[-1][1] == "source"
    finally:
        lab.end("writes_on.py")
        clean(lab, path)


def test_move_to_the_same_host_is_refused(lab: TwoHosts) -> None:
    """Without this check, all resources of the program would be in use, and crckpt would suggest to end the program."""
    with served(lab) as pid:
        refused = lab.run("source", "crckpt", "migrate", str(pid), "source", JOB, status=24)
        assert refused.err.startswith("crckpt: source: it is this host, where the program runs\n")
        (process,) = copies(lab)
        assert (process.host, process.is_running) == ("source", True)


def test_program_that_ends_during_the_move_is_reported(lab: TwoHosts) -> None:
    with served(lab) as pid:
        words = ("migrate", str(pid), "destination", JOB, "--before-freeze", f"kill -9 {pid}")
        ended = lab.run("source", "crckpt", *words, status=14)
        assert f"{JOB} (PID {pid}) ended while it was being moved; it was not moved\n" in ended.err
        assert f"it ran here as PID {pid}, which has ended" in lab.run("source", "crckpt", "migrate", "--list").out


def test_ten_moves_back_and_forth_leave_one_copy_and_send_little(lab: TwoHosts) -> None:
    """A move back sends little: the other store already has most pages."""
    hosts = ("source", "destination")
    with served(lab, "--memory", "16") as pid:
        sent = []
        with lab.watched(SERVER) as watch:
            for number in range(10):
                here, there = hosts[number % 2], hosts[(number + 1) % 2]
                sent.append(migrate(lab, pid, here=here, there=there)["sent_bytes"])
                (process,) = copies(lab)
                assert (process.host, process.pid) == (there, pid)
        assert watch.doubled == ()
        assert watch.looks > 0
        assert max(sent[1:]) < 0.3 * sent[0], sent
        # Both sides know where the program runs.
        for host, side in zip(hosts, ("destination", "source"), strict=True):
            (move,) = find_moves(lab, host)
            assert (move["side"], move["state"]) == (side, "done")


def test_round_sends_only_changed_pages(lab: TwoHosts) -> None:
    """The store copies no old pages forward during a move: they would be sent, and the program would wait for them."""
    with served(lab, "--memory", "32", "--rewrite", "1") as pid:
        _, *rounds = migrate(lab, pid, "--max-rounds", "4")["rounds"]
        assert rounds
        assert all(each["sent_bytes"] < 1.1 * each["raw_bytes"] + (64 << 10) for each in rounds), rounds


@pytest.mark.skipif(is_here(), reason="links of real machines cannot be slowed down")
def test_estimated_downtime_counts_a_slow_connection(lab: TwoHosts) -> None:
    """The program writes all of its memory again during a round: all of it is left for the freeze."""
    with served(lab, "--memory", "8", "--rewrite", "4") as pid:
        try:
            lab.slow("16mbit")
        except CannotMakeLab as error:
            pytest.skip(str(error))
        result = migrate(lab, pid)
        last = result["rounds"][-1]
        # The estimate contains the time to send the last round, and the restore.
        assert last["estimated_ms"] > 1000 * last["raw_bytes"] / (16e6 / 8) / 3
        assert 1 / 4 < result["downtime_ms"] / last["estimated_ms"] < 4, result
        assert all(each["written_per_s"] > 0 for each in result["rounds"][1:])
        assert sum(each["sent_bytes"] for each in result["rounds"]) < result["sent_bytes"]


def test_estimated_downtime_over_the_budget_aborts_the_move(lab: TwoHosts) -> None:
    words = ("--max-downtime", "1ms", "--abort-over", "--max-rounds", "2")
    with served(lab) as pid:
        refused = lab.run("source", "crckpt", "migrate", str(pid), "destination", JOB, *words, status=24)
        assert re.search(r"the estimated downtime is \d+ ms, over the budget of 1 ms", refused.err)
        assert re.findall(r"^round (\d): ", refused.err, re.MULTILINE) == ["1", "2"]
        (process,) = copies(lab)
        assert (process.host, process.is_running) == ("source", True)
        assert migrate(lab, pid, "--max-downtime", "1ms", "--max-rounds", "1")["over_budget"] is True


def test_migrate_check_leaves_the_program_on_its_host(lab: TwoHosts) -> None:
    with served(lab) as pid:
        result = lab.run("source", "crckpt", "migrate", str(pid), "destination", JOB, "--check")
        assert re.search(rf"{JOB} can be moved to destination", result.out)
        (process,) = copies(lab)
        assert process.host == "source"
        assert all(find_moves(lab, host) == [] for host in ("source", "destination"))


def test_move_to_a_host_without_the_address_is_refused_and_the_program_runs_on(lab: TwoHosts) -> None:
    with served(lab, address=lab.service(4)) as pid:
        refused = lab.run("source", "crckpt", "migrate", str(pid), "destination", JOB, status=24)
        assert lab.service(4) in refused.err
        (process,) = copies(lab)
        assert (process.host, process.is_running) == ("source", True)


def test_moved_program_is_not_restored_at_the_source(lab: TwoHosts) -> None:
    with served(lab) as pid:
        migrate(lab, pid)
        refused = lab.run("source", "crckpt", "restore", JOB, "--detach", status=24)
        assert "was moved to destination" in refused.err
        assert "--despite-move" in refused.err
        lab.end(SERVER, "destination")
        lab.run("source", "crckpt", "restore", JOB, "--detach", "--despite-move")
        (process,) = copies(lab)
        assert (process.host, process.pid) == ("source", pid)
        assert find_moves(lab, "source") == []


def test_address_hook_is_called_for_each_step_in_order(lab: TwoHosts) -> None:
    """A hook that fails after the commit is reported."""
    log = "/run/hooks"
    hook = f'echo "$CRCKPT_MOVE_STEP $CRCKPT_JOB" >> {log}'
    failing = f"{hook}; test $CRCKPT_MOVE_STEP = prepare || exit 3"
    with served(lab) as pid:
        result = migrate(lab, pid, "--before-freeze", hook, "--address-hook", failing)
        assert lab.run("source", "cat", log).out.splitlines() == [
            f"{step} {JOB}" for step in ("before-freeze", "prepare", "commit")
        ]
        assert "--address-hook failed at step commit (exit status 3)" in " ".join(result["warnings"])
        (process,) = copies(lab)
        assert process.host == "destination"
        lab.run("source", "rm", log)


def test_failed_address_hook_aborts_the_move(lab: TwoHosts) -> None:
    with served(lab) as pid:
        result = lab.run(
            *("source", "crckpt", "migrate", str(pid), "destination", JOB, "--address-hook", "exit 3"), status=None
        )
        assert result.status == 20
        assert "--address-hook failed at step prepare (exit status 3)" in result.err
        assert "keeps running" in result.err
        (process,) = copies(lab)
        assert process.host == "source"


def test_move_with_send_files_sends_the_files_that_are_missing(lab: TwoHosts) -> None:
    script = "/srv/program/run.py"
    lab.run("source", "mkdir", "-p", "/srv/program")
    lab.run("source", "sh", "-c", f"cat > {script}", stdin="import time\nfile = open(__file__)\ntime.sleep(1000)\n")
    pid = lab.start("source", "sh", "-c", f"cd /srv/program && exec {PYTHON} {script}")
    try:
        wait_for(lambda: lab.find("run.py"), "the program")
        refused = lab.run("source", "crckpt", "migrate", str(pid), "destination", JOB, status=24)
        assert script in refused.err
        migrate(lab, pid, "--send-files")
        assert [process.host for process in lab.find("run.py")] == ["destination"]
        assert lab.run("destination", "cat", script).out == lab.run("source", "cat", script).out
    finally:
        lab.end("run.py")
        clean(lab, "/srv/program")


def clean(lab: TwoHosts, *directories: str) -> None:
    """Remove directories and the stores on both hosts."""
    for host in ("source", "destination"):
        lab.run(host, "rm", "-rf", *directories)
        lab.run(host, "find", "/var/lib/crckpt", "-mindepth", "1", "-delete", status=None)
