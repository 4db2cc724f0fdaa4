"""`crckpt doctor TARGET`: what `dump` would meet, without touching the tree."""

from __future__ import annotations

import subprocess

import pytest
from cases import CASES
from command import PROGRAM, Crckpt
from stopped_trees import BY_NAME
from trees import PROGRAMS, PYTHON, Case, started

from crckpt.ops.context import Context
from crckpt.ops.dump.examine import examine
from crckpt.ops.dump.request import DumpRequest

REFUSED = 24


def test_doctor_finds_no_blocker_in_a_tree_that_can_be_checkpointed(crckpt: Crckpt) -> None:
    with started(BY_NAME["family"]) as tree:
        before = tree.counters()
        output = crckpt.run("doctor", str(tree.pid)).out
        assert output.startswith(f"PID {tree.pid} can be checkpointed\n")
        tree.wait_growth(before)
        assert not crckpt.store.exists(), "doctor must not create the store"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_doctor_warns_of_nothing_in_trees_that_can_be_checkpointed(crckpt: Crckpt, case: Case) -> None:
    """The only exception is the choice that the user must make about TCP connections."""
    with started(case) as tree:
        # The command doctor would also make three dumps to estimate the cost.
        found = examine(DumpRequest(str(tree.pid)), Context(crckpt.store))
        assert {blocker.key for blocker in found.plan.blockers} == ({"tcp"} if case.tcp else set())


def test_doctor_prints_a_remedy_for_each_blocker(crckpt: Crckpt) -> None:
    with started(BY_NAME["tcp-pair"]) as tree:
        output = crckpt.run("doctor", str(tree.pid), status=REFUSED).out
        lines = output.splitlines()
        assert {line.split(": ")[0] for line in lines if "connected over TCP" in line} == {"blocker"}
        assert output.count("choose: --tcp keep") == 1, "once for all"
        assert output.startswith(f"PID {tree.pid} cannot be checkpointed: ")


@pytest.mark.parametrize(("kind", "what"), [("udp", "UDP"), ("inotify", "inotify")])
def test_doctor_reports_expected_losses_of_a_target(crckpt: Crckpt, kind: str, what: str) -> None:
    case = Case(kind, (PYTHON, str(PROGRAMS / "dialogue.py"), "{workdir}", "--hold", kind), tcp="keep")
    with started(case) as tree:
        result = crckpt.run("doctor", str(tree.pid), "--json", status=REFUSED).document["result"]
        assert {blocker["key"] for blocker in result["blockers"]} == {"tcp"}
        assert result["able"] is False
        (loss,) = (warning for warning in result["warnings"] if warning["key"] == "unread")
        assert f"of PID {tree.pid} ({what}): a restore loses it" in loss["what"]
        assert loss["what"] in crckpt.run("dump", str(tree.pid), "job", "--tcp", "keep").out


def test_doctor_refuses_invalid_targets(crckpt: Crckpt) -> None:
    assert "there is no process" in crckpt.run("doctor", "4194304", status=14).err
    assert "--fix fixes this host" in crckpt.run("doctor", "4194304", "--fix", status=2).err
    assert "is the init process of this system" in crckpt.run("doctor", "1", status=REFUSED).err


def test_doctor_and_dump_report_a_missing_capability(crckpt: Crckpt) -> None:
    """Root without CAP_SYS_PTRACE may not examine processes of other users."""
    crckpt_without_ptrace = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", str(PROGRAM))
    with started(BY_NAME["nobody"]) as tree:
        for words in (("doctor", str(tree.pid)), ("dump", str(tree.pid), "job")):
            result = subprocess.run(
                (*crckpt_without_ptrace, *words), capture_output=True, text=True, env=crckpt.environment, check=False
            )
            assert (result.returncode, "has no permission to read the tree" in result.stderr) == (20, True), (
                result.stderr
            )
            assert "CAP_SYS_PTRACE" in result.stderr


