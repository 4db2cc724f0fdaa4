"""Measure how long a client gets no answer from a server that moves to another host, in the lab of two hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Final

from hosts import HOSTS, PROGRAMS, PYTHON, CannotMakeLab, NumberedClient, TwoHosts, talking, wait_for
from two_hosts import in_namespaces

from benchmark.commands import Failed
from benchmark.report import Row
from benchmark.setting import Setting

WRITTEN_PER_SECOND: Final = 0.01
_IP_VERSION: Final = 4
_SERVER: Final = "numbered_server.py"
_IMAGES: Final = "/run/images"


@dataclass(frozen=True)
class Move:
    """The seconds that a move took: for the client, and for each of its steps.

    `restore` is until the address is announced; `bare_restore` is of the same images there, by criu alone.
    """

    downtime: float
    dump: float
    copy: float
    restore: float
    bare_restore: float


def rows(setting: Setting) -> Iterator[Row]:
    """Return the rows of a move by bare CRIU and `tar | ssh`, for each size: the peer of every other way."""
    try:
        with in_namespaces() as lab:
            for size in setting.sizes:
                moves = [measure_bare_move(lab, setting, size) for _ in range(setting.runs)]
                for step in (field.name for field in fields(Move)):
                    what = f"{size} MB, {WRITTEN_PER_SECOND:.0%} written a second, criu and tar | ssh: {step}"
                    yield Row("migration", what, "s", tuple(getattr(move, step) for move in moves))
    except CannotMakeLab as error:
        raise Failed(str(error)) from error


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
        bare_restore = _measure_restore(lab, pid, criu.format("restore --restore-detached"))
        # As in: dump 812 ms, copy 64 ms, restore 120 ms
        steps = dict(step.split()[:2] for step in output.split(","))
    seconds = {name: int(value) / 1000 for name, value in steps.items()}
    return Move(downtime=report["recent_gap_ms"] / 1000, bare_restore=bare_restore, **seconds)


def _measure_restore(lab: TwoHosts, pid: int, restore: str) -> float:
    """End the server on the destination, restore it there again, and return how many seconds that took."""
    lab.end(_SERVER, "destination")
    wait_for(lambda: pid not in {process.pid for process in lab.list_processes("destination")}, f"PID {pid} to be free")
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
