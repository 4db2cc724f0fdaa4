"""The benchmark command: what it prints, how it ends, that it leaves nothing behind. What it measures is not judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import PROJECT

PATH = ":".join(str(PROJECT / folder) for folder in ("scripts", "tests/lab", "tests/programs"))


def bench(work: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark to its end, in the directory `work`."""
    above = os.environ.get("PYTHONPATH")
    return subprocess.run(
        [sys.executable, "-m", "benchmark", "--work", str(work), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{PATH}:{above}" if above else PATH},
        timeout=300,
        check=False,
    )


def test_exit_code_of_the_benchmark_is_0_only_if_all_bounds_are_met(tmp_path: Path) -> None:
    result = bench(tmp_path, "startup", "--runs", "1", "--json")
    document = json.loads(result.stdout)
    assert result.returncode == (0 if document["all_met"] else 1), result.stderr
    assert document["all_met"] == all(row["met"] for row in document["rows"])
    assert {row["group"] for row in document["rows"]} == {"startup"}
    assert str(tmp_path) in document["machine"]["disk"]
    assert not list(tmp_path.iterdir())


def test_benchmark_reports_all_steps_of_a_move_without_crckpt_and_with_it(tmp_path: Path) -> None:
    """The downtime contains the copy. Exit code 1 (a bound was not met) may be due to the machine."""
    result = bench(tmp_path, "migration", "--sizes", "4", "--runs", "1", "--json")
    assert result.returncode in (0, 1), result.stderr
    rows = [(*row["what"].rpartition(": "), row["ours_median"]) for row in json.loads(result.stdout)["rows"]]
    bare = {step: median for way, _, step, median in rows if way.endswith("criu and tar | ssh")}
    assert bare.pop("downtime") >= bare["copy"]
    assert set(bare) == {"dump", "copy", "restore", "bare_restore", "round_trip"}
    medians = {what: median for way, _, what, median in rows if way.endswith("a second")}
    assert {"downtime", "downtime with --local-lazy", "downtime with --lazy", "total with --lazy"} <= set(medians)


def test_benchmark_of_a_command_that_fails_prints_its_error_and_no_results(tmp_path: Path) -> None:
    result = bench(tmp_path, "startup", "--runs", "1", "--command", "/bin/false")
    assert (result.returncode, result.stdout) == (2, "")
    assert "/bin/false dump" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("stratup",), ("--targets", "redsi"), ("--sizes", "big")])
def test_benchmark_refuses_unknown_arguments(tmp_path: Path, words: tuple[str, ...]) -> None:
    result = bench(tmp_path, *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert words[-1] in result.stderr
