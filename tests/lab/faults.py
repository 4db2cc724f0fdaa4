"""Faults at a moment of a move. The crckpt of a side stops itself there: so each fault happens where it should.

The moments are the steps of crckpt's own code (`crckpt.host.steps`): before and after each message, write, sync and
rename. Nobody has to list them: a move without a fault records them.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Final

from hosts import HOSTS, NumberedClient, Process, Result, TwoHosts, talking, wait_for
from migrations import (
    FAULTY_CRCKPT,
    FIRST,
    SERVER,
    STEPS,
    STORE,
    arrange,
    copies,
    crckpts,
    end,
    find_moves,
    is_criu,
    judge,
    migrate_with_fault,
    migrate_words,
    served,
    wait_until_settled,
    wait_until_stopped,
)
from two_hosts import in_namespaces

SIDES: Final = HOSTS[:2]
_FILL_DIRECTORY: Final = f"{STORE}/filling"
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
    """Continue the stopped crckpt only when the other side has settled, and its CRIU has given up."""
    other = next(host for host in SIDES if host != side)
    wait_for(lambda: not crckpts(lab, other), f"crckpt to end on the {other}")
    wait_for(lambda: not any(map(is_criu, crckpts(lab, side))), f"CRIU to end on the {side}")
    _signal(lab, stopped, signal.SIGCONT)


def _kill_criu(lab: TwoHosts, side: str, stopped: list[Process]) -> None:
    _signal(lab, [process for process in crckpts(lab, side) if is_criu(process)], signal.SIGKILL)
    _signal(lab, stopped, signal.SIGCONT)


def _kill_both(lab: TwoHosts, side: str, stopped: list[Process]) -> None:
    """Kill CRIU, too, so that nobody can end what it has built; the guard of the tree stays."""
    _signal(lab, [*stopped, *filter(is_criu, crckpts(lab, side))], signal.SIGKILL)


def _fill_disk(lab: TwoHosts, side: str, stopped: list[Process]) -> None:
    fill_disk(lab, side)
    _signal(lab, stopped, signal.SIGCONT)


def fill_disk(lab: TwoHosts, side: str) -> None:
    """Fill the file system of a side's store, until `free_disk`."""
    used = int(lab.run(side, "df", "--output=used", "-k", STORE).out.split()[-1])
    lab.run(side, "mount", "-o", f"remount,size={used + 1024}k", STORE)
    filled = lab.run(side, "dd", "if=/dev/zero", f"of={_FILL_DIRECTORY}", "bs=4k", "count=4k", status=None)
    assert "No space left" in filled.err


def free_disk(lab: TwoHosts, side: str) -> None:
    """Free the space in a store that was filled."""
    lab.run(side, "rm", "-f", _FILL_DIRECTORY)
    lab.run(side, "mount", "-o", "remount,size=90%", STORE)


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
    "both killed": _kill_both,
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
    "both killed": f"{_MESSAGES}|{_DECISIONS}",
    "full disk": f"{_WRITES}|{_DECISIONS}",
}


def can_matter(fault: str, moment: str) -> bool:
    """Whether a fault at a moment may have another effect than at the moment before."""
    first, _, name = moment.rpartition(">")
    if fault in ("criu killed", "both killed") and not first:
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
    later = [f"{FIRST[side]}>{name}" for name in _name_all(steps[first + 1 :])]
    return [(side, name) for name in (*_name_all(steps[:first]), FIRST[side], *later)]


def _name_all(steps: list[str]) -> Iterator[str]:
    counts: dict[str, int] = {}
    for name, row in groupby(steps):
        begin = counts.get(name, 0)
        counts[name] = begin + len(list(row))
        for number in sorted({begin + 1, counts[name]}):
            yield f"{name}:{number}"


def find_moments(lab: TwoHosts, *options: str, address: str = "0.0.0.0") -> list[Moment]:  # noqa: S104
    """Return the moments of a move with these options."""
    steps = record_steps(lab, *options, address=address)
    return [moment for side in SIDES for moment in name_moments(side, steps[side])]


