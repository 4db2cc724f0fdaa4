"""A bandwidth is kept on average, also by several processes together; messages and heartbeats do not wait for it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from io import FileIO

from connections import DIGEST, PackCollector, connected
from msgspec import json

from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.frames import BEAT, HEADER_BYTES, read_header
from crckpt.migrate.wire.messages import Abort, Aborted, PackMessage, Sent
from crckpt.migrate.wire.writer import Bandwidth, shared_clock

SPEED = 1 << 20
RESERVE = """
import sys, time, json
from pathlib import Path
from crckpt.migrate.wire.writer import Bandwidth
bandwidth, begins = Bandwidth(1 << 20, Path(sys.argv[1])), []
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    begins.append(bandwidth.reserve(4096))
    time.sleep(max(0, begins[-1] - time.monotonic()))
print(json.dumps(begins))
"""


def test_several_processes_share_one_bandwidth() -> None:
    """Only one process sends at a time, and each one gets its turn."""
    with shared_clock() as clock:
        words = [sys.executable, "-c", RESERVE, str(clock)]
        pipe = subprocess.PIPE
        processes = [subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        outputs = [process.communicate()[0] for process in processes]
    begins = sorted(itertools.chain.from_iterable(json.decode(output, type=list[float]) for output in outputs))
    assert len(begins) == 60
    for one, other in itertools.pairwise(begins):
        assert other - one >= 4096 / SPEED - 1e-6


def test_bandwidth_that_was_not_used_while_idle_is_lost() -> None:
    with shared_clock() as clock:
        for bandwidth in (Bandwidth(SPEED), Bandwidth(SPEED, clock)):
            first = bandwidth.reserve(SPEED)
            assert bandwidth.reserve(SPEED) >= first + 1
            bandwidth.close()


def test_abort_message_does_not_wait_for_data_under_a_bandwidth() -> None:
    """A mebibyte waits to be sent with 16 KiB per second: the abort overtakes it."""
    collected = PackCollector()
    with connected(bandwidth=16 << 10) as (source, destination), destination.receiving(collected):
        source.send(PackMessage(3, DIGEST, 1 << 20))
        for _ in range(200):
            source.send_data(3, os.urandom(source.data_bytes))
        destination.send(Aborted())
        source.abort("enough", timeout=60)
        assert destination.receive(Abort) == Abort("enough")
        assert len(collected.content) < 1 << 19
        # Data that is sent after the abort is limited by the bandwidth again.
        source.send_data(3, bytes(source.data_bytes))
        source.send(Sent())
        assert destination.receive(Sent) == Sent()


def test_heartbeats_do_not_wait_for_data() -> None:
    """Another move has reserved the next hour."""
    (reads, outgoing), (incoming, there) = os.pipe(), os.pipe()
    with shared_clock() as clock, FileIO(reads, "rb") as written, FileIO(there, "wb"):
        other = Bandwidth(SPEED, clock)
        other.reserve(3600 * SPEED)
        with Connection(incoming, outgoing, "destination", bandwidth=Bandwidth(SPEED, clock)) as source:
            source.send_data(3, bytes(source.data_bytes))
            headers = [read_header(written.read(HEADER_BYTES)) for _ in range(4)]
            assert [header.kind for header in headers] == [BEAT] * 4
        other.close()
