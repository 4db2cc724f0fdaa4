"""A log that grows while its program moves arrives whole, with every line once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hosts import HOSTS, PROGRAMS, PYTHON, CannotMakeLab, TwoHosts, wait_for
from migrations import JOB, STORE, crckpts
from two_hosts import two_hosts

REFUSED = 24
LOGGER = "logger.py"
DIRECTORY = "/srv/logger"
LOG = f"{DIRECTORY}/log"


@pytest.fixture(scope="module")
def lab() -> Iterator[TwoHosts]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with two_hosts() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


@contextmanager
def logging(lab: TwoHosts) -> Iterator[int]:
    """A program on the source that writes a log all the time: its PID. Afterwards nothing of it is left."""
    try:
        lab.run("source", "mkdir", "-p", DIRECTORY)
        pid = lab.start("source", PYTHON, PROGRAMS / LOGGER, LOG)
        wait_for(lambda: count_lines(lab, "source") > 100, "the log to grow")
        yield pid
    finally:
        lab.end(LOGGER)
        for host in HOSTS[:2]:
            wait_for(lambda host=host: not crckpts(lab, host), f"crckpt to end on the {host}")  # type: ignore[misc]
            lab.run(host, "rm", "-rf", DIRECTORY)
            lab.run(host, "find", STORE, "-mindepth", "1", "-delete", status=None)


def read_lines(lab: TwoHosts, host: str) -> list[str]:
    """The lines of the log on a host."""
    return lab.run(host, "cat", LOG, status=None).out.splitlines()


def count_lines(lab: TwoHosts, host: str) -> int:
    """The number of lines of the log on a host."""
    return len(read_lines(lab, host))


def test_log_moves_to_the_destination_and_back(lab: TwoHosts) -> None:
    """The log is missing at the destination, and older on the way back: only the missing part is sent."""
    with logging(lab) as pid:
        words = ("crckpt", "migrate", str(pid), "destination", JOB)
        refused = lab.run("source", *words, status=REFUSED).err
        assert f"{LOG} is missing" in refused
        assert "send it, and what the program adds to it: --send-files" in refused
        result = lab.run("source", *words, "--send-files")
        assert LOG not in result.out + result.err
        at_move = count_lines(lab, "source")
        wait_for(lambda: count_lines(lab, "destination") > at_move + 100, "it to write there")

        back = ("crckpt", "migrate", str(pid), "source", JOB)
        refused = lab.run("destination", *back, status=REFUSED).err
        assert f"{LOG} is not the same file there" in refused
        lab.run("destination", *back, "--send-files")
        at_move = count_lines(lab, "destination")
        wait_for(lambda: count_lines(lab, "source") > at_move + 100, "it to write here")
        lab.end(LOGGER)
        lines = read_lines(lab, "source")
        assert lines == [str(number) for number in range(len(lines))]
        found = lab.run("source", "stat", "--format=%a %U", LOG).out.split()
        assert found == ["640", "root"]


def test_different_log_at_the_destination_is_left_alone(lab: TwoHosts) -> None:
    with logging(lab) as pid:
        lab.run("destination", "mkdir", "-p", DIRECTORY)
        lab.run("destination", "sh", "-c", f"echo another >{LOG} && chmod 640 {LOG}")
        words = ("crckpt", "migrate", str(pid), "destination", JOB, "--send-files")
        refused = lab.run("source", *words, status=REFUSED).err
        assert f"{LOG} is not the same log there: its content differs" in refused
        assert read_lines(lab, "destination") == ["another"]
        (process,) = lab.find(LOGGER)
        assert (process.host, process.is_running) == ("source", True)
