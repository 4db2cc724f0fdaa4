"""The parent stays until the child has said that the first part is done. Each case is a program: it forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crckpt.host import proc

BEGIN = """
import os, signal, sys, time
from crckpt.host.process.background import continue_in_background
from crckpt.host.process.signals import handle_interrupts
handle_interrupts()
print("first", flush=True)
detach = continue_in_background()
"""


def started(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/usr",
    )


def test_the_child_goes_on_alone_in_a_session_of_its_own(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    code = f"""
print("before", flush=True)
detach()
print("after", flush=True)
with open({str(tmp_path / "fifo")!r}, "w") as file:
    print(os.getpid(), os.getsid(0), os.getcwd(), *(os.readlink(f"/proc/self/fd/{{n}}") for n in range(3)), file=file)
"""
    with started(code) as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "first\nbefore\n", "")
    pid, session, *rest = (tmp_path / "fifo").read_text().split()
    assert pid == session != str(process.pid)
    assert rest == ["/", *["/dev/null"] * 3]
    assert proc.wait_until_gone([int(pid)], 20) == ()


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL)]
)
def test_a_child_that_ends_before_gives_its_status(end: str, status: int) -> None:
    with started(end) as process:
        process.communicate(timeout=30)
    assert process.returncode == status


def test_an_interruption_reaches_the_child() -> None:
    code = """
try:
    print(os.getpid(), flush=True)
    signal.pause()
except BaseException as error:
    print(error, flush=True)
    os._exit(9)
"""
    with started(code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        process.stdout.readline()
        process.terminate()
        assert process.stdout.readline() == "interrupted by SIGINT\n"
        assert process.wait(30) == 9
