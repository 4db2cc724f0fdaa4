"""Command lines and working directories, read from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from small_programs import WAIT_STATEMENTS

from crckpt.host import proc


def test_command_line_and_directory_are_read(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path) + b"/\xff"
    Path(os.fsdecode(place)).mkdir()
    words = [b"/bin/sh", b"-c", b"echo; read line", b"\xfe", b"", b"-", b""]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=place)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # just after exec the kernel shows no words yet
        assert [os.fsencode(word) for word in proc.command_line(process.pid)] == words[:-1]
        assert os.fsencode(proc.working_directory(process.pid)) == place
    finally:
        process.kill()
        process.communicate()


def test_only_the_start_of_an_endless_command_line_is_read() -> None:
    """A program can declare terabytes of its memory to be its arguments."""
    words = [sys.executable, "-c", f"import sys; {WAIT_STATEMENTS}", *("x" * 10_000 for _ in range(100))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        read = proc.command_line(process.pid)
        assert list(read[:4]) == words[:4]
        assert sum(len(word) + 1 for word in read) <= (128 << 10) + 1
        process.communicate()
