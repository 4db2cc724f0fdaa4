"""The demo of crckpt, which is the first thing that a new user types."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from checkout import PROJECT
from trees import wait_for

ROOT = PROJECT


def test_demo_continues_a_program_from_its_checkpoint() -> None:
    """The counter restarts from the checkpoint; memory and PID are the same; nothing is left behind."""
    before = set(Path("/tmp").glob("crckpt-demo.*"))
    result = subprocess.run(
        [str(ROOT / "scripts/demo")], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("counter")]
    counters = [int(words[1]) for words in rows]
    started, ran, saved, killed, restored, went_on = counters
    assert started < ran < saved < killed
    assert ran <= restored < killed
    assert went_on > restored
    assert len({words[3] for words in rows}) == 1, "the memory's checksum changed"
    pid = int(re.search(r"kill -KILL -- -(\d+)", result.stdout)[1])  # type: ignore[index]
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), 60, "the program to be gone")
    assert "What to type next" in result.stdout
    assert set(Path("/tmp").glob("crckpt-demo.*")) == before
