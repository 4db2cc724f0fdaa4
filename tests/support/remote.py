"""A program that runs code of a test, and has no descriptors of the test except those given to it."""

import ast
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from trees import PROGRAMS, PYTHON, open_workdir, runs, wait_for

WITHIN_S: Final = 60


class Remote:
    """tests/programs/run_code.py, running. Its PID stays the same when it is restored."""

    def __init__(self, workdir: Path, keep: Sequence[int] = (), stdin: int | None = None) -> None:
        self.workdir = workdir
        self._asked = 0
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(
            [PYTHON, str(PROGRAMS / "run_code.py"), str(workdir)],
            stdin=null if stdin is None else stdin,
            stdout=null,
            stderr=null,
            start_new_session=True,
            pass_fds=tuple(keep),
        )
        self.pid = self._process.pid

    def tell(self, code: str) -> None:
        """Give an order; `answer` waits for the answer."""
        (self.workdir / "order").write_text(code)
        (self.workdir / "order").rename(self.workdir / f"{self._asked}.py")
        self._asked += 1

    def answer(self) -> object:
        """The result of the last order; AssertionError with the traceback if it raised something."""
        path = self.workdir / f"{self._asked - 1}.txt"
        wait_for(path.exists, WITHIN_S, "an answer")
        try:
            return ast.literal_eval(path.read_text())
        except (SyntaxError, ValueError):
            raise AssertionError(path.read_text()) from None

    def ask(self, code: str) -> object:
        """Run this code, and return its result."""
        self.tell(code)
        return self.answer()

    def wait_gone(self) -> None:
        """Reap the program after `dump --stop`."""
        self._process.wait(WITHIN_S)

    def end(self) -> None:
        """End the program, whatever process is its parent now."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait(WITHIN_S)
        wait_for(lambda: not runs(self.pid), WITHIN_S, "it to end")


@contextmanager
def remote(*keep: int, stdin: int | None = None) -> Iterator[Remote]:
    """It, ended afterwards. `keep` are descriptors that it gets."""
    with open_workdir() as workdir:
        program = Remote(workdir, keep, stdin)
        try:
            yield program
        finally:
            program.end()
