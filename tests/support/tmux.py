"""A terminal of tmux: programs run there as at a real one, and tests press its keys and read its screen."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

from trees import wait_for

WITHIN_S: Final = 60


class Tmux:
    """A tmux server with one window of 80 columns and 24 lines, in which `argv` runs as the leader of its session."""

    def __init__(self, directory: Path, *argv: str, environment: Mapping[str, str] | None = None) -> None:
        """Start tmux with its socket in `directory`."""
        directory.mkdir(exist_ok=True)
        self._socket = directory / "tmux.sock"
        given = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(directory), "PS1": "$ ", "TERM": "screen"}
        size = ("-x", "80", "-y", "24")
        # As the shell in a window, a program is ended by tmux if the window is closed.
        self._ask("-f", "/dev/null", "new-session", "-d", *size, *argv, environment=given | dict(environment or {}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], capture_output=True, check=False)
        wait_for(lambda: not self._answers(), WITHIN_S, "tmux to end")

    @property
    def shown(self) -> str:
        """The lines of the screen."""
        return self._ask("capture-pane", "-p").rstrip("\n")

    def type(self, text: str) -> None:
        """Type text as it is."""
        self._ask("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Press keys, by the names that tmux gives them: Enter, C-c."""
        self._ask("send-keys", *keys)

    def enter(self, line: str) -> None:
        """Type a line, and press Enter."""
        self.type(line)
        self.press("Enter")

    def resize(self, columns: int, lines: int) -> None:
        """Give the window another size."""
        self._ask("resize-window", "-x", str(columns), "-y", str(lines))

    def wait_for(self, holds: Callable[[str], bool], what: str) -> str:
        """Wait until this holds for the screen; return the screen."""
        try:
            wait_for(lambda: holds(self.shown), WITHIN_S, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; shown:\n{self.shown}") from None
        return self.shown

    def pid(self) -> int:
        """Return the PID of the program in the window."""
        return int(self._ask("list-panes", "-F", "#{pane_pid}"))

    def _ask(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        argv = ["tmux", "-S", str(self._socket), *words]
        result = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
        assert result.returncode == 0, f"tmux {words}: {result.stderr}"
        return result.stdout

    def _answers(self) -> bool:
        return subprocess.run(["tmux", "-S", self._socket, "list-sessions"], capture_output=True).returncode == 0
