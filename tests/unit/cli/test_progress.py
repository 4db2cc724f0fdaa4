"""A bar is drawn where a person watches, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress

import pytest

from crckpt.cli.output import form
from crckpt.cli.progress import progress_bars
from crckpt.ops.context import ignore_progress


@pytest.mark.parametrize("as_json", [True, False])
def test_progress_bar_is_not_drawn_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    monkeypatch.setattr(form, "as_json", as_json)
    with progress_bars("verifying") as (progress,):
        assert progress is ignore_progress
        progress(1, 2)
    assert capsys.readouterr().err == ""


DRAWING_PROGRAM = """
import sys
from crckpt.cli.output import form
from crckpt.cli.progress import progress_bars
form.is_quiet, form.as_json = sys.argv[1] == "quiet", sys.argv[1] == "json"
with progress_bars("copying", "verifying") as (_, progress):
    progress(1 << 20, 4 << 20)
    progress(4 << 20, 4 << 20)
"""


@pytest.mark.parametrize(("word", "is_drawn"), [("text", True), ("json", False), ("quiet", False)])
def test_progress_bar_on_a_terminal_shows_progress(word: str, is_drawn: bool) -> None:
    terminal, inside = pty.openpty()
    argv = [sys.executable, "-c", DRAWING_PROGRAM, word]
    with subprocess.Popen(argv, stderr=inside, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(inside)
        drawn = b""
        with suppress(OSError):  # the other side is closed
            while more := os.read(terminal, 4096):
                drawn += more
    assert process.returncode == 0
    os.close(terminal)
    assert (b"verifying" in drawn) == is_drawn
    assert (b"4.0/4.0 MiB" in drawn) == is_drawn


PROGRAM_THAT_ASKS_A_QUESTION = """
from crckpt.cli.progress import progress_bars
with progress_bars("copying", "sending", waits=True) as (_, progress):
    input("password: ")
    progress(1 << 20, 4 << 20)
    progress(4 << 20, 4 << 20)
"""


def test_progress_bar_is_drawn_only_after_a_question_is_answered() -> None:
    terminal, inside = pty.openpty()
    pipe = subprocess.PIPE
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM_THAT_ASKS_A_QUESTION], stdin=pipe, stdout=inside, stderr=inside, env=environment
    ) as process:
        os.close(inside)
        assert process.stdin is not None
        # All that comes before the answer.
        before = b""
        while not before.endswith(b"password: "):
            before += os.read(terminal, 4096)
        assert before == b"password: "
        process.stdin.write(b"secret\n")
        process.stdin.close()
        drawn = b""
        with suppress(OSError):
            while more := os.read(terminal, 4096):
                drawn += more
    os.close(terminal)
    assert process.returncode == 0
    assert b"sending" in drawn
