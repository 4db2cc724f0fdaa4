"""Writes of a program during its move are not lost, and a check of a move changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hosts import HOSTS, PROGRAMS, PYTHON, CannotMakeLab, TwoHosts, wait_for
from migrations import FAULTY_CRCKPT, JOB, STORE, crckpts
from two_hosts import two_hosts

DUMP_FAILED = 21
REFUSED = 24
SIDES = HOSTS[:2]
DIRECTORY = "/srv/files"
DATA, LOG, HOOK = f"{DIRECTORY}/data", f"{DIRECTORY}/log", f"{DIRECTORY}/hook"
WRITER, LOGGER = "write_on_signal.py", "logger.py"


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[TwoHosts]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with two_hosts() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


@pytest.fixture
def lab(shared_lab: TwoHosts) -> Iterator[TwoHosts]:
    """The hosts; afterwards nothing is left on them."""
    lab = shared_lab
    try:
        for host in SIDES:
            lab.run(host, "mkdir", "-p", DIRECTORY)
        yield lab
    finally:
        lab.end(WRITER)
        lab.end(LOGGER)
        for host in SIDES:
            wait_for(lambda host=host: not crckpts(lab, host), f"crckpt to end on the {host}")  # type: ignore[misc]
            lab.run(host, "rm", "-rf", DIRECTORY, FAULTY_CRCKPT, "/srv/shared/store")
            lab.run(host, "find", STORE, "-mindepth", "1", "-delete", status=None)


def start_writer(lab: TwoHosts, how: str) -> int:
    """A program on the source, with a data file of which the destination has a copy; its PID."""
    for host in SIDES:
        fill = f"head -c 4096 /dev/zero | tr '\\0' 0 >{DATA} && touch -d @1700000000 {DATA}"
        lab.run(host, "sh", "-c", fill)
    pid = lab.start("source", PYTHON, PROGRAMS / WRITER, DATA, how)
    wait_for(lambda: DATA in lab.run("source", "cat", f"/proc/{pid}/maps").out, "the program to have its file")
    return pid


def write_hook(lab: TwoHosts, command: str) -> None:
    """A command for --before-freeze, when all rounds are over."""
    lab.run("source", "sh", "-c", f"cat >{HOOK} && chmod 700 {HOOK}", stdin=f"#!/bin/sh\n{command}\n")


def is_running(lab: TwoHosts, program: str) -> bool:
    """Whether the program runs on the source, and only there."""
    (process,) = lab.find(program)
    return (process.host, process.is_running) == ("source", True)


@pytest.mark.parametrize("how", ["write", "map"])
def test_write_after_the_check_of_a_move_is_not_lost(lab: TwoHosts, how: str) -> None:
    pid = start_writer(lab, how)
    # The program writes the mapped page before the check, so that its later writes do not change the file's times.
    lab.run("source", "kill", "-USR1", str(pid))
    wait_for(lambda: lab.run("source", "head", "-c4", DATA).out == "NEW!", "the program to write")
    lab.run("source", "sh", "-c", f"printf 0000 | dd of={DATA} conv=notrunc status=none && touch -d @1700000000 {DATA}")
    write_hook(lab, f"kill -USR1 {pid}; until grep -q NEW! {DATA}; do :; done")
    words = ("crckpt", "migrate", str(pid), "destination", JOB)
    refused = lab.run("source", *words, "--before-freeze", HOOK, status=REFUSED)
    assert f"{DATA} was written to since the check; {JOB} keeps running here" in refused.err
    assert "keep it on storage that both hosts mount" in refused.err
    assert is_running(lab, WRITER)
    assert lab.run("destination", "head", "-c4", DATA).out == "0000"
    # The program can be moved once the files on both hosts are equal again.
    lab.run("source", "sh", "-c", f"printf 0000 | dd of={DATA} conv=notrunc status=none && touch -d @1700000000 {DATA}")
    lab.run("source", *words)
    (process,) = lab.find(WRITER)
    assert (process.host, process.is_running) == ("destination", True)


@pytest.mark.parametrize(
    ("rotate", "words"),
    [
        (f"mv {LOG} {LOG}.1", f"{LOG} was removed or renamed since the check"),
        (f": >{LOG}; until [ $(stat -c %s {LOG}) -gt $size ]; do :; done", f"{LOG} was cut or rewritten"),
    ],
    ids=["renamed", "cut"],
)
def test_log_rotated_during_the_move_aborts_it(lab: TwoHosts, rotate: str, words: str) -> None:
    pid = lab.start("source", PYTHON, PROGRAMS / LOGGER, LOG)
    wait_for(lambda: "9\n" in lab.run("source", "cat", LOG, status=None).out, "the log to begin")
    write_hook(lab, f"size=$(stat -c %s {LOG}); {rotate}")
    move = ("crckpt", "migrate", str(pid), "destination", JOB, "--send-files", "--before-freeze", HOOK)
    failed = lab.run("source", *move, status=DUMP_FAILED).err
    assert words in failed
    assert "the program keeps running here" in failed
    assert "do not rotate the log meanwhile" in failed
    assert is_running(lab, LOGGER)


def test_move_with_one_store_shared_by_both_hosts_is_refused(lab: TwoHosts) -> None:
    pid = start_writer(lab, "write")
    store = "/srv/shared/store"
    words = ("crckpt", "migrate", str(pid), "destination", JOB, "--store", store)
    lab.run("source", "crckpt", "dump", str(pid), JOB, "--store", store)
    for more in (("--check",), ()):
        refused = lab.run("source", *words, "--remote-store", store, *more, status=REFUSED).err
        assert refused == (
            f"crckpt: destination: it uses the store of this host, {store}: a move needs two\n"
            "  hint: use another store there: --remote-store DIR\n"
        )
    assert is_running(lab, WRITER)
    lab.run("source", *words)


def test_migrate_check_changes_nothing_and_compares_versions(lab: TwoHosts) -> None:
    pid = start_writer(lab, "write")
    for host in SIDES:
        lab.run(host, "find", STORE, "-mindepth", "1", "-delete", status=None)
    before = {host: lab.run(host, "ls", "-A", STORE, "/var/lib").out for host in SIDES}
    words = ("crckpt", "migrate", str(pid), "destination", JOB)
    assert "can be moved to destination" in lab.run("source", *words, "--check").out
    assert {host: lab.run(host, "ls", "-A", STORE, "/var/lib").out for host in SIDES} == before
    interpreter = lab.run("destination", "sh", "-c", "head -n 1 $(readlink -f $(command -v crckpt))").out
    script = f"{interpreter}import crckpt\ncrckpt.__version__ = '9.1'\nfrom crckpt.__main__ import main\nmain()\n"
    lab.run("destination", "sh", "-c", f"cat >{FAULTY_CRCKPT} && chmod 755 {FAULTY_CRCKPT}", stdin=script)
    for more in (("--check",), ()):
        refused = lab.run("source", *words, "--remote-crckpt", FAULTY_CRCKPT, *more, status=REFUSED).err
        assert refused.startswith("crckpt: destination: it has crckpt 9.1, and this host has crckpt ")
        assert "hint: install the same version on both hosts" in refused
