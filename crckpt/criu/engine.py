"""Run CRIU to its end, through a hold if there is one.

A dump's CRIU limits how long it tries to freeze a tree (--timeout, 10 s), a hold ends by itself, and `DumpLimit` limits
how long CRIU waits for the tree. A restore that makes no progress is ended.
"""

from __future__ import annotations

import re
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from crckpt.criu.hold import PATIENCE_S, GaveUp, Hold, InHold
from crckpt.errors import DumpFailed
from crckpt.host import proc
from crckpt.host.disk import fuse
from crckpt.host.disk.log_excerpt import read_file_ends
from crckpt.host.proc.status import read_stat
from crckpt.host.process import run
from crckpt.host.process.criu_progress import QUIET_S, Progress, dump_signs, waits_for_a_program
from crckpt.host.process.orphans import continue_with_descendants, end_with_descendants
from crckpt.host.process.signals import (
    interrupt_is_waiting,
    interruption,
    interrupts_allowed,
    interrupts_deferred,
    stops_deferred,
)
from crckpt.host.steps import limit
from crckpt.model import RunId

# Seconds since CRIU was started, in its log.
_FROZEN = re.compile(r"^\((\d+\.\d+)\) Seized task ", re.MULTILINE)
_LINE = re.compile(r"^\((\d+\.\d+)\) ", re.MULTILINE)
_LOOK_S = 1.0
BUSY_S: Final = limit("CRCKPT_BUSY_S", 600)
"""Seconds that the CRIU of a dump may work, and one more for each _LEAST_SPEED bytes of memory."""
_LEAST_SPEED: Final = 4 << 20
_KILLED_WITHIN_S = 3
_ABORTS = 3


class CriuResult(Struct, frozen=True):
    """The end of a run of CRIU. `status` is its exit status or minus a signal; times are monotonic, in seconds.

    If it `hung`, or worked for too long (`is_late`), crckpt ended it. `waited_for` are mount points of file systems
    that did not answer, which crckpt disconnected.
    """

    argv: tuple[str, ...]
    status: int
    log: str
    started: float
    ended: float
    hung: bool = False
    waited_for: tuple[str, ...] = ()
    is_late: bool = False

    @property
    def ok(self) -> bool:
        """Whether CRIU reports success."""
        return self.status == 0


class Aside(Protocol):
    """Work that is done in a thread while CRIU runs."""

    def run(self) -> None:
        """Work until `end` is called, or until nothing is left to do. Raises nothing."""

    def end(self) -> None:
        """Let `run` return soon."""


class DumpLimit:
    """The end of a dump whose CRIU, process `pid`, makes no progress: first of what it awaits, then of CRIU itself.

    The kernel then frees the tree, below `root`. A CRIU that works, but for much longer than a tree of that size needs,
    is ended, too: a program can give it work that grows with the square of what it has.

    `waited_for` are mount points of FUSE file systems that did not answer and were disconnected. `is_killed`: CRIU was
    killed, `is_late`: after too much work. `is_lost`: it cannot even be killed.
    """

    def __init__(self, pid: int, root: int, log: Path) -> None:
        self.waited_for: tuple[str, ...] = ()
        self.is_killed = self.is_lost = self.is_late = False
        self._pid = pid
        self._root = root
        self._log = log
        self._quiet = self._aborts = 0
        self._signs: object = None
        # Seconds in which CRIU worked, and its CPU time. In a hold it waits: that has limits of its own.
        self._busy_s = self._used = 0

    def look(self, *, is_to_end: bool) -> None:
        """Act if there is no progress. Call it every second; `is_to_end` after an interruption or a failure."""
        criu, tree = proc.descendants(self._pid), proc.descendants(self._root)
        signs = dump_signs(criu, tree, self._log)
        # Once CRIU is killed the tree runs again, and its signs do not count.
        self._quiet = self._quiet + 1 if self.is_killed or (signs is not None and signs == self._signs) else 0
        self._signs = signs
        self._count_work(criu)
        if self.is_late and not self.is_killed:
            self.is_killed = True
            self._quiet = 0
            end_with_descendants(self._pid)
            return
        if self._quiet <= (_KILLED_WITHIN_S if self.is_killed else PATIENCE_S if is_to_end else QUIET_S):
            return
        self._quiet = 0
        if self._aborts < _ABORTS and waits_for_a_program((*criu, *tree)):
            self._aborts += 1
            # Without its connection the wait ends with an error, and CRIU undoes its work: better than to kill it.
            if found := fuse.abort_connections(tree):
                self.waited_for = tuple(dict.fromkeys((*self.waited_for, *found)))
                return
        if self.is_killed:
            # It waits in the kernel, where not even SIGKILL reaches it.
            self.is_lost = True
            return
        self.is_killed = True
        end_with_descendants(self._pid)

    def _count_work(self, criu: tuple[int, ...]) -> None:
        before, self._used = self._used, sum(map(_read_ticks, criu))
        self._busy_s += self._used > before
        # The memory is read last: it takes the kernel long.
        if self._busy_s > BUSY_S and not self.is_late:
            self.is_late = self._busy_s > BUSY_S + proc.memory(*proc.descendants(self._root)) / _LEAST_SPEED


