"""Faults at a moment of a move. The crckpt of a side stops itself there: so each fault happens where it should.

The moments are the steps of crckpt's own code (`crckpt.host.steps`): before and after each message, write, sync and
rename. Nobody has to list them: a move without a fault records them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Final

from hosts import HOSTS, NumberedClient, Process, Result, TwoHosts, talking, wait_for
from migrations import (
    FIRST,
    STEPS,
    STORE,
    arrange,
    crckpts,
    end,
    judge,
    migrate_with_fault,
    migrate_words,
    served,
    wait_until_stopped,
)

SIDES: Final = HOSTS[:2]
Fault = Callable[[TwoHosts, str, list[Process]], None]
Moment = tuple[str, str]
"""A side, and one of its steps as CRCKPT_STOP_AT names it."""


def _signal(lab: TwoHosts, processes: list[Process], *numbers: int) -> None:
    for process in processes:
        for number in numbers:
            lab.send_signal(process, number)


def _kill(lab: TwoHosts, _side: str, stopped: list[Process]) -> None:
    _signal(lab, stopped, signal.SIGKILL)


def _interrupt(lab: TwoHosts, _side: str, stopped: list[Process]) -> None:
    _signal(lab, stopped, signal.SIGTERM, signal.SIGCONT)


def _keep_stopped(lab: TwoHosts, side: str, stopped: list[Process]) -> None:
    """Let it go on only when the other side has settled."""
    other = next(host for host in SIDES if host != side)
    wait_for(lambda: not crckpts(lab, other), f"crckpt to end on the {other}")
    _signal(lab, stopped, signal.SIGCONT)


def _kill_criu(lab: TwoHosts, side: str, stopped: list[Process]) -> None:
    found = [process for process in crckpts(lab, side) if re.search(r"criu$", process.command[0])]
    _signal(lab, found, signal.SIGKILL)
    _signal(lab, stopped, signal.SIGCONT)


def _fill_disk(lab: TwoHosts, side: str, stopped: list[Process]) -> None:
    def has_shrunk() -> bool:
        # Others may write meanwhile.
        used = int(lab.run(side, "df", "--output=used", "-k", STORE).out.split()[-1])
        return lab.run(side, "mount", "-o", f"remount,size={max(4, used)}k", STORE, status=None).status == 0

    wait_for(has_shrunk, "a full disk")
    assert lab.run(side, "dd", "if=/dev/zero", f"of={STORE}/filling", "bs=64k", "count=1", status=None).status != 0
    _signal(lab, stopped, signal.SIGCONT)


def _cut(cut: Callable[[TwoHosts], None]) -> Fault:
    def strike(lab: TwoHosts, _side: str, stopped: list[Process]) -> None:
        cut(lab)
        _signal(lab, stopped, signal.SIGCONT)

    return strike


FAULTS: Final[dict[str, Fault]] = {
    "killed": _kill,
    "stopped": _keep_stopped,
    "interrupted": _interrupt,
    "criu killed": _kill_criu,
    "full disk": _fill_disk,
    "cut both ways": _cut(lambda lab: lab.cut()),
    "cut to the destination": _cut(lambda lab: lab.cut_one_way("source", "destination")),
    "cut to the source": _cut(lambda lab: lab.cut_one_way("destination", "source")),
}

_MESSAGES: Final = r"(send|sent|receive)\."
_DECISIONS: Final = r"(move|hold|guard|source)\."
_WRITES: Final = r"[a-z-]+\.(create|write|write-at|sync|sync-directory|rename|mkdir)"
_MOMENTS: Final = {
    "killed": "",
    "stopped": "",
    "interrupted": "",
    "criu killed": f"{_MESSAGES}|{_DECISIONS}",
    "full disk": f"{_WRITES}|{_DECISIONS}",
}


def can_matter(fault: str, moment: str) -> bool:
    """Whether a fault at a moment may have another effect than at the moment before."""
    first, _, name = moment.rpartition(">")
    if fault == "criu killed" and not first:
        return False
    return bool(re.match(_MOMENTS.get(fault, f"{_MESSAGES}|{_DECISIONS}"), name))


def record_steps(lab: TwoHosts, *options: str, address: str = "0.0.0.0") -> dict[str, list[str]]:  # noqa: S104
    """Migrate without a fault; return the steps of each side, in their order."""
    for host in SIDES:
        arrange(lab, host, f"CRCKPT_STEPS_FILE={STEPS}")
    with served(lab, address=address) as pid:
        lab.run("source", *migrate_words(pid, *options))
        return {host: lab.run(host, "cat", STEPS).out.split() for host in SIDES}


def name_moments(side: str, steps: list[str]) -> list[Moment]:
    """Name the steps as CRCKPT_STOP_AT does; of many of the same name in a row only the first and the last one."""
    first = steps.index(FIRST[side])
    names: list[Moment] = []
    for part, prefix in ((steps[:first], ""), (steps[first:], f"{FIRST[side]}>")):
        counts: dict[str, int] = {}
        for name, row in groupby(part):
            length = len(list(row))
            begin = counts.get(name, 0)
            counts[name] = begin + length
            numbers = sorted({begin + 1, begin + length})
            if name == FIRST[side]:
                names.append((side, name))
            else:
                names += [(side, f"{prefix}{name}:{number}") for number in numbers]
    return names


def find_moments(lab: TwoHosts, *options: str, address: str = "0.0.0.0") -> list[Moment]:  # noqa: S104
    """Return the moments of a move with these options."""
    steps = record_steps(lab, *options, address=address)
    return [moment for side in SIDES for moment in name_moments(side, steps[side])]


def strike(lab: TwoHosts, pid: int, fault: str, moment: Moment, *options: str) -> Result:
    """Migrate, with the fault at that moment; return what crckpt said. The fault is over then."""
    side, step = moment
    process = migrate_with_fault(lab, pid, side, f"CRCKPT_STOP_AT={step}", options=options)
    try:
        FAULTS[fault](lab, side, wait_until_stopped(lab, side, process))
        return end(process)
    finally:
        lab.heal()
        if fault == "full disk":
            lab.run(side, "mount", "-o", "remount,size=90%", STORE)


def strike_connected(lab: TwoHosts, fault: str, moment: Moment, version: int) -> None:
    """Migrate with a client, which must never notice more than a pause; the judge finds the copy that runs."""
    options = ("--tcp", "keep", "--move-ip", f"{lab.services[version]}@{lab.device}")
    try:
        with served(lab, "--memory", "1", address=lab.service(version)) as pid, talking(lab, version) as client:
            client.wait_for_replies(5)
            done = strike(lab, pid, fault, moment, *options)
            host = judge(lab, str(done), version)
            check_client(client, host, str(done))
    finally:
        lab.bring_service_back(version)


def check_client(client: NumberedClient, host: str, said: str) -> None:
    """Raise AssertionError unless the one connection goes on, with the copy on this host."""
    report = client.wait_for_replies(5)
    assert (report["wrong"], report["ended"]) == (None, None), f"{report}\n{said}"
    assert report["hosts"][-1] == host, f"{report}\n{said}"
    assert client.check()["memory"] == "intact"


@contextmanager
def noted(wrong: list[str], what: str) -> Iterator[None]:
    """Note a failed assertion of the block, and go on."""
    try:
        yield
    except AssertionError as error:
        wrong.append(f"{what}: {error}")
