"""CRIU waits, before it resets the first bit of a frozen tree, until crckpt has checked the tree."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import PROGRAM, Crckpt
from dump_moments import ENDS_WITHIN_S, orphans_of, wait_ended
from incremental import NO_TRACKER, assert_complete, dump_incrementally, executable, keeper, restore_and_ask, wrapper
from rounds import Target
from target_processes import tracer
from trees import wait_for

from crckpt.criu.find import find

pytestmark = [pytest.mark.skipif(bool(NO_TRACKER), reason=NO_TRACKER), pytest.mark.usefixtures("orphans_are_reaped")]

UNCOMMITTED_REASON = "the tracker did not see the end of the last dump or round"
OPERATIONS = {"round": ("pre-dump",), "dump": ("dump", "--incremental")}


def ran(crckpt: Crckpt, operation: str, target: Target, criu: Path, status: int = 0) -> dict[str, Any]:
    """The result of a dump or a round with this CRIU."""
    command, *words = OPERATIONS[operation]
    result = crckpt.run(command, str(target.pid), "job", "--json", "--criu", str(criu), *words, status=status)
    document: dict[str, Any] = result.document
    return document


@pytest.mark.parametrize("operation", OPERATIONS)
def test_o_direct_descriptor_that_is_open_only_while_criu_works_makes_the_dump_full(
    crckpt: Crckpt, target: Target, tmp_path: Path, operation: str
) -> None:
    """The descriptor is opened after crckpt has looked, and closed before CRIU has ended."""
    marker, signalled = tmp_path / "there", f"kill -URG {target.pid}"
    until = "while [ ! -e {0} ]; do sleep 0.01; done"
    sums = [target.work / f"sum-{number}" for number in (1, 2)]
    criu = executable(
        tmp_path / "criu",
        f'case "$1" in dump|pre-dump) [ ! -e {marker} ];; *) true;; esac && exec {find(None, None).path} "$@"\n'
        f"{signalled}; {until.format(sums[0])}\n"
        f'{find(None, None).path} "$@"; status=$?\n'
        f"{signalled}; {until.format(sums[1])}\n"
        "exit $status",
    )
    ran(crckpt, "dump", target, criu)
    marker.touch()
    document = ran(crckpt, operation, target, criu, status=20 if operation == "round" else 0)
    marker.unlink()
    target.number = 2
    missed = "crckpt cannot see what the device writes"
    direct = rf"PID {target.pid} has an O_DIRECT descriptor \(\d+: {target.work}/file\); {missed}"
    if operation == "round":
        assert re.match(f"nothing was copied: {direct}", document["error"]["message"])
    assert not [one for one in Path(f"/proc/{target.pid}/fd").iterdir() if one.readlink() == target.work / "file"]
    result = dump_incrementally(crckpt, target, "--criu", str(criu))
    assert result["tracked"]["base"] is None
    assert re.fullmatch(direct, result["tracked"]["why_full"])
    assert_complete(crckpt, result["checkpoint"]["id"], target)
    after = dump_incrementally(crckpt, target, "--criu", str(criu))
    assert after["tracked"]["base"] == result["checkpoint"]["id"]


@contextmanager
def waiting(
    crckpt: Crckpt, target: Target, tmp_path: Path, operation: str, after: str = "dump", **environment: str
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A stopped crckpt, and its CRIU, which waits for crckpt with the tree frozen, `after` a round or a dump."""
    stops = tmp_path / "stops"
    criu = wrapper(tmp_path, f'[ ! -e {stops} ] || case "$1" in dump|pre-dump) kill -STOP $PPID;; esac')
    ran(crckpt, after, target, criu)
    target.write()
    command, *words = OPERATIONS[operation]
    stops.touch()
    process = crckpt.start(command, str(target.pid), "job", "--json", "--criu", str(criu), *words, **environment)
    try:
        wait_for(lambda: is_awaited(target.pid), ENDS_WITHIN_S, "CRIU to wait")
        stops.unlink()
        yield process, criu
    finally:
        process.kill()
        process.communicate()


def is_awaited(pid: int) -> bool:
    """Return whether a CRIU that holds the process frozen has opened the pipe where it waits."""
    with suppress(OSError):
        return any(one.readlink().name == "alive" for one in Path(f"/proc/{tracer(pid)}/fd").iterdir())
    return False


