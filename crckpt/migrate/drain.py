"""Find the jobs that run here, and move their trees to another host, some at once, each by a crckpt of its own.

Signals, holds and the deferral of interruptions belong to the main thread of a process, so a move is a process, not a
thread. One that fails does not stop the others.
"""

from __future__ import annotations

import os
import select
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from crckpt.errors import CrckptError, Interrupted, MoveInDoubt, RemoteError, TargetNotRunning
from crckpt.host import proc
from crckpt.host.process.run import start_with_pipes
from crckpt.host.process.signals import ignore_interrupts, interrupt_is_waiting, interrupts_deferred
from crckpt.model import JobName, Pid
from crckpt.ops.last_checkpoint import read_last_checkpoints
from crckpt.store import Repository
from crckpt.store.move_status import find_status
from crckpt.store.moves import read_move

# A signal that comes just before the wait begins is noticed after it.
_LOOK_MS: Final = 200
_MOST_READ: Final = 1 << 16
_MOST_UNCONNECTED: Final = 2
_INTERRUPTED: Final = "crckpt was interrupted"


Outcome: TypeAlias = Literal["moved", "movable", "stayed", "in-doubt", "ended", "included", "unknown"]


class RunningJob(Struct, frozen=True):
    """A job whose program runs here: the root of its tree, and the tree's memory that is in no file."""

    job: JobName
    root: proc.Process
    memory_bytes: int

    def end_as(
        self,
        outcome: Outcome,
        why: str = "",
        hint: str = "",
        causes: tuple[str, ...] = (),
        result: dict[str, Any] | None = None,
    ) -> MoveOutcome:
        """Make the outcome of its tree."""
        return MoveOutcome(self.job, self.root.pid, self.memory_bytes, outcome, why, hint, causes, result)


class MoveOutcome(Struct, frozen=True):
    """The outcome of one tree.

    - `moved`: it runs on the other host; `movable`: with --check, it could
    - `stayed`: it runs here, and `why`
    - `in-doubt`: it may run nowhere; `hint` is the command that finishes the move
    - `ended`: the program has ended by itself
    - `included`: it moves with the tree of another job; `unknown`: crckpt does not know whether it runs here
    - `causes`: all reasons, if there are several; `result`: the document of the move
    """

    job: JobName
    pid: Pid | None
    memory_bytes: int
    outcome: Outcome
    why: str = ""
    hint: str = ""
    causes: tuple[str, ...] = ()
    result: dict[str, Any] | None = None


class DrainResult(Struct, frozen=True):
    """The outcomes in the order of their decisions; `free_bytes`: what trees could take on the other host before."""

    outcomes: tuple[MoveOutcome, ...]
    interrupted: bool
    free_bytes: int = 0


class DrainReport(Struct, frozen=True):
    """Shows progress to the user: that the move of a job begins, a line of it, and its outcome."""

    begin: Callable[[RunningJob], object]
    say: Callable[[RunningJob, str], object]
    end: Callable[[MoveOutcome], object]


def make_command(job: RunningJob, host: str, options: Sequence[str]) -> tuple[str, ...]:
    """Build the command that moves one job."""
    # -P: Python takes no module from the current directory, which may be another user's.
    module = (sys.executable, "-P", "-m", "crckpt")
    return (*module, "migrate", "--json", *options, "--", str(job.root.pid), host, job.job)


