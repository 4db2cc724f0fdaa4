"""Several moves at once, each by a process of its own; here the processes are small programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace
from recorded_moves import record_move
from small_programs import WAIT_STATEMENTS, program, read

from crckpt.host.proc import LiveRoot, identify_live_root
from crckpt.host.process import run
from crckpt.migrate.drain import Drain, DrainReport, DrainResult, MoveOutcome, RunningJob, make_command
from crckpt.model import JobName
from crckpt.store import Repository

FAILING_MOVE = "import json; print(json.dumps({{'error': {{'code': {}, 'message': 'm', 'hint': 'h', 'causes': []}}}}))"
SUCCEEDING_MOVE = 'print(\'{"result": {"check": false, "pid": 7}}\')'
SUCCEEDING_CHECK = 'print(\'{"result": {"check": true, "pid": null}}\')'


class Lines:
    """A reader of progress lines that keeps them."""

    def __init__(self, hear: Callable[[str], None] = lambda _line: None) -> None:
        self.lines: list[str] = []
        self._hear = hear

    def begin(self, job: RunningJob) -> None:
        self.add(f"begin {job.job}")

    def say(self, job: RunningJob, line: str) -> None:
        self.add(f"{job.job}: {line}")

    def end(self, outcome: MoveOutcome) -> None:
        self.add(f"end {outcome.job}")

    def add(self, line: str) -> None:
        self.lines.append(line)
        self._hear(line)


@pytest.fixture
def jobs() -> Iterator[tuple[RunningJob, ...]]:
    """Three jobs of live processes."""
    with ExitStack() as stack:
        pids = [stack.enter_context(program(WAIT_STATEMENTS)).pid for _ in range(3)]
        yield tuple(RunningJob(JobName(f"job{pid}"), read(pid), 1000) for pid in pids)


MUCH_MEMORY = 1 << 40
HOST = "node2"


def drain(
    jobs: Sequence[RunningJob],
    repository: Repository,
    command: Callable[[RunningJob], Sequence[str]],
    at_once: int,
    free_bytes: int,
    lines: Lines,
) -> DrainResult:
    report = DrainReport(lines.begin, lines.say, lines.end)
    return Drain(deque(jobs), repository, command, free_bytes, report, HOST).run(at_once)


def move(
    repository: Repository, jobs: Sequence[RunningJob], *programs: str, at_once: int = 2, report: Lines | None = None
) -> DrainResult:
    """Move each job by the program given for it."""
    commands = {job: (sys.executable, "-c", code) for job, code in zip(jobs, programs, strict=True)}
    return drain(jobs, repository, commands.__getitem__, at_once, MUCH_MEMORY, report or Lines())


def test_failed_move_of_a_drain_does_not_stop_the_others(repository: Repository, jobs: tuple[RunningJob, ...]) -> None:
    result = move(repository, jobs, FAILING_MOVE.format(24), SUCCEEDING_MOVE, SUCCEEDING_CHECK)
    found = {outcome.job: outcome for outcome in result.outcomes}
    stayed, moved, movable = (found[job.job] for job in jobs)
    assert (stayed.outcome, stayed.why, stayed.hint, stayed.result) == ("stayed", "m", "h", None)
    assert (moved.outcome, moved.result) == ("moved", {"check": False, "pid": 7})
    assert movable.outcome == "movable"
    assert [outcome.pid for outcome in (stayed, moved, movable)] == [job.root.pid for job in jobs]
    assert not result.interrupted


@pytest.mark.parametrize(("code", "outcome"), [(31, "in-doubt"), (14, "ended"), (30, "stayed"), (130, "stayed")])
def test_exit_code_of_a_move_decides_its_outcome_in_a_drain(
    repository: Repository, jobs: tuple[RunningJob, ...], code: int, outcome: str
) -> None:
    (found,) = move(repository, jobs[:1], FAILING_MOVE.format(code)).outcomes
    assert (found.outcome, found.hint) == (outcome, "h")


@pytest.mark.parametrize("code", [30, 31])
def test_drain_begins_no_move_after_two_have_failed_to_reach_the_host(
    repository: Repository, jobs: tuple[RunningJob, ...], code: int
) -> None:
    found = move(
        repository, jobs, FAILING_MOVE.format(code), FAILING_MOVE.format(30), SUCCEEDING_MOVE, at_once=1
    ).outcomes
    assert [each.job for each in found] == [job.job for job in jobs]
    last = found[2]
    assert (last.outcome, last.why) == ("stayed", "not begun, because two moves before it failed: m")
    assert last.hint == f"when crckpt can connect to {HOST} again: crckpt migrate --all {HOST}"


@pytest.mark.parametrize(
    "between",
    [
        SUCCEEDING_MOVE,
        FAILING_MOVE.format(24),
        # An error from the destination shows that the host answers.
        FAILING_MOVE.format(30).replace("[]", "[], 'from_peer': True"),
    ],
)
def test_drain_tries_a_host_again_that_has_answered_in_between(
    repository: Repository, jobs: tuple[RunningJob, ...], between: str
) -> None:
    found = move(repository, jobs, FAILING_MOVE.format(30), between, SUCCEEDING_MOVE, at_once=1).outcomes
    assert found[2].outcome == "moved"


def test_drain_does_not_move_a_program_that_has_ended(repository: Repository, jobs: tuple[RunningJob, ...]) -> None:
    # Another start time: the PID belongs to another process now.
    ended = replace(jobs[0], root=replace(jobs[0].root, start=jobs[0].root.start - 1))
    (found,) = move(repository, (ended,), SUCCEEDING_MOVE).outcomes
    assert found.outcome == "ended"


def test_number_of_concurrent_moves_of_a_drain_is_limited(
    repository: Repository, jobs: tuple[RunningJob, ...], tmp_path: Path
) -> None:
    """The first two wait for each other, so both must run; neither ends before the third would have begun."""
    meet = f"""