def strike(lab: TwoHosts, pid: int, fault: str, moment: Moment, *options: str) -> Result:
    """Migrate, with the fault at that moment; return what crckpt said. The fault is over then."""
    side, step = moment
    process = migrate_with_fault(lab, pid, side, f"CRCKPT_STOP_AT={step}", options=options)
    try:
        FAULTS[fault](lab, side, _wait_until_struck(lab, side, process))
        return end(process)
    finally:
        lab.heal()
        if fault == "full disk":
            free_disk(lab, side)


def _wait_until_struck(lab: TwoHosts, side: str, process: subprocess.Popen[str]) -> list[Process]:
    """Wait until the crckpt of a side has stopped itself; later ones there do not."""
    stopped = wait_until_stopped(lab, side, process)
    arrange(lab, side)
    return stopped


def strike_connected(lab: TwoHosts, fault: str, moment: Moment, version: int) -> None:
    """Migrate with a client, which must never notice more than a pause; the judge finds the copy that runs."""
    try:
        with served(lab, "--memory", "1", address=lab.service(version)) as pid, talking(lab, version) as client:
            client.wait_for_replies(5)
            with lab.watched(SERVER) as watch:
                done = strike(lab, pid, fault, moment, *move_address(lab, version))
                host = judge(lab, str(done), version)
            check_client(client, host, str(done))
            # What a killed CRIU has built never runs, but looks as if it did.
            assert fault == "criu killed" or watch.doubled == (), f"two copies ran: {watch.doubled}\n{done}"
    finally:
        lab.bring_service_back(version)


def move_address(lab: TwoHosts, version: int) -> tuple[str, ...]:
    """Return the options with which the service address of this IP version and its connections move, too."""
    return ("--tcp", "keep", "--move-ip", f"{lab.services[version]}@{lab.device}")


def check_client(client: NumberedClient, host: str, message: str) -> None:
    """Raise AssertionError unless the one connection goes on, with the copy on this host."""
    report = client.wait_for_replies(5)
    assert (report["wrong"], report["ended"]) == (None, None), f"{report}\n{message}"
    assert report["hosts"][-1] == host, f"{report}\n{message}"
    assert client.check()["memory"] == "intact"


def strike_all(strikes: Mapping[str, Callable[[TwoHosts], None]]) -> list[str]:
    """Strike in one lab after the other; return what failed. After a failure they get a new lab: it may have left some.

    The moments of the hand-over come first.
    """
    failed: list[str] = []
    left = sorted(strikes.items(), key=lambda item: ">" not in item[0])
    while left:
        before = len(failed)
        with in_namespaces() as lab:
            while left and len(failed) == before:
                name, strike = left.pop(0)
                try:
                    strike(lab)
                except AssertionError as error:
                    failed.append(f"{name}: {error}")
    return failed


LOG: Final = "/srv/served/log"
_WITH_A_LOG: Final = ("sh", "-c", f'mkdir -p $(dirname {LOG}) && echo started >>{LOG} && exec "$@" >>{LOG}', "sh")
_SEND_OPTIONS: Final = ("--send-files", "--before-freeze", f"echo frozen next >>{LOG}", "--address-hook", "true")
"""The options of a move with all that may come before the hand-over: files, a log that grows, hooks."""


def find_kinds_before(lab: TwoHosts) -> list[Moment]:
    """Move a program with a log, which is sent; return each kind of step before the hand-over, where it comes first."""
    for host in SIDES:
        arrange(lab, host, f"CRCKPT_STEPS_FILE={STEPS}")
    try:
        with served(lab, "--memory", "1", started_by=_WITH_A_LOG) as pid:
            lab.run("source", *migrate_words(pid, *_SEND_OPTIONS))
            steps = {host: lab.run(host, "cat", STEPS).out.split() for host in SIDES}
    finally:
        _remove_logs(lab)
    return [
        (side, f"{name}:1") for side in SIDES for name in dict.fromkeys(steps[side][: steps[side].index(FIRST[side])])
    ]