class Drain(Struct):
    """Moves jobs to `host` by these commands: those that wait, those that run, and the outcomes of the others.

    Each move checks for itself whether its tree fits into the other host. Two checks at once would both count the same
    free bytes: a tree that does not fit into what is left of `free_bytes` waits until no other is being moved. No move
    begins after two, one after the other, that have lost their connection, or had none (`unconnected`).
    """

    waiting: deque[RunningJob]
    repository: Repository
    command: Callable[[RunningJob], Sequence[str]]
    free_bytes: int
    report: DrainReport
    host: str
    running: list[_Move] = []
    outcomes: list[MoveOutcome] = []
    unconnected: int = 0

    def run(self, at_once: int) -> DrainResult:
        """Move the jobs in their order, `at_once` at a time; return when all have ended.

        After an interruption no move begins. Those before their commit are aborted, and the others are finished.
        """
        is_interrupted = False
        with interrupts_deferred():
            while self.waiting or self.running:
                if interrupt_is_waiting() and not is_interrupted:
                    is_interrupted = True
                    # A move that has passed its commit finishes.
                    for move in self.running:
                        move.give_up()
                    self._leave_waiting(_INTERRUPTED)
                self._start(at_once)
                self._wait()
            if interrupt_is_waiting():
                is_interrupted = True
                # The result says what it has stopped.
                ignore_interrupts()
        return DrainResult(tuple(self.outcomes), is_interrupted)

    def _start(self, at_once: int) -> None:
        """Start moves until `at_once` run, or the next one may not fit next to them."""
        while self.waiting and len(self.running) < at_once:
            moved = sum(outcome.memory_bytes for outcome in self.outcomes if outcome.outcome == "moved")
            moving = sum(move.job.memory_bytes for move in self.running)
            if self.running and moved + moving + self.waiting[0].memory_bytes > self.free_bytes:
                return
            job = self.waiting.popleft()
            if not job.root.identity.keeps_pid:
                self._end(job.end_as("ended", "the program has ended"))
                continue
            self.report.begin(job)
            try:
                self.running.append(_Move(job, self.command(job)))
            except CrckptError as error:
                self._end(job.end_as("stayed", error.message, error.hint))

    def _wait(self) -> None:
        """Wait a moment for what the moves write, and for their ends."""
        poll = select.poll()
        for move in self.running:
            for descriptor in move.descriptors:
                poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(_LOOK_MS)} if self.running else set()
        ended = [move for move in self.running if move.pidfd in ready]
        for move in self.running:
            move.read_output(self.report)
        for move in ended:
            self.running.remove(move)
            move.end()
            outcome = move.read_outcome(self.repository)
            self._end(outcome)
            error = move.error
            is_unconnected = error and error.code in _OF_CONNECTION and not error.from_peer
            self.unconnected = self.unconnected + 1 if is_unconnected else 0
            if self.unconnected >= _MOST_UNCONNECTED:
                # Each would try for seconds, and find the same.
                self._leave_waiting(
                    f"not begun, because two moves before it failed: {outcome.why}",
                    f"when crckpt can connect to {self.host} again: crckpt migrate --all {self.host}",
                )

    def _leave_waiting(self, why: str, hint: str = "") -> None:
        for job in self.waiting:
            self._end(job.end_as("stayed", why, hint))
        self.waiting.clear()

    def _end(self, outcome: MoveOutcome) -> None:
        self.outcomes.append(outcome)
        self.report.end(outcome)


