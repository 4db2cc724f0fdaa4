"""CRIU by itself, called as crckpt calls it, with programs of tests/programs/provoking.py."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

import psutil
import pytest
from command import PROGRAM, find_criu
from trees import PROGRAMS, PYTHON, NamespaceInits, wait_for

from crckpt.criu.command import Paths, dump_command, restore_command
from crckpt.model import DumpOptions

WITHIN_S: Final = 60.0


@dataclass(frozen=True)
class EndedCriu:
    """A CRIU that has ended, and its log with what it said before there was one."""

    status: int
    log: str

    @property
    def complaints(self) -> str:
        """The lines of the log that explain why a test failed."""
        return "\n".join(line for line in self.log.splitlines() if re.search("Error|Warn|an't", line))


class Target:
    """A program that holds something; `depth` generations below what was started, as `unshare --fork` forks."""

    def __init__(
        self, kind: str, workdir: Path, within: Sequence[str] = (), depth: int = 0, python: Path = Path(PYTHON)
    ) -> None:
        """Start it, `within` something else; the test is skipped where the machine has no such thing."""
        self.workdir = workdir
        argv = (*within, str(python), "-S", "-B", str(PROGRAMS / "provoking.py"), kind, str(workdir))
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(
            argv, cwd="/", stdin=nothing, stdout=nothing, stderr=nothing, start_new_session="setsid" not in within
        )
        self._inits: NamespaceInits | None = None
        try:
            wait_for(self._is_ready, WITHIN_S, f"{kind} to be ready")
            self._inits = NamespaceInits(self._process.pid)
            self.pid = self._process.pid
            for _ in range(depth):
                self.pid = psutil.Process(self.pid).children()[0].pid
        except BaseException:
            self.end()
            raise

    def _is_ready(self) -> bool:
        cannot = self.workdir / "cannot"
        if self._process.poll() is not None and cannot.exists():
            pytest.skip(f"this machine cannot do that: {cannot.read_text()}")
        assert self._process.poll() is None, "the program ended"
        return (self.workdir / "ready").exists()

    def lives_on(self) -> None:
        """Check that no process of the tree is stopped or traced, and that the tree answers."""
        processes = (psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True))
        for process in processes:
            assert process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP), f"{process} stands"
        answers = self.workdir / "answers"
        before = answers.stat().st_size if answers.exists() else 0
        os.kill(self.pid, signal.SIGUSR1)
        wait_for(lambda: answers.exists() and answers.stat().st_size > before, WITHIN_S, "an answer")

    def wait_ended(self) -> None:
        """Wait until the PIDs of the tree are free after a dump that ends it."""
        self._process.wait(WITHIN_S)

    def end(self) -> None:
        """End all processes of the tree that still run."""
        inits = self._inits or NamespaceInits(self._process.pid)
        self._end_processes()
        inits.end()

    def _end_processes(self) -> None:
        if self._process.poll() is not None:
            return
        with suppress(psutil.NoSuchProcess):
            for process in reversed(psutil.Process(self._process.pid).children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@contextmanager
def fresh_directory() -> Iterator[Path]:
    """A new directory that all users may enter, removed after the block."""
    directory = Path(tempfile.mkdtemp(prefix="crckpt-provoked-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def dump(pid: int, images: Path, options: Sequence[str] = (), under: Sequence[str] = ()) -> EndedCriu:
    """`criu dump` as crckpt calls it, with more `options`, started by `under`."""
    return _wait_for_end(
        dump_command(criu(), pid, _paths(images), DumpOptions(), leave_running=False), images, options, under
    )


def restore(images: Path, options: Sequence[str] = (), under: Sequence[str] = ()) -> EndedCriu:
    """`criu restore` as crckpt calls it, likewise."""
    return _wait_for_end(restore_command(criu(), _paths(images), DumpOptions(), sibling=False), images, options, under)


def end_restored(pid: int) -> None:
    """End and reap what a restore has left; who adopts orphans only. A stranger who has the number by now is spared."""
    with suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def explain_log(log: str) -> dict[str, Any]:
    """Run `crckpt explain` on a log, and return its document."""
    output = subprocess.run(
        [str(PROGRAM), "explain", "-", "--json"], input=log, capture_output=True, text=True, check=True
    ).stdout
    result: dict[str, Any] = json.loads(output)["result"]
    return result


@cache
def criu() -> Path:
    """The CRIU that crckpt takes."""
    return find_criu()


def _paths(images: Path) -> Paths:
    images.mkdir(exist_ok=True)
    work = images.with_name(f"{images.name}-work")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    return Paths(images, work)


def _wait_for_end(command: Sequence[str], images: Path, options: Sequence[str], under: Sequence[str]) -> EndedCriu:
    result = subprocess.run(
        [*under, *command, *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    (log, *_) = (*images.with_name(f"{images.name}-work").glob("*.log"), None)
    return EndedCriu(result.returncode, result.stdout + result.stderr + (log.read_text() if log else ""))
