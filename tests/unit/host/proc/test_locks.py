"""Who holds the locks on a file, however many there are."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from crckpt.host.proc.locks import read_held_locks

MANY: Final = 2000
TAKES: Final = f"""
import fcntl, sys
file = open(sys.argv[1], "r+b")
for start in range(0, {2 * MANY}, 2):
    fcntl.lockf(file, fcntl.LOCK_SH, 1, start)
print(flush=True)
sys.stdin.read()
"""


def test_a_program_with_many_locks_is_looked_at_once(tmp_path: Path) -> None:
    """Any user who can read a file may hold as many locks there: those of others' programs are told, too."""
    file = tmp_path / "file"
    file.touch()
    words = [sys.executable, "-c", TAKES, str(file)]
    with (
        file.open("r+b") as ours,
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        fcntl.flock(ours, fcntl.LOCK_EX)
        assert process.stdout is not None
        process.stdout.readline()
        before = time.process_time()
        held = read_held_locks([str(file)])[str(file)]
        took = time.process_time() - before
        assert {each.pid for each in held if each.kind == "POSIX"} == {process.pid}
        assert sum(each.kind == "POSIX" for each in held) == MANY
        assert [each.comm != "?" for each in held if each.kind == "flock"] == [True]
        assert took < 2
        process.communicate()


RELEASES: Final = """
import fcntl, sys
files = [open(sys.argv[1] + str(number), "w") for number in range(20)]
print(flush=True)
while True:
    for file in files:
        fcntl.flock(file, fcntl.LOCK_EX)
    for file in files:
        fcntl.flock(file, fcntl.LOCK_UN)
"""


def test_locks_that_come_and_go_hide_no_other(tmp_path: Path) -> None:
    """The kernel gives a long list in parts, and counts lines from one to the next."""
    file = tmp_path / "file"
    file.touch()
    busy = [sys.executable, "-c", RELEASES, str(tmp_path / "busy")]
    with (
        subprocess.Popen(
            [sys.executable, "-c", TAKES, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as one,
        subprocess.Popen(busy, stdout=subprocess.PIPE) as other,
    ):
        try:
            for process in (one, other):
                assert process.stdout is not None
                process.stdout.readline()
            assert [len(read_held_locks([str(file)])[str(file)]) for _ in range(20)] == [MANY] * 20
        finally:
            other.kill()
            one.communicate()