def test_doctor_describes_the_processes_of_the_tree(crckpt: Crckpt) -> None:
    """The description shows the user if the PID was wrong."""
    with started(BY_NAME["family"]) as tree:
        processes = crckpt.run("doctor", str(tree.pid), "--json").document["result"]["processes"]
        assert {process["pid"] for process in processes} == set(tree.pids())
        assert all(process["usage"]["memory_bytes"] > 0 for process in processes)
        described = crckpt.run("doctor", str(tree.pid)).out.splitlines()[1]
    assert described.startswith(f"PID {tree.pid} {processes[0]['comm']}, started 20")
    assert f": {len(processes)} processes, " in described


TIMES = ("frozen_ms", "dump_ms", "commit_ms")


def test_doctor_estimates_the_cost_of_a_dump(crckpt: Crckpt) -> None:
    """The estimated bytes are within a factor of 2. `scripts/bench predictions` measures the estimated times."""
    with started(BY_NAME["family"]) as tree:
        first = crckpt.run("doctor", str(tree.pid), "--json").document["result"]
        assert (first["able"], first["blockers"]) == (True, [])
        assert first["prediction_assumes"].startswith("as the first checkpoint of ")
        assert first["prediction_assumes"].endswith(f" in {crckpt.store} (a new store)")
        assert not crckpt.store.exists(), "doctor must not create the store"
        took = crckpt.run("dump", str(tree.pid), "--json").document["result"]["checkpoint"]["statistics"]
        for number in ("raw_bytes", "stored_bytes"):
            assert took[number] / 2 < first["prediction"][number] < took[number] * 2, number
        assert all(first["prediction"][time] > 0 for time in TIMES)
        assert first["prediction"]["frozen_ms"] < first["prediction"]["dump_ms"]

        second = crckpt.run("doctor", str(tree.pid), "--json").document["result"]
        assert second["prediction_assumes"].startswith("as the next checkpoint of ")
        assert second["prediction"]["stored_bytes"] < first["prediction"]["stored_bytes"] / 4, "the store has most"
        assert not list((crckpt.store / "tmp").iterdir()), "nothing is left"


PROGRAM_WITH_A_DELETED_FILE = """
import os, tempfile, time
with tempfile.TemporaryFile(buffering=0) as file:
    file.write(os.urandom(32 << 20))
    os.write(1, b"1")
    os.dup2(0, 1)
    time.sleep(600)
"""


def test_deleted_open_files_count_towards_the_estimate_of_doctor(crckpt: Crckpt) -> None:
    null = subprocess.DEVNULL
    argv = (PYTHON, "-S", "-E", "-c", PROGRAM_WITH_A_DELETED_FILE)
    with subprocess.Popen(argv, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True) as child:
        try:
            assert child.stdout
            assert child.stdout.read() == b"1"
            foreseen = crckpt.run("doctor", str(child.pid), "--json").document["result"]["prediction"]
            took = crckpt.run("dump", str(child.pid), "--json").document["result"]["checkpoint"]["statistics"]
            assert took["raw_bytes"] / 1.5 < foreseen["raw_bytes"] < took["raw_bytes"] * 1.5
        finally:
            child.kill()


def test_doctor_prints_the_estimate_without_stopping_the_tree(crckpt: Crckpt) -> None:
    with started(BY_NAME["counter"]) as tree:
        before = tree.counters()
        output = crckpt.run("doctor", str(tree.pid)).out
        title, *lines = output[output.index("estimate of a dump") :].splitlines()
        assert title.startswith("estimate of a dump, as the first checkpoint of ")
        assert [line.split()[0] for line in lines] == ["frozen", "time", "size"]
        tree.wait_growth(before)


def test_doctor_explains_why_it_cannot_estimate_the_cost(crckpt: Crckpt) -> None:
    crckpt.store.mkdir()
    (crckpt.store / "letter").touch()
    with started(BY_NAME["counter"]) as tree:
        result = crckpt.run("doctor", str(tree.pid), "--json").document["result"]
        assert result["prediction"] is None
        assert "is not a store of crckpt" in result["prediction_missing"]
        assert "no estimate of what a dump would cost: " in crckpt.run("doctor", str(tree.pid)).out