def strike_before(lab: TwoHosts, fault: str, moment: Moment) -> None:
    """Move a program with a log, with a fault at that moment. If it stays here, the same command moves it then."""
    try:
        with served(lab, "--memory", "1", started_by=_WITH_A_LOG) as pid, lab.watched(SERVER) as watch:
            output = str(strike(lab, pid, fault, moment, *_SEND_OPTIONS))
            if judge(lab, output) == "source":
                for host in SIDES:
                    arrange(lab, host)
                output += str(lab.run("source", *migrate_words(pid, *_SEND_OPTIONS)))
                assert judge(lab, output) == "destination"
            logs = [lab.run(host, "cat", LOG).out for host in SIDES]
            assert logs[0] == logs[1], f"{logs}\n{output}"
            left = lab.run("destination", "find", LOG.rpartition("/")[0], "-type", "f").out.split()
            assert left == [LOG], f"{left}\n{output}"
            assert watch.doubled == (), f"two copies ran: {watch.doubled}\n{output}"
    finally:
        _remove_logs(lab)


def _remove_logs(lab: TwoHosts) -> None:
    for host in SIDES:
        lab.run(host, "rm", "-rf", LOG.rpartition("/")[0])


UNFINISHED_MOVES: Final = {
    "source": ("source", f"{FIRST['source']}>send.Ended:1"),
    "destination": ("destination", f"{FIRST['destination']}>hold.commit:1"),
}
"""By the side that goes on: the moment at which crckpt is killed."""


def leave_unfinished(lab: TwoHosts, pid: int, side: str, *options: str) -> str:
    """Kill crckpt so that no copy runs, and this side goes on; return the id of the move."""
    where, step = UNFINISHED_MOVES[side]
    process = migrate_with_fault(lab, pid, where, f"CRCKPT_STOP_AT={step}", options=options)
    stopped = wait_until_stopped(lab, where, process)
    # The source would finish the move. The destination ends what it has built.
    _signal(lab, crckpts(lab, "source") + stopped, signal.SIGKILL)
    output = str(end(process))
    wait_until_settled(lab)
    assert copies(lab) == [], output
    return str(find_moves(lab, side)[0]["id"])


def resume_words(move: str) -> tuple[str, ...]:
    """The words of the command that finishes a move, for a move that `arrange` began."""
    return (FAULTY_CRCKPT, "migrate", "--resume", move)


def find_resume_moments(lab: TwoHosts, side: str, version: int) -> list[Moment]:
    """Finish a move on this side; return the moments of that."""
    options = move_address(lab, version)
    try:
        with served(lab, "--memory", "1", address=lab.service(version)) as pid:
            move = leave_unfinished(lab, pid, side, *options)
            for host in SIDES:
                arrange(lab, host, f"CRCKPT_STEPS_FILE={STEPS}")
            lab.run(side, *resume_words(move))
            steps = {host: lab.run(host, "cat", STEPS, status=None).out.split() for host in SIDES}
    finally:
        lab.bring_service_back(version)
    return [(host, name) for host in SIDES for name in _name_all(steps[host])]


def kill_resume(lab: TwoHosts, side: str, moment: Moment, version: int) -> None:
    """Leave a move unfinished, and kill what finishes it at a moment; the judge finishes it again."""
    options = move_address(lab, version)
    where, step = moment
    try:
        with served(lab, "--memory", "1", address=lab.service(version)) as pid, talking(lab, version) as client:
            client.wait_for_replies(5)
            move = leave_unfinished(lab, pid, side, *options)
            for host in SIDES:
                arrange(lab, host, *((f"CRCKPT_STOP_AT={step}",) if host == where else ()))
            process = lab.open(side, *resume_words(move))
            _kill(lab, where, _wait_until_struck(lab, where, process))
            output = str(end(process))
            check_client(client, judge(lab, output, version), output)
    finally:
        lab.bring_service_back(version)
