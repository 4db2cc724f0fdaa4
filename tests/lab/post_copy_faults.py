"""Faults while a program runs on the destination and some of its memory is still missing: `--lazy`, `--local-lazy`.

The judge is the program's own count of requests. It stands still in a frozen program, so it tells whether the program
went on, or came back as it was when it was frozen.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from faults import SIDES, Moment, fill_disk, find_moments, free_disk, strike
from hosts import PROJECT, PYTHON, Process, TwoHosts, wait_for
from migrations import (
    FIRST,
    SERVER,
    STORE,
    arrange,
    copies,
    crckpts,
    end,
    find_moves,
    is_criu,
    judge,
    migrate_words,
    served,
)

REQUESTS_BEFORE_THE_MOVE: Final = 3
"""The requests that the program has answered before it is moved."""
_ASKING_PROGRAM: Final = """
import socket, sys
with socket.create_connection(("127.0.0.1", 9000)) as connection:
    connection.sendall(sys.argv[1].encode() + b"\\n")
    sys.stdout.write(connection.makefile().readline())
"""
_GATE: Final = "/run/gate"
_GATED_PATH: Final = "/usr/local/sbin/gated/crckpt"
# A crckpt whose helper does not fill anything by itself before there is a gate.
_GATED_CRCKPT: Final = f"""#!{PROJECT}/.venv/bin/python
import sys
sys.path.insert(0, {str(PROJECT)!r})
from crckpt.__main__ import main
from crckpt.ops.lazy.client import Filler
helper = (sys.executable, {str(PROJECT / "tests/support/lazy_restore.py")!r}, "helper", {_GATE!r})
Filler.__init__.__defaults__ = (helper,)
sys.exit(main())
"""
_HELPERS: Final = ("crckpt.ops.lazy.server", "lazy_restore.py")


@dataclass(frozen=True)
class LateMove:
    """A move whose program, `moved`, runs on the destination, where memory is still missing. `crckpt` moves it."""

    lab: TwoHosts
    crckpt: subprocess.Popen[str]
    moved: Process

    @property
    def is_alive(self) -> bool:
        """Whether the program has not ended."""
        return any(process.is_same(self.moved) for process in self.lab.find(SERVER, "destination"))

    def signal(self, side: str, number: int) -> None:
        """Send a signal to the crckpt of a side."""
        found = crckpts(self.lab, side)
        assert found, f"there is no crckpt on the {side}"
        for process in found:
            self.lab.send_signal(process, number)

    def signal_helper(self, number: int) -> None:
        """Send a signal to the helper that fills the memory."""
        self.lab.send_signal(self.find_helpers()[1], number)

    def signal_guard(self, number: int) -> None:
        """Send a signal to the parent of the helper."""
        self.lab.send_signal(self.find_helpers()[0], number)

    def wait_for_end(self) -> None:
        """Wait until the program has ended."""
        wait_for(lambda: not self.is_alive, "the program to end on the destination")

    def find_helpers(self) -> list[Process]:
        """Find the guard, and its child, the helper that fills the memory."""
        live = [process for process in self.lab.list_processes("destination") if process.is_live]
        found = [process for process in live if any(process.is_of(name) for name in _HELPERS)]
        assert len(found) == 2, found
        return found


def ask(lab: TwoHosts, host: str, request: str = "1") -> str:
    """Send the program of a host a request on a connection of its own; return the answer."""
    answer = lab.run(host, PYTHON, "-c", _ASKING_PROGRAM, request).out.rstrip("\n")
    # A connection that the program has not closed yet would be moved, too.
    open_ones = ("ss", "-Htn", "state", "established", "state", "close-wait", "( sport = :9000 )")
    wait_for(lambda: not lab.run(host, *open_ones).out, "the program to close the connection")
    return answer


def count(lab: TwoHosts, host: str) -> int:
    """Send a request; return how many the program has answered."""
    return int(ask(lab, host).split()[1])


@contextmanager
def moving_late(lab: TwoHosts) -> Iterator[LateMove]:
    """A move with --lazy whose program runs on the destination, while its memory is sent over a slow link."""
    for side in SIDES:
        arrange(lab, side)
    with served(lab, "--memory", "48") as pid:
        _ask_at_first(lab)
        lab.slow("20mbit")
        move = lab.open("source", *migrate_words(pid, "--lazy"))
        try:
            wait_for(lambda: move.poll() is not None or _runs_there(lab), "the program to run there")
            assert move.poll() is None, end(move)
            (moved,) = copies(lab)
            yield LateMove(lab, move, moved)
        finally:
            if move.poll() is None:
                move.kill()
                move.communicate()


@contextmanager
def moving_unfilled(lab: TwoHosts) -> Iterator[LateMove]:
    """A move with --local-lazy whose program runs on the destination. No memory is filled there before `fill`."""
    lab.run("destination", "mkdir", "-p", _GATED_PATH.rpartition("/")[0])
    lab.run("destination", "sh", "-c", f"cat > {_GATED_PATH} && chmod 755 {_GATED_PATH}", stdin=_GATED_CRCKPT)
    arrange(lab, "source")
    with served(lab, "--memory", "16") as pid:
        _ask_at_first(lab)
        move = lab.open("source", *migrate_words(pid, "--local-lazy", "--remote-crckpt", _GATED_PATH))
        try:
            result = end(move)
            assert result.status == 0, result
            (moved,) = copies(lab)
            yield LateMove(lab, move, moved)
        finally:
            fill(lab)
    lab.run("destination", "rm", _GATE)


def fill(lab: TwoHosts) -> None:
    """Let the helper of `moving_unfilled` fill all memory."""
    lab.run("destination", "touch", _GATE)


def _ask_at_first(lab: TwoHosts) -> None:
    assert [count(lab, "source") for _ in range(REQUESTS_BEFORE_THE_MOVE)][-1] == REQUESTS_BEFORE_THE_MOVE


def _runs_there(lab: TwoHosts) -> bool:
    """Whether CRIU has let the program run on the destination, and its record says that the source is still needed."""
    is_committed = [move["state"] for move in find_moves(lab, "destination")] == ["committed"]
    is_held = any(map(is_criu, crckpts(lab, "destination")))
    return is_committed and not is_held and [process.host for process in copies(lab)] == ["destination"]


def _kill(side: str) -> Callable[[LateMove], None]:
    return lambda move: move.signal(side, signal.SIGKILL)


def _stop_source(move: LateMove) -> None:
    move.signal("source", signal.SIGSTOP)
    move.wait_for_end()
    move.signal("source", signal.SIGCONT)


def _stop_destination(move: LateMove) -> None:
    """Continue the stopped destination once the source has given up."""
    move.signal("destination", signal.SIGSTOP)
    assert end(move.crckpt).status == 31
    move.signal("destination", signal.SIGCONT)


def _stop_helper(move: LateMove) -> None:
    """Continue the stopped helper once all packs have arrived."""
    move.signal_helper(signal.SIGSTOP)
    move.lab.heal()
    wait_for(lambda: move.lab.run("destination", "ls", f"{STORE}/checkpoints").out, "the checkpoint to arrive")
    move.signal_helper(signal.SIGCONT)


def _kill_helper_and_guard(move: LateMove) -> None:
    guard, helper = move.find_helpers()
    # The guard must not see that the helper ends.
    move.lab.send_signal(guard, signal.SIGSTOP)
    move.lab.send_signal(helper, signal.SIGKILL)
    move.lab.send_signal(guard, signal.SIGKILL)


def _kill_all(move: LateMove) -> None:
    """Kill the helpers: the program runs and has lost memory, until crckpt notices that."""
    for side in SIDES:
        # It would end the program.
        move.signal(side, signal.SIGSTOP)
    _kill_helper_and_guard(move)
    for side in SIDES:
        move.signal(side, signal.SIGKILL)
    end(move.crckpt)
    move.lab.heal()
    (found,) = find_moves(move.lab, "source")
    move.lab.run("source", "crckpt", "migrate", "--resume", str(found["id"]))


def _fill_disk(move: LateMove) -> None:
    fill_disk(move.lab, "destination")
    try:
        move.wait_for_end()
    finally:
        free_disk(move.lab, "destination")


def _cut(cut: Callable[[TwoHosts], None]) -> Callable[[LateMove], None]:
    def strike(move: LateMove) -> None:
        cut(move.lab)
        move.wait_for_end()

    return strike


FATAL_FAULTS: Final[dict[str, Callable[[LateMove], None]]] = {
    "source killed": _kill("source"),
    "destination killed": _kill("destination"),
    "helper killed": lambda move: move.signal_helper(signal.SIGKILL),
    "helper and guard killed": _kill_helper_and_guard,
    "all killed": _kill_all,
    "source stopped": _stop_source,
    "destination stopped": _stop_destination,
    "full disk": _fill_disk,
    "cut both ways": _cut(lambda lab: lab.cut()),
    "cut to the destination": _cut(lambda lab: lab.cut_one_way("source", "destination")),
    "cut to the source": _cut(lambda lab: lab.cut_one_way("destination", "source")),
}
"""Faults that end a program whose memory is still being sent."""

HARMLESS_FAULTS: Final[dict[str, Callable[[LateMove], None]]] = {
    "guard killed": lambda move: move.signal_guard(signal.SIGKILL),
    "helper stopped": _stop_helper,
}
"""Faults with which it goes on."""


def strike_late(lab: TwoHosts, fault: Callable[[LateMove], None], *, ends: bool) -> str:
    """Strike while memory is sent; return what crckpt said. The program goes on, or comes back as it was frozen."""
    with moving_late(lab) as move, lab.watched(SERVER) as watch:
        fault(move)
        if ends:
            move.wait_for_end()
        lab.heal()
        output = str(end(move.crckpt))
        assert judge(lab, output) == "destination"
        assert move.is_alive != ends, output
        assert (count(lab, "destination"), ask(lab, "destination", "check")) == (
            REQUESTS_BEFORE_THE_MOVE + 1,
            "check intact",
        ), output
        assert watch.doubled == (), f"two copies ran: {watch.doubled}\n{output}"
        return output


def find_late_moments(lab: TwoHosts) -> list[Moment]:
    """Return the moments of a move with --lazy from the end at the source on."""
    found = find_moments(lab, "--lazy")
    moments = [step for side, step in found if side == "source"]
    source = moments[moments.index(f"{FIRST['source']}>move.ended:1") :]
    moments = [step for side, step in found if side == "destination"]
    destination = moments[moments.index(f"{FIRST['destination']}>receive.Ended:1") :]
    return [*(("source", step) for step in source), *(("destination", step) for step in destination)]


def strike_at_late_moment(lab: TwoHosts, fault: str, moment: Moment) -> None:
    """Move with --lazy, with the fault at that moment: in the end the program is as it was frozen."""
    with served(lab, "--memory", "1") as pid, lab.watched(SERVER) as watch:
        _ask_at_first(lab)
        output = str(strike(lab, pid, fault, moment, "--lazy"))
        host = judge(lab, output)
        assert (count(lab, host), ask(lab, host, "check")) == (REQUESTS_BEFORE_THE_MOVE + 1, "check intact"), output
        assert fault == "criu killed" or watch.doubled == (), f"two copies ran: {watch.doubled}\n{output}"
