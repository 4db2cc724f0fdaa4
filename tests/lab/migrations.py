"""Migrations in the lab, with a fault on one side; and the judge, which looks at processes, not at what crckpt says."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hosts import HOSTS, PROGRAMS, PYTHON, Process, Result, TwoHosts, wait_for

SERVER: Final = "numbered_server.py"
STORE: Final = "/var/lib/crckpt"
JOB: Final = "numbers"
PATIENCE: Final = "CRCKPT_PATIENCE_S=3"
_FAULTY: Final = "/usr/local/sbin/crckpt-at-fault"
_STEPS: Final = "/run/crckpt-steps"
_SIDES: Final = HOSTS[:2]
FIRST: Final = {"source": "move.handing-over", "destination": "move.receiving"}
"""The step of each side with which the hand-over begins."""


def arrange(lab: TwoHosts, host: str, *environment: str) -> str:
    """Make a command on a host that is crckpt with this environment; return its path."""
    settings = " ".join(map(shlex.quote, (PATIENCE, *environment)))
    script = f'#!/bin/sh\nexec env {settings} crckpt "$@"\n'
    lab.run(host, "sh", "-c", f"cat > {_FAULTY} && chmod 755 {_FAULTY}", stdin=script)
    return _FAULTY


def migrate_words(pid: int, *options: str) -> tuple[str, ...]:
    """The words of a migration from the source, by the commands that `arrange` made on both hosts."""
    return (_FAULTY, "migrate", str(pid), "destination", JOB, "--remote-crckpt", _FAULTY, *options)


@contextmanager
def served(lab: TwoHosts, *options: str, address: str = "0.0.0.0") -> Iterator[int]:  # noqa: S104 of a lab
    """numbered_server.py on the source, listening at an address: its PID. Afterwards nothing of it is left."""
    try:
        pid = lab.start("source", PYTHON, PROGRAMS / SERVER, address, "9000", *options)
        wait_for(lambda: ":9000" in lab.run("source", "ss", "-Hltn").out, "the server to listen")
        yield pid
    finally:
        lab.heal()
        lab.end(SERVER)
        for host in _SIDES:
            for process in crckpts(lab, host):
                lab.send_signal(process, signal.SIGCONT)
            wait_for(lambda host=host: not crckpts(lab, host), f"crckpt to end on the {host}")  # type: ignore[misc]
            lab.run(host, "find", STORE, "-mindepth", "1", "-delete", status=None)
            lab.run(host, "rm", "-f", _STEPS)


def crckpts(lab: TwoHosts, host: str) -> list[Process]:
    """The live crckpts and CRIUs of a host."""
    return [
        process
        for process in lab.list_processes(host)
        if process.is_live and re.search(r"crckpt|criu", " ".join(process.command[:3])) and not process.is_of(SERVER)
    ]


def record_steps(lab: TwoHosts) -> dict[str, list[str]]:
    """Migrate without a fault; return the steps of each side, in their order."""
    for host in _SIDES:
        arrange(lab, host, f"CRCKPT_STEPS_FILE={_STEPS}")
    with served(lab) as pid:
        lab.run("source", *migrate_words(pid))
        return {host: lab.run(host, "cat", _STEPS).out.split() for host in _SIDES}


def name_moments(steps: list[str], first: str) -> list[str]:
    """Name each step after `first` as CRCKPT_KILL_AT does; with the first one itself."""
    begin = steps.index(first)
    counts: dict[str, int] = {}
    names = [first]
    for name in steps[begin + 1 :]:
        counts[name] = counts.get(name, 0) + 1
        names.append(f"{first}>{name}:{counts[name]}")
    return names


def migrate_with_fault(
    lab: TwoHosts, pid: int, side: str, *environment: str, options: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    """Start a migration whose crckpt on `side` has this environment."""
    for host in _SIDES:
        arrange(lab, host, *(environment if host == side else ()))
    return lab.open("source", *migrate_words(pid, *options))


def copies(lab: TwoHosts) -> list[Process]:
    """The copies of the server that run: neither frozen nor held."""
    return [process for process in lab.find(SERVER, *_SIDES) if process.is_running]


def wait_until_settled(lab: TwoHosts) -> None:
    """Wait until no crckpt and no CRIU runs on either side, and no copy is held."""

    def is_settled() -> bool:
        is_held = any(not process.is_running for process in lab.find(SERVER, *_SIDES))
        return not is_held and not any(crckpts(lab, host) for host in _SIDES)

    wait_for(is_settled, "both sides to settle")


def find_moves(lab: TwoHosts, host: str) -> list[dict[str, object]]:
    """What `crckpt migrate --list` says on a host."""
    import json

    found = lab.run(host, "crckpt", "migrate", "--list", "--json", status=None)
    return json.loads(found.out)["result"]["moves"] if found.status == 0 else []


def judge(lab: TwoHosts, said: str) -> str:
    """Exactly one copy runs; or none does, and the command that crckpt names brings one back. Return the side."""
    wait_until_settled(lab)
    running = copies(lab)
    if not running:
        for _ in range(2):
            host, move = _find_way_out(lab)
            done = lab.run(host, "crckpt", "migrate", "--resume", move, status=None)
            said += f"\n{host}: --resume ended with {done.status}\n{done.out}{done.err}"
            wait_until_settled(lab)
            running = copies(lab)
            if running:
                break
    assert len(running) == 1, f"{len(running)} copies run:\n{said}"
    _check_nothing_else_can_start(lab, running[0], said)
    return running[0].host


def _find_way_out(lab: TwoHosts) -> tuple[str, str]:
    """The side whose record says that it goes on, and the id of the move."""
    for host, states in (("source", ("ended",)), ("destination", ("committed",))):
        for move in find_moves(lab, host):
            if move["state"] in states:
                return host, str(move["id"])
    raise AssertionError(f"nobody goes on: {[find_moves(lab, host) for host in _SIDES]}")


def _check_nothing_else_can_start(lab: TwoHosts, running: Process, said: str) -> None:
    """Where the tree does not run, a restore of the job is refused; no lock of CRIU's is left where it runs."""
    other = next(host for host in _SIDES if host != running.host)
    tried = lab.run(other, "crckpt", "restore", JOB, "--detach", "--dry-run", status=None)
    # On the destination there may be no checkpoint at all.
    assert tried.status in (10, 12, 24), f"{other}: a second copy could start ({tried.status}):\n{tried}\n{said}"
    tables = lab.run(running.host, "nft", "list", "tables").out
    assert "CRIU" not in tables, f"{running.host}: {tables}\n{said}"
    assert "crckpt" not in tables, f"{running.host}: {tables}\n{said}"


def end(process: subprocess.Popen[str], within_s: float = 60) -> Result:
    """Wait for a command that was opened; end it if it takes too long."""
    # nsenter stops itself when its child stops, and continues the child when it is continued.
    process.send_signal(signal.SIGCONT)
    try:
        out, err = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    return Result(process.returncode, out, err)


def wait_until_stopped(lab: TwoHosts, side: str) -> list[Process]:
    """Wait until the crckpt of a side has stopped itself; return it."""

    def find() -> list[Process]:
        return [process for process in crckpts(lab, side) if process.state == "T"]

    wait_for(find, f"crckpt to stop on the {side}")
    return find()


def continue_stopped(lab: TwoHosts, side: str) -> None:
    """Wait until the crckpt of a side has stopped itself; once the other side has settled, let it go on."""
    stopped = wait_until_stopped(lab, side)
    other = next(host for host in _SIDES if host != side)
    wait_for(lambda: not crckpts(lab, other), f"crckpt to end on the {other}")
    for process in stopped:
        lab.send_signal(process, signal.SIGCONT)
