"""Processes to enter, in the states that they can be in."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "programs"
_WITHIN_S = 20.0


def compiled(source: str, into: Path, *options: str) -> str:
    """The path of this program of tests/programs, compiled; the test is skipped where that cannot be done."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    executable = into / source.removesuffix(".c")
    subprocess.run([compiler, *options, "-o", str(executable), str(PROGRAMS / source)], check=True)
    return str(executable)


@contextmanager
def running(*argv: str, ready: str = "ready", **options: object) -> Iterator[subprocess.Popen[str]]:
    """A program in a session of its own that has said it is `ready`; ended afterwards."""
    process = subprocess.Popen(  # type: ignore[call-overload]
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, bufsize=1, **options
    )
    try:
        if ready:
            assert process.stdout.readline().startswith(ready)
        yield process
    finally:
        process.kill()
        process.communicate()


def state(pid: int) -> str:
    """One letter, as in proc_pid_stat(5)."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 2]


def tracer(pid: int) -> int:
    """Who traces it, or 0."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("TracerPid"))
    return int(line.split()[1])


def held(pid: int) -> list[str]:
    """What its descriptors name."""
    return [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def wait_for(holds: Callable[[], bool], what: str) -> None:
    """Look every 5 ms until `holds`; AssertionError naming `what` after 20 s."""
    deadline = time.monotonic() + _WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {_WITHIN_S} s for {what}"
        time.sleep(0.005)