def _read_ticks(pid: int) -> int:
    with suppress(OSError):
        return read_stat(pid).cpu_ticks
    return 0


class CriuRun:
    """A CRIU that was started. `follow` it to its end."""

    def __init__(
        self,
        argv: tuple[str, ...],
        log: Path,
        *,
        holds: Sequence[Hold] = (),
        terminal: int | None = None,
        keep: Sequence[int] = (),
        limited: bool = False,
        tree: int = 0,
        start: Callable[..., run.Child] = run.start,
    ) -> None:
        """Start CRIU by `start`, which waits at these `holds`. The others are as for `run_criu`.

        `terminal` is a descriptor that CRIU gets as stdin. Then CRIU stays in our session, where the tree is to live,
        and ^Z stops both.
        """
        environment = {name: value for hold in holds for name, value in hold.environment.items()}
        self._argv = argv
        self._log = log
        self._terminal = terminal
        self.started = time.monotonic()
        self._limited = limited
        self._hung = False
        self._failure: BaseException | None = None
        self._child = start(
            argv,
            # What CRIU writes before its log is open.
            output=log.with_suffix(".out"),
            # Neither ^C nor the death of crckpt reaches a session of its own.
            own_session=terminal is None,
            stdin=terminal,
            keep=keep,
            environment=environment,
        )
        self.pid = self._child.pid
        self._dump_limit = DumpLimit(self.pid, tree, log)

    def follow(
        self, hold: Hold | None = None, in_hold: InHold | None = None, meanwhile: Aside | None = None
    ) -> CriuResult:
        """Follow CRIU to its end, as `run_criu` does."""
        # A stopped CRIU would never end, unless it stops with us.
        stops = stops_deferred() if self._terminal is None else nullcontext()
        with interrupts_deferred(), stops, _done_aside(meanwhile):
            self._failure = failure = self._attend(hold, in_hold)
            outcome = self.wait()
            # A CRIU that gave up waiting has failed: its result and its log say why.
            if failure is not None and (outcome.ok or not isinstance(failure, GaveUp)):
                raise failure
        return outcome

    def wait(self) -> CriuResult:
        """Wait until CRIU has ended by itself. May be called again."""
        progress = Progress(self._log)
        while not self._child.ends_within(_LOOK_S):
            self._look_after(progress)
        status = self._child.wait()
        late, hung = self._dump_limit.is_late, self._hung or self._dump_limit.is_killed
        log, waited_for = read_log(self._log), self._dump_limit.waited_for
        return CriuResult(self._argv, status, log, self.started, time.monotonic(), hung, waited_for, late)

    def _look_after(self, progress: Progress) -> None:
        """Limit its waits. If CRIU hangs and cannot be killed, raises the hold's failure, Interrupted or DumpFailed."""
        if self._limited:
            # CRIU waits for ever for a task that died at the wrong moment.
            if progress.is_stuck():
                self._hung = True
                end_with_descendants(self._child.pid)
            return
        if self._terminal is None:
            # ^Z does not reach its session, but a CRIU that runs as the tree's user can be stopped by that user.
            continue_with_descendants(self._child.pid)
        # Killed only as a last resort: a killed CRIU leaves sockets in repair mode, and their packets dropped.
        is_interrupted = interrupt_is_waiting()
        self._dump_limit.look(is_to_end=self._failure is not None or is_interrupted)
        if self._dump_limit.is_lost:
            self._child.abandon()
            said = f"CRIU (process {self.pid}) waits in the kernel and cannot be ended"
            if is_interrupted:
                raise self._failure or interruption(said)
            hint = "end the program that CRIU waits for (a FUSE file system of the tree); then the tree continues"
            raise self._failure or DumpFailed(f"the dump failed: {said}", hint=hint)

    def _attend(self, hold: Hold | None, in_hold: InHold | None) -> BaseException | None:
        """Wait until CRIU reaches the hold, or ends; work there, and return what failed."""
        if hold is None or in_hold is None:
            return None
        progress, ready = Progress(self._log), list[int]()
        while not ready:
            ready, _, _ = select.select([hold.reached, self._child.pidfd], [], [], _LOOK_S)
            if not ready:
                self._look_after(progress)
        if hold.reached not in ready:
            return None
        hold.work_began = time.monotonic()
        try:
            with interrupts_allowed():
                after_commit = in_hold()
            hold.commit(after_commit)
        # Of any kind, even KeyboardInterrupt: CRIU must first undo its work and end.
        except BaseException as error:
            hold.release()
            return error
        return None