import os, sys, time
from pathlib import Path
Path({str(tmp_path)!r}, sys.argv[1]).touch()
while len(os.listdir({str(tmp_path)!r})) < 2: time.sleep(0.01)
"""
    lines = Lines()
    commands = {job: (sys.executable, "-c", meet + SUCCEEDING_MOVE, job.job) for job in jobs}
    result = drain(jobs, repository, commands.__getitem__, 2, MUCH_MEMORY, lines)
    assert [outcome.outcome for outcome in result.outcomes] == ["moved"] * 3
    running = most = 0
    for line in lines.lines:
        running += {"begin": 1, "end": -1}[line.split()[0]]
        most = max(most, running)
    assert most == 2


@pytest.mark.parametrize(
    ("free_bytes", "kinds"),
    [
        (3000, "begin begin begin end end end"),
        # A program that has moved still uses its part of the space.
        (2999, "begin begin end end begin end"),
        (0, "begin end begin end begin end"),
    ],
)
def test_programs_that_may_not_fit_together_move_one_by_one(
    repository: Repository, jobs: tuple[RunningJob, ...], free_bytes: int, kinds: str
) -> None:
    """Each program has 1,000 bytes. The check of the last one decides."""
    lines = Lines()
    result = drain(jobs, repository, lambda _job: (sys.executable, "-c", SUCCEEDING_MOVE), 3, free_bytes, lines)
    assert [outcome.outcome for outcome in result.outcomes] == ["moved"] * 3
    assert [line.split()[0] for line in lines.lines] == kinds.split()


def test_output_of_a_move_in_a_drain_is_prefixed_with_its_job(
    repository: Repository, jobs: tuple[RunningJob, ...]
) -> None:
    lines = Lines()
    half = "import sys; sys.stderr.write('one\\ntw'); sys.stderr.flush(); sys.stderr.write('o\\n'); "
    move(repository, jobs[:1], half + SUCCEEDING_MOVE, report=lines)
    name = jobs[0].job
    assert lines.lines == [f"begin {name}", f"{name}: one", f"{name}: two", f"end {name}"]


def test_long_output_of_a_move_in_a_drain_is_read_while_it_is_written(
    repository: Repository, jobs: tuple[RunningJob, ...]
) -> None:
    many = "import json; print(json.dumps({'result': {'check': False, 'to_send': ['x' * 1000] * 1000}}))"
    (found,) = move(repository, jobs[:1], many).outcomes
    assert found.result is not None
    assert len(found.result["to_send"]) == 1000


KILLED_MOVE = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


def test_killed_move_of_a_drain_leaves_its_program_at_the_source(
    repository: Repository, jobs: tuple[RunningJob, ...]
) -> None:
    (found,) = move(repository, jobs[:1], KILLED_MOVE).outcomes
    assert (found.outcome, found.why) == ("stayed", "the crckpt that moved it was ended by signal 9")


@pytest.mark.parametrize(("state", "outcome"), [("ended", "in-doubt"), ("done", "moved"), ("aborted", "stayed")])
def test_outcome_of_a_killed_move_is_taken_from_its_record(
    repository: Repository, jobs: tuple[RunningJob, ...], state: str, outcome: str
) -> None:
    root: LiveRoot = identify_live_root(jobs[0].root)
    recorded = record_move(repository, "source", state, root=root, job=jobs[0].job)  # type: ignore[arg-type]
    (found,) = move(repository, jobs[:1], KILLED_MOVE).outcomes
    hint = f"crckpt migrate --resume {recorded.id}" if outcome == "in-doubt" else ""
    assert (found.outcome, found.hint) == (outcome, hint)


def test_move_whose_command_cannot_start_leaves_the_program(
    repository: Repository, jobs: tuple[RunningJob, ...]
) -> None:
    result = drain(jobs[:2], repository, lambda _job: ("/no/such/program",), 1, MUCH_MEMORY, Lines())
    assert [outcome.outcome for outcome in result.outcomes] == ["stayed", "stayed"]


def test_moves_of_a_drain_run_the_crckpt_command(jobs: tuple[RunningJob, ...]) -> None:
    command = make_command(jobs[0], "node2", ("--tcp=close",))
    assert command[-6:] == ("--json", "--tcp=close", "--", str(jobs[0].root.pid), "node2", jobs[0].job)
    result = run.run((*command[: command.index("--json")], "--help"), timeout=300)
    assert result.status == 0
    assert "--all" in result.output


# Both end with the process that has started them.
ABORTING_MOVE = f"""
import os, signal, sys, time
parent = os.getppid()
def end(*_):
    {FAILING_MOVE.format(130)}
    sys.stdout.flush()
    sys.exit(130)
