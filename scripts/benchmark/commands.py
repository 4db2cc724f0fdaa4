"""Run and time the programs that are compared."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class Failed(Exception):
    """A program that was to be measured failed."""


def run(argv: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
    """Run a program to its end; return its stdout. Raises Failed.

    ^C does not reach it, and when we are interrupted it is waited for: a CRIU that is cut short leaves half a tree.
    """
    words = [str(word) for word in argv]
    # Files, not pipes: a descendant that keeps running with the program's output must not block us.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            status = child.wait()
        finally:
            child.wait()
        output = []
        for file in (out, err):
            file.seek(0)
            output.append(file.read().decode(errors="replace"))
    if status != 0:
        raise Failed(f"{shlex.join(words)} ended with {status}:\n{output[0]}{output[1]}")
    return output[0]


def seconds(work: Callable[[], object]) -> float:
    """Run a program; return how many seconds it took."""
    began = time.monotonic()
    work()
    return time.monotonic() - began
