""".ci/run runs every stage, and says at the end which failed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from places import PROJECT

STAGES = ("check", "test-newest-python", "lab/soft-dirty", "test")


def run(directory: Path, stages: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run .ci/run where its stages are these shell programs, or else end well."""
    shutil.copytree(PROJECT / ".ci", directory / ".ci")
    (directory / "scripts/lab").mkdir(parents=True)
    for name in ("environment", *STAGES):
        path = directory / "scripts" / name
        path.write_text(f"#!/bin/sh\n{stages.get(name, '')}\necho {name} is done\n")
        path.chmod(0o700)
    return subprocess.run([directory / ".ci/run"], capture_output=True, text=True, check=False)


def test_all_is_well(tmp_path: Path) -> None:
    done = run(tmp_path, {})
    assert (done.returncode, done.stderr) == (0, "")
    assert {f"{stage} is done" for stage in STAGES} < set(done.stdout.splitlines())


@pytest.mark.parametrize("stage", STAGES)
def test_others_run_after_a_failure(tmp_path: Path, stage: str) -> None:
    done = run(tmp_path, {stage: "exit 7"})
    assert (done.returncode, done.stderr) == (1, f"FAILED scripts/{stage}: exit status 7\n")
    assert {f"{other} is done" for other in STAGES if other != stage} < set(done.stdout.splitlines())


def test_each_failure_is_said(tmp_path: Path) -> None:
    done = run(tmp_path, dict.fromkeys(STAGES, "exit 7"))
    assert done.stderr.splitlines() == [f"FAILED scripts/{stage}: exit status 7" for stage in STAGES]
