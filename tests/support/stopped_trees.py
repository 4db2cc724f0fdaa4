"""The start of tests of restores: trees that were checkpointed and ended, and a CRIU that can be made to fail."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from cases import CASES
from checkout import TESTS
from command import PROGRAM, Crckpt, find_criu
from trees import PYTHON, Case, NamespaceInits, Tree, runs, started, wait_for

BY_NAME: Final = {case.name: case for case in CASES}
JOB: Final = "job"

_PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h

_WRAPPER: Final = """#!/bin/sh
here=${0%/*}
[ "$1" = restore ] || exec @CRIU@ "$@"
shift
[ -e "$here/before" ] && set -- "$@" --action-script "$here/before"
[ -e "$here/after" ] && set -- --action-script "$here/after" "$@"
exec @CRIU@ restore "$@"
"""
_STEP: Final = """#!/bin/sh
[ "$CRTOOLS_SCRIPT_ACTION" = @STEP@ ] || exit 0
"""
_WAITS: Final = 'touch "$0.waits"\nwhile [ ! -e "$0.go" ]; do sleep 0.02; done\n'


def program(name: str, *arguments: str) -> Case:
    """A case for a program of tests/programs."""
    return Case(name, (PYTHON, f"{{programs}}/{name}.py", "{workdir}", *arguments))


@contextmanager
def orphans_adopted() -> Iterator[None]:
    """Orphans come to this process, where their tree reaps them at once; the system's init may take seconds."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@contextmanager
def stopped(crckpt: Crckpt, case: Case, *words: str) -> Iterator[Tree]:
    """A tree that was checkpointed as `job` and ended, and whose PIDs are free."""
    with started(case) as tree:
        crckpt.run("dump", str(tree.pid), JOB, "--stop", *words)
        tree.wait_gone()
        yield tree


@contextmanager
def foreground(crckpt: Crckpt, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`crckpt restore job` that stays; ended with the block if it is still there."""
    process = crckpt.start("restore", JOB, *words)
    try:
        yield process
    finally:
        # A namespace for the tree would outlive a crckpt that is killed.
        inits = NamespaceInits(process.pid)
        process.kill()
        process.communicate(timeout=60)
        inits.end()


@contextmanager
def hang_ups_ignored() -> Iterator[None]:
    """Start what is started in this block as by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@contextmanager
def taken(number: int, kind: str) -> Iterator[int]:
    """Another program uses `number` as its PID, thread, group or session; the PID of that program."""
    argv = [PYTHON, str(TESTS / "programs/take_id.py"), str(number), kind]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as taker:
        assert taker.stdout is not None
        line = taker.stdout.readline()
        holder = int(line.removeprefix("taken by "))
        try:
            yield holder
        finally:
            with suppress(ProcessLookupError):
                os.kill(holder, signal.SIGKILL)
            taker.wait()
            with suppress(ChildProcessError):
                os.waitpid(holder, 0)


@contextmanager
def detached_in_namespace(crckpt: Crckpt, *words: str) -> Iterator[int]:
    """The tree of `job`, restored into a pid namespace of its own; the host's PID of its init, which ends with it."""
    result = crckpt.run("restore", JOB, "--detach", "--new-pid-namespace", "--json", *words)
    init = psutil.Process(int(result.document["result"]["pid"])).ppid()
    parent = psutil.Process(init).ppid()
    try:
        yield init
    finally:
        with suppress(ProcessLookupError):
            os.kill(init, signal.SIGKILL)
        wait_for(lambda: not runs(init), 60, "the namespace to end")
        with suppress(ChildProcessError):
            os.waitpid(parent, 0)


@contextmanager
def restored_by(crckpt: Crckpt, how: str) -> Iterator[list[str]]:
    """Restore JOB detached, in the foreground, or else in a namespace of its own; gives the warnings."""
    if how == "detached":
        yield crckpt.run("restore", JOB, "--detach", "--json").document["result"]["warnings"]
    elif how == "foreground":
        with foreground(crckpt):
            yield []
    else:
        with detached_in_namespace(crckpt):
            yield []


def staging(crckpt: Crckpt) -> tuple[str, ...]:
    """List the store's directory for things in flight."""
    return tuple(sorted(path.name for path in (crckpt.store / "tmp").iterdir()))


@dataclass(frozen=True)
class Obstacle:
    """A step of a restore, once the tree is built and before it runs, where a test has put something in CRIU's way."""

    path: Path

    def wait_reached(self) -> None:
        """Wait until CRIU waits at the obstacle."""
        wait_for(Path(f"{self.path}.waits").exists, 60, "CRIU to wait")

    def let_go(self) -> None:
        """Let CRIU go on."""
        Path(f"{self.path}.go").touch()


class ObstructedCriu:
    """The real CRIU, behind a script that may put something in its way."""

    def __init__(self, directory: Path) -> None:
        """Write the script to `directory`."""
        self._directory = directory
        self.path = directory / "criu"
        self.path.write_text(_WRAPPER.replace("@CRIU@", str(find_criu())))
        self.path.chmod(0o755)
        # crckpt caches now that this CRIU works. Later, with an obstacle, it would reject this CRIU.
        subprocess.run([str(PROGRAM), "doctor", "--criu", str(self.path)], check=True, stdout=subprocess.DEVNULL)

    @contextmanager
    def fails(self, *, committed: bool) -> Iterator[None]:
        """It fails when the tree is built: before crckpt looks at the tree, or when it has said that all is well."""
        with self._step("after" if committed else "before", "exit 1\n"):
            yield

    @contextmanager
    def is_killed(self) -> Iterator[None]:
        """It is killed when the tree is built and does not run yet, as by a system that is out of memory."""
        with self._step("before", "kill -KILL $PPID\n"):
            yield

    @contextmanager
    def spins(self) -> Iterator[None]:
        """Let CRIU use CPU time endlessly when the tree is built, before crckpt examines the tree."""
        with self._step("before", "while :; do :; done\n"):
            yield

    @contextmanager
    def stops(self) -> Iterator[Path]:
        """Its script, whose path this gives, stops itself when the tree is built, before crckpt looks at the tree."""
        with self._step("before", "kill -STOP $$\n") as path:
            yield path

    def waits_at_first(self) -> AbstractContextManager[Obstacle]:
        """Let CRIU wait before it builds anything."""
        return self._waiting("before", "pre-restore")

    def waits(self, *, committed: bool) -> AbstractContextManager[Obstacle]:
        """It waits when the tree is built: before crckpt looks at the tree, or when it has said that all is well."""
        return self._waiting("after" if committed else "before", "post-restore")

    @contextmanager
    def _waiting(self, name: str, step: str) -> Iterator[Obstacle]:
        with self._step(name, _WAITS, step) as path:
            obstacle = Obstacle(path)
            try:
                yield obstacle
            finally:
                obstacle.let_go()

    @contextmanager
    def _step(self, name: str, what: str, step: str = "post-restore") -> Iterator[Path]:
        path = self._directory / name
        for left in self._directory.glob(f"{name}.*"):
            left.unlink()
        path.write_text(_STEP.replace("@STEP@", step) + what)
        path.chmod(0o755)
        try:
            yield path
        finally:
            # A waiting script has already read this file, and waits for its file `go`.
            path.unlink()
