"""Fields of /proc/PID/status."""

from __future__ import annotations

from pathlib import Path

from crckpt.host import proc


def test_facts_about_ourselves() -> None:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    assert sum(1 << number for number in proc.effective_capabilities()) == int(line.split()[1], 16)
    assert [len(part) for part in proc.boot_id().split("-")] == [8, 4, 4, 4, 12]
