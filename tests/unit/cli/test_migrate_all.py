"""The command line of `migrate --all`, and its summary."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import CommandLine
from image_sets import described, of_pages, store
from msgspec.structs import asdict, replace
from small_programs import WAIT_STATEMENTS, program, read

from crckpt.cli.app import make_parser, run
from crckpt.cli.migrate import find_failure, make_options, summary_lines
from crckpt.cli.output import form
from crckpt.errors import UsageError
from crckpt.migrate.drain import DrainResult, MoveOutcome, Outcome
from crckpt.migrate.request import MigrateRequest
from crckpt.model import JobName
from crckpt.store import Repository

USAGE = 2
REMOTE = 30


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("node2", "--move-ip", "10.0.0.7/24@eth0"), "--all cannot be combined with --move-ip: an address belongs"),
        (("node2", "--list"), "--all cannot be combined with --list"),
        (("node2", "--resume", "0123456789abcdef"), "--all cannot be combined with --resume"),
        ((), "takes one word, the host"),
        (("812", "node2"), "takes one word, the host"),
        (("no host",), "'no host' is not a host name for ssh"),
        (("node2", "--abort-over"), "--abort-over needs --max-downtime"),
    ],
)
def test_migrate_all_refuses_contradictory_options(
    command_line: CommandLine, words: tuple[str, ...], message: str
) -> None:
    assert message in command_line.run("migrate", "--all", *words, status=USAGE)


def test_migrate_option_at_once_without_all_is_a_usage_error(command_line: CommandLine) -> None:
    assert "--at-once needs --all" in command_line.run("migrate", "812", "node2", "--at-once", "2", status=USAGE)


def test_migrate_all_without_a_running_job_says_that_nothing_is_running(command_line: CommandLine) -> None:
    assert "no program of a job in this store is running here" in command_line.run("migrate", "--all", "node2")
    assert command_line.result("migrate", "--all", "node2", "--check") == {
        "host": "node2",
        "check": True,
        "interrupted": False,
        "jobs": [],
    }


CLOCK = Path("/proc/1/fd/9")


def options_of(words: Sequence[str], bandwidth: int | None = None, together: int = 2) -> tuple[str, ...]:
    parsed = make_parser("migrate").make_context("migrate", ["--all", "node2", *words])
    return make_options(parsed, bandwidth, CLOCK, together)


def test_migrate_all_passes_its_options_on_to_each_move(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (
        *("--tcp=close", "--tty=new", "--before-freeze=echo $CRCKPT_JOB; true", "--address-hook=true"),
        *("--max-downtime=300ms", "--max-rounds=4", "--bandwidth=50M", "--remote-crckpt=sudo crckpt"),
        *("--remote-store=/srv/store", "--store=/srv/here", "--criu=/criu", "--config=/config"),
        *("--check", "--send-files", "--abort-over", "--local-lazy", "--allow-weaker", "--no-preflight"),
        "--job-of-another-program",
    )
    own = ("--at-once", "4", "--json")
    assert sorted(options_of((*given, *own), 50 << 20)) == sorted((*given, f"--bandwidth-clock={CLOCK}"))
    monkeypatch.delenv("CRCKPT_STORE")
    assert options_of(()) == ("--max-rounds=8", "--remote-crckpt=crckpt")


def test_migrate_all_passes_options_of_the_environment_on_to_each_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRCKPT_STORE", "/srv/here")
    assert "--store=/srv/here" in options_of(())


def test_migrate_all_passes_every_option_on_or_excludes_it() -> None:
    """An option is passed to each move, or belongs to `--all` or to a command without `--all`."""
    flags = ("--check", "--send-files", "--abort-over", "--lazy", "--local-lazy", "--allow-weaker", "--no-preflight")
    values = ("before-freeze", "address-hook", "max-downtime", "bandwidth", "remote-store", "store", "criu", "config")
    given = (*flags, "--job-of-another-program", "--tcp=keep", "--tty=null", *(f"--{name}=x" for name in values))
    passed = {word.partition("=")[0] for word in options_of(given, 50 << 20)}
    others = {"--all", "--at-once", "--json", "--quiet", "--move-ip", "--list", "--resume", "--source-is-gone"}
    names = {name for option in make_parser("migrate").params for name in option.opts if name.startswith("--")}
    assert names == passed | others


def test_migrate_all_passes_quiet_on_to_each_move(monkeypatch: pytest.MonkeyPatch) -> None:
    # The parser sets `is_quiet`, and monkeypatch restores its present value.
    monkeypatch.setattr(form, "is_quiet", False)
    assert options_of(("--quiet",))[-1] == "--quiet"


def test_bandwidth_that_is_too_low_for_all_moves_at_once_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="too low for 4 moves at the same time"):
        options_of((), 40 << 10, 4)


def make_outcome(outcome: Outcome, job: str = "app", **facts: object) -> MoveOutcome:
    result = {"pid": 9, "downtime_ms": 80.0, "over_budget": False, "sent_bytes": 2048, "seconds": 3.0, "to_send": []}
    is_done = outcome in ("moved", "movable")
    values = MoveOutcome(
        JobName(job), 7, 1 << 20, outcome, result={**result, "warnings": [], **facts} if is_done else None
    )
    return values if is_done else replace(values, **facts)


def lines(*outcomes: MoveOutcome, check: bool = False, free_bytes: int = 1 << 40) -> list[str]:
    return "".join(
        summary_lines(
            DrainResult(outcomes, interrupted=False, free_bytes=free_bytes), MigrateRequest("", "node2", check=check)
        )
    ).splitlines()


def test_migrate_all_lists_the_moved_programs() -> None:
    assert lines(make_outcome("moved", over_budget=True, warnings=["it is slow"])) == [
        "1 of 1 program moved to node2",
        "  app (PID 7): runs there as PID 9, downtime 80 ms (over the budget of --max-downtime), 2.0 KiB sent in 3.0 s",
        "    note: it is slow",
    ]
    files = [{"path": "/srv/one", "bytes": 1}]
    assert lines(make_outcome("movable", to_send=files), check=True) == [
        "1 of 1 program can be moved to node2",
        "  app (PID 7): 1.0 MiB of memory to send, before compression, and 1 file",
    ]


def test_migrate_all_check_says_that_the_programs_may_not_all_fit() -> None:
    outcomes = (make_outcome("movable", "one"), make_outcome("movable", "two"))
    output = lines(*outcomes, check=True, free_bytes=(2 << 20) - 1)
    assert output[-1] == (
        "note: together they have 2.0 MiB of memory, and node2 has 2.0 MiB free: they may not all fit"
    )
    assert not any("fit" in line for line in lines(*outcomes, check=True, free_bytes=2 << 20))


def test_migrate_all_lists_the_programs_that_stayed_with_reasons() -> None:
    assert lines(
        make_outcome("stayed", why="no", hint="do"),
        make_outcome("stayed", "two", why="no", causes=("one: do", "other: do")),
        make_outcome("included", "part", why="it is a part of the tree of the job app"),
        make_outcome("ended", "gone", why="the program has ended"),
    ) == [
        "part (PID 7) is not moved by itself: it is a part of the tree of the job app",
        "gone (PID 7) was not moved: the program has ended",
        "0 of 2 programs moved to node2",
        "2 of 2 programs stayed here",
        "  app (PID 7): no",
        "    hint: do",
        "  two (PID 7): 2 reasons",
        "    - one: do",
        "    - other: do",
    ]


@pytest.mark.parametrize(
    ("outcomes", "interrupted", "code"),
    [
        (("moved", "included", "ended"), False, 0),
        (("moved", "stayed"), False, 3),
        (("unknown",), False, 3),
        (("moved", "stayed"), True, 130),
        # Nothing was left for the interruption to stop.
        (("moved",), True, 0),
        (("stayed", "in-doubt"), True, 31),
    ],
)
def test_exit_code_of_migrate_all_depends_on_the_outcomes(
    outcomes: tuple[Outcome, ...], interrupted: bool, code: int
) -> None:
    failure = find_failure(DrainResult(tuple(map(make_outcome, outcomes)), interrupted))
    assert (0 if failure is None else failure.exit_code) == code


def test_migrate_all_tries_an_unreachable_host_only_once(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ssh = tmp_path / "bin/ssh"
    tries = tmp_path / "tries"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\necho >>{tries}\necho no route >&2\nexit 255\n")
    ssh.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, program(WAIT_STATEMENTS) as one, program(WAIT_STATEMENTS) as other:
        patch.setenv("PATH", f"{ssh.parent}:/usr/bin:/bin:/usr/sbin:/sbin")
        for number, process in enumerate((one, other)):
            details = {"root": asdict(read(process.pid).identity)}
            new = described(f"job{number}", json.dumps(details).encode())
            store(repository, tmp_path, of_pages(number + 1), new)
        words = ["migrate", "--all", "node2", "--store", str(repository.root)]
        assert run(words) == REMOTE, shlex.join(words)
        printed = capsys.readouterr()
        assert printed.err.count("ssh cannot connect to node2: no route") == 1
        assert "job0" not in printed.err + printed.out
        assert tries.read_text() == "\n"
        assert (one.poll(), other.poll()) == (None, None)