def run_criu(
    argv: tuple[str, ...],
    log: Path,
    *,
    hold: Hold | None = None,
    in_hold: InHold | None = None,
    keep: Sequence[int] = (),
    meanwhile: Aside | None = None,
    limited: bool = False,
    tree: int = 0,
) -> CriuResult:
    """Run CRIU to its end. When it reaches the `hold`, call `in_hold`: a return commits, an exception aborts.

    What `in_hold` raises is raised again, after CRIU has undone its work and ended. A CRIU that gave up waiting for us
    fails, as its result and its log say. An interruption aborts a hold; elsewhere it waits until CRIU has ended, and so
    does ^Z.

    `keep` are descriptors that CRIU hands to the tree. `meanwhile` is done in a thread while CRIU runs. A `limited`
    CRIU, as in every restore, is ended with all that it made once it makes no progress. `tree` is the PID of the root
    of the tree that it dumps.
    """
    with interrupts_deferred(), stops_deferred():
        holds = (hold,) if hold is not None else ()
        return CriuRun(argv, log, holds=holds, keep=keep, limited=limited, tree=tree).follow(hold, in_hold, meanwhile)


@contextmanager
def _done_aside(work: Aside | None) -> Iterator[None]:
    """Let a thread do this work during the block."""
    if work is None:
        yield
        return
    thread = threading.Thread(target=work.run)
    thread.start()
    try:
        yield
    finally:
        work.end()
        thread.join()


def run_id(log: str) -> RunId | None:
    """The id of CRIU's run. Its network lock has it in its name (`inet CRIU-<id>`)."""
    found = re.search(r"CRIU run id = (\S+)", log)
    return RunId(found[1]) if found else None


def read_log(log: Path) -> str:
    """Read what CRIU wrote to stderr before its log was open, and its log; of long ones the begin and the end."""
    paths = (path for path in (log.with_suffix(".out"), log) if path.exists())
    return "".join(read_file_ends(path).decode(errors="replace") for path in paths)


def find_freeze(log: Path, earliest: float) -> float:
    """Return when CRIU began to freeze the tree, as time.monotonic(); `earliest` if the log does not tell.

    The log was written last by a CRIU that waits now.
    """
    with suppress(OSError):
        text = read_log(log)
        frozen, lines = _FROZEN.search(text), _LINE.findall(text)
        if frozen is not None:
            last = time.monotonic() - (time.time() - log.stat().st_mtime)
            return max(earliest, last - (float(lines[-1]) - float(frozen[1])))
    return earliest
