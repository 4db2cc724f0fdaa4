"""Completion in real shells: a user types a few letters and a tab, and the shell shows or inserts what fits."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from checkout import TESTS
from command import PROGRAM, Crckpt

STORE = TESTS / "data/store-with-xxh3"
SHELLS = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "-i"),
}
SETUP_COMMANDS = {
    "bash": "bind 'set bell-style none'; bind 'set enable-bracketed-paste off'",
    "zsh": "autoload -U compinit && compinit -u -D; unsetopt zle_bracketed_paste; PROMPT='$ '",
    "fish": "function fish_prompt; echo '$ '; end",
}
SOURCE = {
    "bash": 'eval "$(_CRCKPT_COMPLETE=bash_source crckpt)"',
    "zsh": 'eval "$(_CRCKPT_COMPLETE=zsh_source crckpt)"',
    "fish": "_CRCKPT_COMPLETE=fish_source crckpt | source",
}
START = b"\x01"
PATIENCE_S = 60


class Typist:
    """A shell at a terminal."""

    def __init__(self, terminal: int) -> None:
        self.terminal = terminal
        self.shown = ""

    def type(self, text: str | bytes) -> None:
        """Type, as a user does."""
        os.write(self.terminal, text.encode() if isinstance(text, str) else text)

    def wait_for(self, pattern: str) -> str:
        """Read the terminal until the pattern occurs; return the text and forget it."""
        ends = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.shown)) is None:
            assert time.monotonic() < ends, f"no {pattern!r} in {self.shown!r}"
            if select.select([self.terminal], [], [], 0.2)[0]:
                text = os.read(self.terminal, 65536).decode(errors="replace")
                if "\x1b[c" in text or "\x1b[0c" in text:  # "what are you?": fish waits for an answer
                    os.write(self.terminal, b"\x1b[?1;2c")
                self.shown += re.sub(r"\x1b(\[[0-9;?>=]*[ -/]*[@-~]|[=>()][0B]?|\][^\x07\x1b]*(\x07|\x1b\\))", "", text)
        self.shown = self.shown[found.end() :]
        return found[0]

    def completed(self, typed: str) -> str:
        """Type this and a tab; return what the line is then."""
        self.type(f"{typed}\t")
        # The shell answers the tab before it reads on.
        self.type(START + b"echo '<'\n")
        return self.wait_for(r"[\r\n]<[^\r\n]*\r?\n").strip().removeprefix("<").strip()


@contextmanager
def typing(shell: str, crckpt: Crckpt, home: Path) -> Iterator[Typist]:
    """Start a shell that completes crckpt, at a terminal of its own."""
    ours, theirs = pty.openpty()
    environment = crckpt.environment | {
        "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "XDG_DATA_HOME": str(home),
        "TERM": "xterm",
        "PS1": "$ ",
        "COLUMNS": "200",
    }
    process = subprocess.Popen(
        ("setsid", "--ctty", *SHELLS[shell]), stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=home
    )
    os.close(theirs)
    try:
        typist = Typist(ours)
        for line in (SETUP_COMMANDS[shell], SOURCE[shell], "echo rea''dy"):
            typist.type(f"{line}\n")
        typist.wait_for(r"[\r\n]ready\r?\n")
        yield typist
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.fixture(params=SHELLS)
def typist(request: pytest.FixtureRequest, crckpt: Crckpt, tmp_path: Path) -> Iterator[Typist]:
    """A user at each shell, with a store of one job and one tag."""
    shell = str(request.param)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    shutil.copytree(STORE, crckpt.store)
    crckpt.store.chmod(0o700)
    crckpt.run("tag", "job", "good")
    home = tmp_path / "home"
    (home / "some-directory").mkdir(parents=True)
    with typing(shell, crckpt, home) as typist:
        yield typist


def test_tab_key_completes_a_word_that_has_a_single_match(typist: Typist) -> None:
    for typed, line in (
        ("crckpt rehe", "crckpt rehearse"),
        ("crckpt dump --no-i", "crckpt dump --no-incremental"),
        ("crckpt dump 1 --tcp kee", "crckpt dump 1 --tcp keep"),
        ("crckpt verify jo", "crckpt verify job"),
        ("crckpt restore job:g", "crckpt restore job:good"),
        ("crckpt dump pidfile:some-d", "crckpt dump pidfile:some-directory"),
        ("crckpt export job some-", "crckpt export job some-directory"),
    ):
        # zsh adds a slash to a directory, and removes it when the next word begins.
        assert typist.completed(typed).removesuffix("/") == line


def test_pids_are_completed_with_program_names(typist: Typist) -> None:
    with two_sleeping_processes() as pid:
        # Only the first digits are typed: a shell may ask before it lists hundreds of PIDs. bash lists PIDs only if it
        # cannot complete the word any further.
        typist.type(f"crckpt dump {pid // 100}\t\t\t")
        typist.wait_for(rf"{pid}\s+(-- |\()?sleep 6\d")


@contextmanager
def two_sleeping_processes() -> Iterator[int]:
    """The PID of a process that sleeps for 60 s or more. That of another begins alike: one alone would be inserted."""
    with ExitStack() as stack:
        pids: list[int] = []
        while len(pids) < 2 or pids[-2] // 100 != pids[-1] // 100:
            process = stack.enter_context(subprocess.Popen(["sleep", f"6{len(pids)}"]))
            stack.callback(process.kill)
            pids.append(process.pid)
        yield pids[-1]


def test_file_names_with_shell_syntax_are_completed_and_not_executed(typist: Typist, tmp_path: Path) -> None:
    """Any user can choose any file name, and a shell runs what completion inserts."""
    names = tmp_path / "home/names"
    names.mkdir()
    for name in ("x$(touch ran)1", "x$(touch ran)2", "y`touch ran`;touch ran", "z*"):
        (names / name).touch()
    for letter, rest in (("x", "$(touch ran)"), ("y", "`touch ran`;touch ran"), ("z", "*")):
        assert typist.completed(f"crckpt dump pidfile:names/{letter}") == f"crckpt dump pidfile:names/{letter}{rest}"
    # What is inserted can be completed further.
    typist.type("crckpt dump pidfile:names/x\t")
    assert typist.completed("2") == "crckpt dump pidfile:names/x$(touch ran)2"
    assert sorted(path.name for path in tmp_path.glob("home/**/ran")) == []