signal.signal(signal.SIGTERM, end)
print("ready", file=sys.stderr, flush=True)
while os.getppid() == parent: time.sleep(0.1)
"""
FINISHING_MOVE = f"""
import os, signal, sys, time
come, parent = [], os.getppid()
signal.signal(signal.SIGTERM, lambda *_: come.append(1))
print("ready", file=sys.stderr, flush=True)
while not come and os.getppid() == parent: time.sleep(0.01)
{SUCCEEDING_MOVE}
"""
DRAINING_PROGRAM = """
import json, sys
from pathlib import Path
from crckpt.host.process.signals import handle_interrupts
from crckpt.host import proc
from collections import deque
from crckpt.migrate.drain import Drain, DrainReport, RunningJob
from crckpt.store import Repository

report = DrainReport(lambda job: None, lambda job, line: print(line, flush=True), lambda outcome: None)

handle_interrupts()
store, pids, codes = map(json.loads, sys.argv[1:])
jobs = [RunningJob(f"job{number}", proc.read_process(pid), 1) for number, pid in enumerate(pids)]
programs = dict(zip(jobs, codes))
words = lambda job: (sys.executable, "-c", programs[job])
found = Drain(deque(jobs), Repository.open(Path(store)), words, 1 << 40, report, "node2").run(2)
print(json.dumps([found.interrupted, [(each.job, each.outcome, each.why) for each in found.outcomes]]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interruption_of_a_drain_aborts_moves_that_are_not_committed(
    repository: Repository, jobs: tuple[RunningJob, ...], number: int
) -> None:
    """The first move gives up, the second one has passed its commit, the third one waits."""
    facts = (str(repository.root), [job.root.pid for job in jobs], (ABORTING_MOVE, FINISHING_MOVE, FINISHING_MOVE))
    words = (sys.executable, "-c", DRAINING_PROGRAM, *map(json.dumps, facts))
    # In a group of its own: ^C reaches all of a terminal's foreground group.
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "ready\n"
        if number == signal.SIGTERM:
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)
        interrupted, outcomes = json.loads(process.stdout.readline())
        assert process.wait() == 0
    assert interrupted
    why = "crckpt was interrupted"
    assert sorted(outcomes) == [["job0", "stayed", why], ["job1", "moved", ""], ["job2", "stayed", why]]