@pytest.mark.parametrize("operation", OPERATIONS)
def test_tree_runs_on_if_crckpt_is_killed_while_criu_waits_for_it(
    crckpt: Crckpt, target: Target, tmp_path: Path, operation: str
) -> None:
    with waiting(crckpt, target, tmp_path, operation) as (process, criu):
        wait_ended(orphans_of(process))
        checksum = target.look()
        assert tracer(target.pid) == 0
        assert psutil.Process(target.pid).status() not in ("tracing-stop", psutil.STATUS_STOPPED)
        result = dump_incrementally(crckpt, target, "--criu", str(criu))
        assert result["tracked"]["why_full"] == UNCOMMITTED_REASON
        assert_complete(crckpt, result["checkpoint"]["id"], target)
        assert restore_and_ask(crckpt, target, "job", 2) == checksum
        crckpt.run("gc")
        assert list((crckpt.store / "tmp").iterdir()) == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_next_dump_is_full_if_crckpt_is_interrupted_while_criu_waits_for_it(
    crckpt: Crckpt, target: Target, tmp_path: Path, operation: str
) -> None:
    with waiting(crckpt, target, tmp_path, operation) as (process, criu):
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=ENDS_WITHIN_S)
        assert process.returncode == 130
        assert "the tree keeps running" in out
        target.look()
        result = dump_incrementally(crckpt, target, "--criu", str(criu))
        assert result["tracked"]["why_full"] == UNCOMMITTED_REASON
        assert_complete(crckpt, result["checkpoint"]["id"], target)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_tree_continues_if_crckpt_is_stopped_while_criu_waits_for_it(
    crckpt: Crckpt, target: Target, tmp_path: Path, operation: str
) -> None:
    """crckpt may be stopped by SIGSTOP or a frozen control group: the tree does not wait for it."""
    with waiting(crckpt, target, tmp_path, operation, CRCKPT_PATIENCE_S="2") as (process, criu):
        wait_for(lambda: not tracer(target.pid), ENDS_WITHIN_S, "the tree to continue")
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
        target.look()
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=ENDS_WITHIN_S)
        assert process.returncode == 21, out
        assert "crckpt did not answer while the tree was frozen" in out, out
        assert "the tree keeps running" in out
        result = dump_incrementally(crckpt, target, "--criu", str(criu))
        assert result["tracked"]["why_full"] == UNCOMMITTED_REASON
        assert_complete(crckpt, result["checkpoint"]["id"], target)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_stop_key_during_a_dump_stops_crckpt_only_after_the_tree_runs(
    crckpt: Crckpt, target: Target, tmp_path: Path, operation: str
) -> None:
    typed = tmp_path / "typed"
    criu = wrapper(tmp_path, f'[ ! -e {typed} ] || case "$1" in dump|pre-dump) kill -TSTP $PPID;; esac')
    ran(crckpt, "dump", target, criu)
    typed.touch()
    command, *words = OPERATIONS[operation]
    # The process has its own process group in our session, like a job of a shell: ^Z stops nothing else.
    process = subprocess.Popen(
        [str(PROGRAM), command, str(target.pid), "job", "--criu", str(criu), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=crckpt.environment,
        process_group=0,
    )
    try:
        stopped = psutil.STATUS_STOPPED
        wait_for(lambda: psutil.Process(process.pid).status() == stopped, ENDS_WITHIN_S, "crckpt to be stopped")
        assert not psutil.Process(process.pid).children(), "its CRIU has ended"
        target.look()
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0


@pytest.mark.parametrize("after", OPERATIONS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_dump_does_not_wait_for_a_stopped_tracker(
    crckpt: Crckpt, target: Target, tmp_path: Path, operation: str, after: str
) -> None:
    """The dump succeeds. Devices that appeared meanwhile are unknown, so the next dump is full.

    The tracker may be late with rounds that the dump needs.
    """
    with waiting(crckpt, target, tmp_path, operation, after) as (process, criu):
        kept = keeper(crckpt, target)["pid"]
        os.kill(kept, signal.SIGSTOP)
        try:
            process.send_signal(signal.SIGCONT)
            wait_for(lambda: not tracer(target.pid), ENDS_WITHIN_S, "the tree to continue")
            target.look()
        finally:
            os.kill(kept, signal.SIGCONT)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == (20 if operation == "round" else 0), out
        if operation == "dump":
            assert_complete(crckpt, json.loads(out)["result"]["checkpoint"]["id"], target)
        result = dump_incrementally(crckpt, target, "--criu", str(criu))
        assert result["tracked"]["base"] is None
        assert_complete(crckpt, result["checkpoint"]["id"], target)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_criu_that_does_not_wait_makes_the_next_dump_full(
    crckpt: Crckpt, target: Target, tmp_path: Path, operation: str
) -> None:
    """CRIU loaded the library when it was tested, but does not load it in the dump."""
    passes = tmp_path / "passes"
    criu = wrapper(tmp_path, f"[ ! -e {passes} ] || unset CRCKPT_HOLD")
    ran(crckpt, "dump", target, criu)
    target.write()
    passes.touch()
    document = ran(crckpt, operation, target, criu, status=20 if operation == "round" else 0)
    passes.unlink()
    if operation == "round":
        assert document["error"]["message"].startswith(f"nothing was copied: {UNCOMMITTED_REASON}")
    result = dump_incrementally(crckpt, target, "--criu", str(criu))
    assert result["tracked"]["why_full"] == UNCOMMITTED_REASON
    assert_complete(crckpt, result["checkpoint"]["id"], target)
