"""Migrations in the lab, with a fault on one side; and the judge, which examines processes, not messages of crckpt."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from hosts import HOSTS, PROGRAMS, PYTHON, Process, Result, TwoHosts, wait_for

SERVER: Final = "numbered_server.py"
STORE: Final = "/var/lib/crckpt"
JOB: Final = "numbers"
# How long crckpt waits for a sign of life, and for the first one, before which ssh may ask for a password; and tries to
# finish a move before it says how, which `judge` then does.
LIMITS: Final = ("CRCKPT_PATIENCE_S=3", "CRCKPT_FIRST_S=30", "CRCKPT_FINISH_S=3")
FAULTY_CRCKPT: Final = "/usr/local/sbin/crckpt-at-fault"
STEPS: Final = "/run/crckpt-steps"
_SIDES: Final = HOSTS[:2]
FIRST: Final = {"source": "move.handing-over", "destination": "move.receiving"}
"""The step of each side with which the hand-over begins."""


def arrange(lab: TwoHosts, host: str, *environment: str) -> str:
    """Make a command on a host that is crckpt with this environment; return its path."""
    settings = " ".join(map(shlex.quote, (*LIMITS, *environment)))
    script = f'#!/bin/sh\nexec env {settings} crckpt "$@"\n'
    lab.run(host, "sh", "-c", f"cat > {FAULTY_CRCKPT} && chmod 755 {FAULTY_CRCKPT}", stdin=script)
    return FAULTY_CRCKPT


def migrate_words(pid: int, *options: str) -> tuple[str, ...]:
    """The words of a migration from the source, by the commands that `arrange` made on both hosts."""
    return (FAULTY_CRCKPT, "migrate", str(pid), "destination", JOB, "--remote-crckpt", FAULTY_CRCKPT, *options)


@contextmanager
def served(
    lab: TwoHosts,
    *options: str,
    address: str = "0.0.0.0",  # noqa: S104 of a lab
    started_by: tuple[str, ...] = (),
) -> Iterator[int]:
    """numbered_server.py on the source, listening at an address: its PID. Afterwards nothing of it is left.

    `started_by`: words before its command, which become it.
    """
    try:
        pid = lab.start("source", *started_by, PYTHON, PROGRAMS / SERVER, address, "9000", *options)
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
            lab.run(host, "rm", "-f", STEPS)
            lab.run(host, "nft", "flush", "ruleset")


def crckpts(lab: TwoHosts, host: str) -> list[Process]:
    """The live crckpts and CRIUs of a host, and the guards of addresses."""
    return [process for process in lab.list_processes(host) if process.is_live and _works(process)]


def is_criu(process: Process) -> bool:
    """Whether the process is a CRIU, or the script of a hold."""
    return any("/crckpt/criu/" in word or word.endswith("/criu") for word in process.command[:1])


def _works(process: Process) -> bool:
    # Whole names are compared, because the tests may be in a directory named crckpt and run on the source.
    names = {word.rpartition("/")[2] for word in process.command[:3]}
    is_guard = "crckpt.helper.address_guard.server" in process.command[:4]
    return is_guard or is_criu(process) or not names.isdisjoint({"crckpt", "criu", FAULTY_CRCKPT.rpartition("/")[2]})


def migrate_with_fault(
    lab: TwoHosts, pid: int, side: str, *environment: str, options: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    """Start a migration whose crckpt on `side` has this environment."""
    for host in _SIDES:
        arrange(lab, host, *(environment if host == side else ()))
    return lab.open("source", *migrate_words(pid, *options))


def copies(lab: TwoHosts) -> list[Process]:
    """The copies of the server that run and are neither frozen nor held."""
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


def judge(lab: TwoHosts, message: str, version: int | None = None) -> str:
    """Exactly one copy runs; or none does, and the command that crckpt names brings one back. Return the side.

    `version`: of the service address, which must be where the copy runs.
    """
    wait_until_settled(lab)
    running = copies(lab)
    if not running:
        for _ in range(2):
            message += resume(lab)
            running = copies(lab)
            if running:
                break
    assert len(running) == 1, f"{len(running)} copies run:\n{message}"
    here = running[0].host
    other = next(host for host in _SIDES if host != here)
    # The destination may have no checkpoint at all.
    dry_run = lab.run(other, "crckpt", "restore", JOB, "--detach", "--dry-run", status=None)
    assert dry_run.status in (10, 12, 24), (
        f"{other}: a second copy could start ({dry_run.status}):\n{dry_run}\n{message}"
    )
    for host in _SIDES:
        # What removes CRIU's lock on the source does not end with crckpt.
        wait_for(lambda host=host: not lab.run(host, "nft", "list", "tables").out, f"no table on {host}:\n{message}")  # type: ignore[misc]
        if version is not None:
            assert lab.is_at(host, version) == (host == here), f"{host} has the address, or lacks it:\n{message}"
    return here


def resume(lab: TwoHosts) -> str:
    """Resume a move in doubt, on the side that continues it; return crckpt's output."""
    host, move = _find_way_out(lab)
    result = lab.run(host, "crckpt", "migrate", "--resume", move, status=None)
    wait_until_settled(lab)
    return f"\n{host}: --resume ended with {result.status}\n{result.out}{result.err}"


def _find_way_out(lab: TwoHosts) -> tuple[str, str]:
    """The side whose record says that it continues, and the id of the move."""
    for host, states in (("source", ("ended",)), ("destination", ("committed",))):
        for move in find_moves(lab, host):
            if move["state"] in states:
                return host, str(move["id"])
    raise AssertionError(f"nobody goes on: {[find_moves(lab, host) for host in _SIDES]}")


def end(process: subprocess.Popen[str], within_s: int = 120) -> Result:
    """Wait for a command that was opened. Raises AssertionError, and ends it, if it takes too long."""
    for _ in range(within_s):
        # nsenter stops itself when its child stops, and continues the child when it is continued.
        process.send_signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            out, err = process.communicate(timeout=1)
            return Result(process.returncode, out, err)
    process.kill()
    out, err = process.communicate()
    raise AssertionError(f"crckpt took more than {within_s} s: {out}{err}")


def wait_until_stopped(lab: TwoHosts, side: str, process: subprocess.Popen[str] | None = None) -> list[Process]:
    """Wait until the crckpt of a side has stopped itself; return it. Raises AssertionError if `process` ends before."""
    stopped: list[Process] = []

    def has_stopped() -> bool:
        # CRIU stops itself for a moment before its work.
        stopped[:] = [found for found in crckpts(lab, side) if found.state == "T" and not is_criu(found)]
        return bool(stopped) or (process is not None and process.poll() is not None)

    wait_for(has_stopped, f"crckpt to stop on the {side}")
    assert stopped, f"that moment never came: {process and process.communicate()}"
    return stopped
