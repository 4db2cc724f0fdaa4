"""Programs that bring their terminals along, as tmux, script and expect do: no terminal of the user is wanted."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from remote import Remote, remote
from stopped_trees import JOB
from trees import NOBODY

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

FAILED: Final = 21
REFUSED: Final = 24
CONSOLE: Final = "/dev/tty20"
_PROGRAM_WITH_A_TERMINAL: Final = """
import fcntl, os, termios
master, slave = os.openpty()
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
current = os.open("/dev/tty", os.O_RDWR)
def send(words):
    os.write(current, words)
    return os.read(master, 100)
def receive(words):
    os.write(master, words + b"\\n")
    return os.read(current, 100)
"""


@contextmanager
def _low_numbers_taken(count: int = 12) -> Iterator[None]:
    """Give a terminal that is opened in the block a number that other tests do not get while the tree has ended."""
    # The kernel gives the lowest number that is free. CRIU takes up to 32 until it has the right one.
    taken = [os.openpty() for _ in range(count)]
    try:
        yield
    finally:
        for pair in taken:
            for end in pair:
                os.close(end)


def _again(crckpt: Crckpt, program: Remote) -> None:
    """Dump the program with --stop and restore it, without a terminal."""
    crckpt.run("dump", str(program.pid), JOB, "--stop")
    program.wait_gone()
    crckpt.run("restore", JOB, "--detach")


def test_program_uses_its_own_terminal_after_a_restore(crckpt: Crckpt) -> None:
    """The program has also opened the terminal as /dev/tty."""
    with remote() as program:
        with _low_numbers_taken():
            program.ask(_PROGRAM_WITH_A_TERMINAL)
        _again(crckpt, program)
        assert program.ask("answer = send(b'after'), receive(b'all'), send(b'')[:3]") == (b"after", b"all\n", b"all")
        group = program.ask("answer = os.tcgetpgrp(current), os.getsid(0)")
        assert group == (program.pid, program.pid)


def test_terminal_number_far_above_the_lowest_free_one_is_restored(crckpt: Crckpt) -> None:
    """CRIU alone opens at most 32 terminals to get a number."""
    with remote() as program:
        with _low_numbers_taken(45):
            program.ask(_PROGRAM_WITH_A_TERMINAL)
        name = program.ask("answer = os.ttyname(slave)")
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        program.wait_gone()
        crckpt.run("rehearse", JOB, "--seconds", "0.1")
        crckpt.run("restore", JOB, "--detach")
        assert program.ask("answer = os.ttyname(slave), send(b'after')") == (name, b"after")
        # The terminals that crckpt held for CRIU are free again.
        assert program.ask("answer = int(os.ttyname(os.openpty()[1])[9:]) < int(os.ttyname(slave)[9:]) - 32")


def test_terminal_number_in_use_by_another_program_is_refused(crckpt: Crckpt) -> None:
    with remote() as program:
        with _low_numbers_taken():
            program.ask(_PROGRAM_WITH_A_TERMINAL)
        name = str(program.ask("answer = os.ttyname(slave)"))
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        program.wait_gone()
        with _low_numbers_taken(int(Path(name).name) + 1):
            refused = crckpt.run("restore", JOB, "--detach", status=REFUSED).err
            assert f"another program uses terminal {name}" in refused
            # A rehearsal has its own namespaces, where the number is free.
            crckpt.run("rehearse", JOB, "--seconds", "0.1")
        crckpt.run("restore", JOB, "--detach")
        assert program.ask("answer = os.ttyname(slave)") == name


def test_terminal_opened_by_name_in_a_child_is_refused(crckpt: Crckpt) -> None:
    """CRIU saves /dev/tty only for a process that also has the terminal itself open."""
    with remote() as program:
        program.ask(
            "import fcntl, os, signal, termios\n"
            "master, slave = os.openpty()\n"
            "ready, write_end = os.pipe()\n"
            "if not (child := os.fork()):\n"
            "    os.close(master); os.setsid(); fcntl.ioctl(slave, termios.TIOCSCTTY, 0)\n"
            "    current = os.open('/dev/tty', os.O_RDWR)\n"
            "    os.write(write_end, b'x')\n"
            "    signal.pause()\n"
            "os.read(ready, 1)"
        )
        try:
            for words, status in ((), REFUSED), (("--no-preflight",), FAILED):
                result = crckpt.run("dump", str(program.pid), JOB, "--stop", *words, status=status)
                assert "has opened /dev/tty" in result.err
        finally:
            program.ask("os.kill(child, signal.SIGKILL); os.wait()")


@pytest.mark.parametrize("name", ["/dev/console", "/dev/tty1"])
def test_console_of_the_host_is_opened_again_by_its_name(crckpt: Crckpt, name: str) -> None:
    """The console belongs to the host, and no session uses it."""
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"{name}: {error.strerror}")
    with remote() as program:
        program.ask(f"import os; console = os.open({name!r}, os.O_WRONLY | os.O_NOCTTY)")
        _again(crckpt, program)
        assert program.ask("answer = os.isatty(console), os.ttyname(console)") == (True, name)


@pytest.mark.parametrize("access", ["O_RDWR", "O_WRONLY"])
def test_console_of_another_user_is_refused_only_for_reading(crckpt: Crckpt, access: str) -> None:
    """Root may have logged in at the console: the program would read what root types. Writing does no harm."""
    try:
        os.close(os.open(CONSOLE, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"{CONSOLE}: {error.strerror}")
    with remote() as program:
        program.ask(
            f"import os; console = os.open({CONSOLE!r}, os.{access} | os.O_NOCTTY)\n"
            f"os.chown({str(program.workdir)!r}, {NOBODY}, {NOBODY}); os.setgroups([]);"
            f"os.setresgid({NOBODY}, {NOBODY}, {NOBODY}); os.setresuid({NOBODY}, {NOBODY}, {NOBODY})"
        )
        crckpt.run("dump", str(program.pid), JOB, "--stop")
        program.wait_gone()
        allowed: tuple[str, ...] = ()
        if access == "O_RDWR":
            output = crckpt.run("restore", JOB, "--detach", status=REFUSED).err
            assert f"runs as user {NOBODY} and has {CONSOLE} open, which belongs to user 0 now" in output
            allowed = ("--allow-weaker",)
        crckpt.run("restore", JOB, "--detach", *allowed)
        assert program.ask("answer = os.isatty(console)") is True


def test_restored_terminal_whose_master_was_closed_is_hung_up(crckpt: Crckpt) -> None:
    """The other side was closed, so no terminal is needed."""
    with remote() as program:
        with _low_numbers_taken():
            program.ask("import os; master, slave = os.openpty(); os.close(master)")
        _again(crckpt, program)
        assert program.ask("answer = os.read(slave, 1)") == b""
