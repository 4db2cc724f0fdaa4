"""Shells at prompts in tmux, where real keys are pressed. Each test has a tmux server of its own."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
from trees import wait_for

WITHIN_S: Final = 60
PROMPT: Final = "=>"
SHELLS: Final = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "dash": ("dash", "-i"),
    "fish": ("fish", "--no-config", "-i", "-C", f"function fish_prompt; echo -n '{PROMPT} '; end"),
}


class Pane:
    """A pane with a shell, whose prompt is `PROMPT`."""

    def __init__(self, tmux: Tmux, name: str) -> None:
        self._tmux, self._name = tmux, name
        self.shell = int(tmux.ask("display-message", "-p", "-t", name, "#{pane_pid}"))

    def type(self, line: str) -> None:
        """Type a line and Enter."""
        self._tmux.ask("send-keys", "-t", self._name, "-l", line)
        self.press("Enter")

    def type_raw(self, line: str) -> None:
        """Type a line for a shell whose terminal is in raw mode."""
        self._tmux.ask("send-keys", "-t", self._name, "-l", f"{line}\n")

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names for them: C-c, Enter."""
        self._tmux.ask("send-keys", "-t", self._name, *keys)

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the terminal."""
        self._tmux.ask("resize-window", "-t", self._name, "-x", str(columns), "-y", str(lines))

    def close(self) -> None:
        """Close the pane, as a user does: the terminal hangs up."""
        self._tmux.ask("kill-pane", "-t", self._name)

    @property
    def screen(self) -> str:
        """What the pane shows."""
        return self._tmux.ask("capture-pane", "-p", "-J", "-t", self._name).rstrip("\n")

    def wait(self, pattern: str, what: str = "") -> re.Match[str]:
        """Wait until the screen matches the regular expression; give the match."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            match = re.search(pattern, self.screen, re.MULTILINE)
            found.extend([match] if match else [])
            return match is not None

        try:
            wait_for(look, WITHIN_S, what or f"{pattern!r} on the screen")
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen:\n{self.screen}") from None
        return found[0]

    def wait_prompt(self) -> None:
        """Wait until the shell asks for a command."""
        self.wait(rf"{PROMPT} ?\Z")

    def run(self, line: str) -> str:
        """Run a command in the shell to its end, and return its output."""
        self.clear()
        self.type(line)
        self.wait(rf"(?s)\A{PROMPT} .*\n{PROMPT} ?\Z")
        return "\n".join(self.screen.split("\n")[1:-1])

    def clear_screen(self) -> None:
        """Clear the screen, whatever runs there."""
        self._tmux.ask("send-keys", "-R", "-t", self._name)

    def clear(self) -> None:
        """Clear the screen, except for a prompt at its top."""
        self.clear_screen()
        self.type("clear")
        self.wait(rf"\A{PROMPT} ?\Z")


class Tmux:
    """A tmux server with a socket of its own."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._socket = directory / "tmux"
        self._environment = {**environment, "PS1": f"{PROMPT} ", "LANG": "C.UTF-8", "TERM": "screen"}
        self._panes = 0

    def ask(self, *words: str) -> str:
        """Run a command of tmux, and return its output."""
        argv = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *words]
        result = subprocess.run(argv, capture_output=True, text=True, check=False, env=self._environment)
        assert result.returncode == 0, f"tmux {words}: {result.stderr}"
        return result.stdout

    def pane(self, shell: str, columns: int = 120, lines: int = 40) -> Pane:
        """Open a terminal with that shell at its prompt."""
        self._panes += 1
        name = f"pane{self._panes}"
        size = ("-x", str(columns), "-y", str(lines))
        self.ask("new-session", "-d", "-s", name, *size, *SHELLS[shell])
        pane = Pane(self, name)
        pane.wait_prompt()
        return pane

    def end(self) -> None:
        """End the server and all that runs in its terminals."""
        shown = subprocess.run(
            ["tmux", "-S", str(self._socket), "list-panes", "-a", "-F", "#{pane_pid}"],
            capture_output=True, text=True, check=False, env=self._environment,
        )  # fmt: skip
        below: list[psutil.Process] = []
        for pid in map(int, shown.stdout.split()):
            below += [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        subprocess.run(["tmux", "-S", str(self._socket), "kill-server"], capture_output=True, check=False)
        for process in below:
            if process.is_running():
                process.kill()


@contextmanager
def tmux_server(directory: Path, environment: Mapping[str, str]) -> Iterator[Tmux]:
    """Start a tmux server; end it with all that runs in it."""
    tmux = Tmux(directory, environment)
    try:
        yield tmux
    finally:
        tmux.end()