class _Move:
    def __init__(self, job: RunningJob, command: Sequence[str]) -> None:
        self.job = job
        # All of the environment: ssh takes the agent, the home and more from it.
        self._child, pipes = start_with_pipes(command, os.environ)
        os.close(pipes.stdin)
        self.pidfd = self._child.pidfd
        self._content = {pipes.stdout: bytearray(), pipes.stderr: bytearray()}
        self._stdout, self._stderr = pipes.stdout, pipes.stderr
        self._open = {pipes.stdout, pipes.stderr}
        for descriptor in self._open:
            os.set_blocking(descriptor, False)
        self._last_line = ""
        self._status = 0
        self.error: _Error | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What to wait for."""
        return (self.pidfd, *self._open)

    def give_up(self) -> None:
        """Have it abort the move if that is before its commit; after it, it finishes the move."""
        self._child.terminate()

    def read_output(self, report: DrainReport) -> None:
        """Read what it has written, and show whole lines of its stderr."""
        for descriptor in tuple(self._open):
            # Until nothing is left: the end of the process may have been seen already.
            with suppress(BlockingIOError):
                while content := os.read(descriptor, _MOST_READ):
                    self._content[descriptor] += content
                self._close(descriptor)
        *lines, rest = self._content[self._stderr].split(b"\n")
        self._content[self._stderr] = rest
        for line in lines:
            self._last_line = line.decode(errors="replace").rstrip()
            report.say(self.job, self._last_line)

    def end(self) -> None:
        """Reap it; it has ended, and its output was read."""
        self._status = self._child.wait()
        for descriptor in tuple(self._open):
            self._close(descriptor)

    def read_outcome(self, repository: Repository) -> MoveOutcome:
        """Read how the move has ended: what crckpt says, or if it says nothing what is recorded."""
        try:
            document = msgspec.json.decode(bytes(self._content[self._stdout]), type=_Document)
        except msgspec.MsgspecError:
            return self._look_up(repository)
        if document.result is not None:
            is_check = bool(document.result.get("check"))
            return self.job.end_as("movable" if is_check else "moved", result=document.result)
        self.error = error = document.error
        if error is None:
            return self._look_up(repository)
        outcome = _BY_CODE.get(error.code, "stayed")
        why = _INTERRUPTED if error.code == Interrupted.exit_code else error.message
        return self.job.end_as(outcome, why, error.hint, error.causes)

    def _look_up(self, repository: Repository) -> MoveOutcome:
        """Find where the tree of a crckpt that was killed is."""
        ended = f"was ended by signal {-self._status}" if self._status < 0 else f"ended with status {self._status}"
        words = f": {self._last_line}" if self._last_line else ""
        why = f"the crckpt that moved it {ended}{words}"
        try:
            move = read_move(repository.backend, self.job.job)
        except CrckptError as error:
            return self.job.end_as("in-doubt", f"{why}; {error.message}", error.hint)
        status = find_status(move) if move is not None else None
        if status is None or (status.runs_on == "source") == (status.move.side == "source"):
            # Of no move, or of one that brought it here or left it here.
            return self.job.end_as("stayed" if self.job.root.identity.keeps_pid else "ended", why)
        if status.runs_on is not None:
            return self.job.end_as("moved", why)
        return self.job.end_as("in-doubt", why, status.next_command or "crckpt migrate --list")

    def _close(self, descriptor: int) -> None:
        self._open.remove(descriptor)
        os.close(descriptor)


class _Error(Struct, frozen=True):
    code: int
    message: str
    hint: str
    causes: tuple[str, ...]
    from_peer: bool = False


class _Document(Struct, frozen=True):
    result: dict[str, Any] | None = None
    error: _Error | None = None


_OF_CONNECTION: Final = (RemoteError.exit_code, MoveInDoubt.exit_code)
_BY_CODE: Final[dict[int, Outcome]] = {MoveInDoubt.exit_code: "in-doubt", TargetNotRunning.exit_code: "ended"}


def find_running_jobs(repository: Repository) -> tuple[tuple[RunningJob, ...], tuple[MoveOutcome, ...]]:
    """Find the jobs whose programs run here, known by their roots: those to move, the largest first, and the others.

    No tree is in two of them.
    """
    found: dict[proc.Identity, RunningJob] = {}
    excluded: list[MoveOutcome] = []
    # Of two jobs of one program, the one that was dumped last has it.
    for last in reversed(read_last_checkpoints(repository)):
        job = last.checkpoint.job
        root = last.find_running_root()
        if root is None:
            if last.details is None:
                name = last.checkpoint.short_id
                why = f"checkpoint {name} cannot be read, so crckpt does not know whether its program runs here"
                excluded.append(MoveOutcome(job, None, 0, "unknown", why, f"check it: crckpt verify {name}"))
            continue
        if root.identity in found:
            why = f"it is the program of the job {found[root.identity].job}"
            excluded.append(MoveOutcome(job, root.pid, 0, "included", why))
        else:
            found[root.identity] = RunningJob(job, root, proc.memory(*proc.read_tree(root).pids))
    kept, rest = _separate({each.root.pid: each for each in found.values()})
    kept.sort(key=lambda job: (-job.memory_bytes, job.job))
    return tuple(kept), (*excluded, *rest)


def _separate(jobs: dict[int, RunningJob]) -> tuple[list[RunningJob], list[MoveOutcome]]:
    """Separate the jobs that can be moved from those that must stay, or are parts of others; by the PID of the root."""
    own = (os.getpid(), *proc.ancestors(os.getpid()))
    movable = {pid: job for pid, job in jobs.items() if pid not in own}
    excluded = []
    for pid, job in jobs.items():
        if pid in own:
            hint = f"move it from another shell: crckpt migrate {pid} HOST {job.job}"
            excluded.append(MoveOutcome(job.job, job.root.pid, 0, "stayed", "this crckpt runs in its tree", hint))
    kept = []
    for pid, job in movable.items():
        above = next((movable[other] for other in proc.ancestors(pid) if other in movable), None)
        if above is None:
            kept.append(job)
        else:
            excluded.append(
                MoveOutcome(job.job, pid, 0, "included", f"it is a part of the tree of the job {above.job}")
            )
    return kept, excluded
