""".ci/run runs every stage, and lists the failed ones at the end."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from checkout import PROJECT

STAGES = {
    "check": "check",
    "lab/soft-dirty": "soft-dirty",
    "test-newest-python": "newest Python",
    "lab/packages": "Debian 13",
}
"""The name of a script's stage."""
OTHERS = ("environment", "test-tools", "test")
FAILED = "  FAILED (exit status 7)"


def run(directory: Path, programs: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run .ci/run where its scripts are these shell programs, or else end well."""
    shutil.copytree(PROJECT / ".ci", directory / ".ci")
    (directory / "scripts/lab").mkdir(parents=True)
    for name in ("stage", "report-stages", "budgets.toml"):
        shutil.copy(PROJECT / "scripts" / name, directory / "scripts")
    for name in (*OTHERS, *STAGES):
        path = directory / "scripts" / name
        path.write_text(f"#!/bin/sh\n{programs.get(name, '')}\necho {name} is done\n")
        path.chmod(0o700)
    return subprocess.run([directory / ".ci/run"], capture_output=True, text=True, check=False)


def stages(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The result of each stage in the last lines of the output."""
    return re.findall(r"^ *\d+ s  (.+)$", done.stdout.partition("stages:")[2], re.MULTILINE)


def test_successful_ci_run_reports_every_stage(tmp_path: Path) -> None:
    result = run(tmp_path, {})
    assert (result.returncode, result.stderr) == (0, "")
    assert {f"{name} is done" for name in (*OTHERS, *STAGES)} < set(result.stdout.splitlines())
    assert sorted(stages(result)) == sorted(["install", *STAGES.values()])


@pytest.mark.parametrize("script", STAGES)
def test_other_stages_of_a_ci_run_run_after_a_failure(tmp_path: Path, script: str) -> None:
    result = run(tmp_path, {script: "exit 7"})
    assert result.returncode == 1
    assert {f"{name} is done" for name in (*OTHERS, *STAGES) if name != script} < set(result.stdout.splitlines())
    assert [stage for stage in stages(result) if "FAILED" in stage] == [STAGES[script] + FAILED]


def test_failed_tests_fail_the_ci_run(tmp_path: Path) -> None:
    result = run(tmp_path, {"test": "scripts/stage 'tests, pure' sh -c 'exit 7'; exit 1"})
    assert result.returncode == 1
    assert f"tests, pure{FAILED}" in stages(result)


def test_ci_run_without_a_test_report_fails(tmp_path: Path) -> None:
    result = run(tmp_path, {"test": "exit 7"})
    assert result.returncode == 1


def test_stage_of_a_ci_run_over_its_budget_is_reported_without_failing(tmp_path: Path) -> None:
    result = run(tmp_path, {"check": "echo '61 0 check' >>\"$CRCKPT_STAGES/ended\""})
    assert result.returncode == 0
    assert "check  over its budget of 60 s" in stages(result)
