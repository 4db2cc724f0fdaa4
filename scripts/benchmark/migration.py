"""Measure how long a client gets no answer from a server that moves to another host, in the lab of two hosts.

The floor of that is what no move by CRIU avoids: the freeze (the shortest that a round of the same move had, the last
one), a bare `criu restore` of the same images on the destination, and one round trip.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from hosts import HOSTS, PROGRAMS, PYTHON, CannotMakeLab, NumberedClient, TwoHosts, talking, wait_for
from two_hosts import in_namespaces

from benchmark.commands import Failed
from benchmark.report import Row
from benchmark.setting import Setting

WRITTEN_PER_SECOND: Final = 0.01
# In MiB. From here on, filling memory takes most of the time.
_LARGE: Final = 1024
_IP_VERSION: Final = 4
_SERVER: Final = "numbered_server.py"
_IMAGES: Final = "/run/images"
_FLOOR: Final = "frozen, criu restore, round trip"
# To connect takes a round trip.
_CONNECT: Final = """
import socket, statistics, time
def connect():
    began = time.monotonic()
    socket.create_connection(("destination", 22)).close()
    return time.monotonic() - began
print(statistics.median(connect() for _ in range(15)))
"""


@dataclass(frozen=True)
class Move:
    """The seconds that a move took: for the client, and for each of its steps.

    `restore` is until the address is announced; `bare_restore` is of the same images there, by criu alone.
    `round_trip` is of a packet between the hosts.
    """

    downtime: float
    dump: float
    copy: float
    restore: float
    bare_restore: float
    round_trip: float


@dataclass(frozen=True)
class CrckptMove:
    """The seconds that a move by crckpt took, and what it sent.

    `downtime` is the client's, `counted` what crckpt says, `estimated` what it said before; `frozen`: the freeze of its
    last round; `total`: with --lazy, until all memory is there; `sent`: bytes on the wire; `back`: of a move back.
    """

    downtime: float
    counted: float
    estimated: float
    frozen: float
    total: float
    sent: float
    resident: float
    back: float


def rows(setting: Setting) -> Iterator[Row]:
    """Return the rows of moves, for each size: by bare CRIU and `tar | ssh`, and by crckpt in each of its ways."""
    try:
        with in_namespaces() as lab:
            for size in setting.sizes:
                # In turns: what else the machine does meets both.
                bare, ours, local, late = [], [], [], []
                for _ in range(setting.runs):
                    bare.append(measure_bare_move(lab, setting, size))
                    ours.append(measure_move(lab, size))
                    local.append(measure_move(lab, size, "--local-lazy"))
                    late.append(measure_move(lab, size, "--lazy"))
                yield from _rows_of(size, bare, ours, local, late)
    except CannotMakeLab as error:
        raise Failed(str(error)) from error


def _rows_of(
    size: int, bare: list[Move], ours: list[CrckptMove], local: list[CrckptMove], late: list[CrckptMove]
) -> Iterator[Row]:
    """Return the rows of a size. `local` are with --local-lazy, `late` with --lazy."""
    name = f"{size} MB, {WRITTEN_PER_SECOND:.0%} written a second"

    def make_row(
        what: str, unit: Literal["s", "B"], values: list[float], peer: str, others: list[float], most: float | None
    ) -> Row:
        return Row("migration", f"{name}: {what}", unit, tuple(values), peer, tuple(others), most)

    def find_floor(moves: list[CrckptMove]) -> list[float]:
        pairs = zip(moves, bare, strict=True)
        return [move.frozen + other.bare_restore + other.round_trip for move, other in pairs]

    for step in (field.name for field in fields(Move)):
        yield Row("migration", f"{name}, criu and tar | ssh: {step}", "s", tuple(getattr(move, step) for move in bare))
    downtimes = [our.downtime for our in ours]
    for step in ("counted", "estimated"):
        values = tuple(getattr(move, step) for move in ours)
        yield Row("migration", f"{name}, crckpt: {step}", "s", values, "client", tuple(downtimes))
    yield Row("migration", f"{name}, crckpt: frozen", "s", tuple(our.frozen for our in ours))
    totals = tuple(move.dump + move.copy + move.restore for move in bare)
    yield Row("migration", f"{name}: total", "s", tuple(our.total for our in ours), "criu and tar | ssh", totals)
    yield make_row("downtime", "s", downtimes, "criu and tar | ssh", [move.downtime for move in bare], 0.2)
    yield make_row("downtime", "s", downtimes, _FLOOR, find_floor(ours), 2.0)
    for option, moves, most in (("--local-lazy", local, 0.5 if size >= _LARGE else 2.0), ("--lazy", late, None)):
        pauses = [move.downtime for move in moves]
        yield make_row(f"downtime with {option}", "s", pauses, _FLOOR, find_floor(moves), most)
    whole = [move.total for move in late]
    yield make_row("total with --lazy", "s", whole, "without", [our.total for our in ours], None)
    sent = [our.sent for our in ours]
    yield Row("migration", f"{name}: sent", "B", tuple(sent), "resident", tuple(our.resident for our in ours))
    yield make_row("sent by a move back", "B", [our.back for our in ours], "by the first", sent, 0.3)


def measure_move(lab: TwoHosts, size: int, *more: str) -> CrckptMove:
    """Move a server with so many MiB by `crckpt migrate` with `more` options, and back.

    Raises Failed if the client notices more than a gap.
    """
    with served(lab, size) as (pid, client):
        options = ("--tcp", "keep", "--move-ip", f"{lab.services[_IP_VERSION]}@{lab.device}", "--json", *more)
        there = _migrate(lab, "source", pid, "destination", *options)
        report = client.wait_for_replies()
        if report["wrong"] or report["ended"] or report["hosts"] != ["source", "destination"]:
            raise Failed(f"the client's connection did not survive a move: {report}")
        resident = sum(int(line.split()[1]) for line in _status(lab, pid) if line.startswith("VmRSS"))
        back = _migrate(lab, "destination", pid, "source", *options)
    return CrckptMove(
        downtime=report["recent_gap_ms"] / 1000,
        counted=there["downtime_ms"] / 1000,
        estimated=there["rounds"][-1]["estimated_ms"] / 1000,
        frozen=there["rounds"][-1]["frozen_ms"] / 1000,
        total=there["seconds"],
        sent=there["sent_bytes"],
        resident=resident * 1024,
        back=back["sent_bytes"],
    )


def _migrate(lab: TwoHosts, here: str, pid: int, there: str, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab.run(here, "crckpt", "migrate", str(pid), there, "server", *options).out)
    result: dict[str, Any] = found["result"]
    return result


def _status(lab: TwoHosts, pid: int) -> list[str]:
    return lab.run("destination", "cat", f"/proc/{pid}/status").out.splitlines()


def measure_bare_move(lab: TwoHosts, setting: Setting, size: int) -> Move:
    """Move a server with so many MiB from source to destination, by bare CRIU, `tar | ssh`, a fence and its address.

    Raises Failed if the client notices more than a gap.
    """
    with served(lab, size) as (pid, client):
        criu = f"{setting.criu} {{}} --images-dir {_IMAGES} --manage-cgroups=ignore --tcp-established"
        criu += " --network-lock nftables --log-file criu.log"
        lab.run("source", "mkdir", _IMAGES)
        output = lab.run(
            *("source", PROGRAMS / "move_by_hand.sh", "destination", lab.services[_IP_VERSION], lab.device, _IMAGES),
            *(criu.format(f"dump --tree {pid}"), criu.format("restore --restore-detached")),
        ).out
        report = client.wait_for_replies()
        if report["wrong"] or report["ended"] or report["hosts"] != ["source", "destination"]:
            raise Failed(f"the client's connection did not survive a move by bare CRIU: {report}")
        round_trip = float(lab.run("source", PYTHON, "-c", _CONNECT).out)
        bare_restore = _measure_restore(lab, pid, criu.format("restore --restore-detached"))
        # As in: dump 812 ms, copy 64 ms, restore 120 ms
        steps = dict(step.split()[:2] for step in output.split(","))
    seconds = {name: int(value) / 1000 for name, value in steps.items()}
    pause = report["recent_gap_ms"] / 1000
    return Move(downtime=pause, bare_restore=bare_restore, round_trip=round_trip, **seconds)


def _measure_restore(lab: TwoHosts, pid: int, restore: str) -> float:
    """End the server on the destination, restore it there again, and return how many seconds that took."""
    lab.end(_SERVER, "destination")
    wait_for(lambda: pid not in {process.pid for process in lab.list_processes("destination")}, f"PID {pid} to be free")
    # Its connection waits for the client's end, which does not come: CRIU could not restore it again.
    lab.run("destination", "sysctl", "-qw", "net.ipv4.tcp_fin_timeout=1")
    wait_for(lambda: not lab.run("destination", "ss", "-Htan", "sport = :9000").out, "the connection to end")
    script = f"began=$(date +%s%N); {restore} >/dev/null; echo $(($(date +%s%N) - began))"
    return int(lab.run("destination", "bash", "-ec", script).out) / 1e9


@contextmanager
def served(lab: TwoHosts, size: int) -> Iterator[tuple[int, NumberedClient]]:
    """Run the server of a size on the source, and its client, for the block: the server's PID, and the client.

    Afterwards the hosts are as before.
    """
    memory = ("--memory", str(size), "--rewrite", str(WRITTEN_PER_SECOND))
    try:
        pid = lab.start("source", PYTHON, PROGRAMS / _SERVER, lab.service(_IP_VERSION), "9000", *memory)
        with talking(lab, _IP_VERSION) as client:
            client.wait_for_replies(1000)
            yield pid, client
    finally:
        lab.end(_SERVER)
        lab.bring_service_back(_IP_VERSION)
        for host in HOSTS[:2]:
            lab.run(host, "rm", "-rf", _IMAGES)
            lab.run(host, "find", "/var/lib/crckpt", "-mindepth", "1", "-delete", status=None)
