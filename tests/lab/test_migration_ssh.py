"""ssh asks at the terminal of crckpt, and ^C there ends both, whatever ssh waits for."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest
from hosts import CannotMakeLab, wait_for
from namespaces import Namespaces
from two_hosts import in_namespaces, is_here

pytestmark = pytest.mark.skipif(is_here(), reason="the hosts are real machines: their ssh knows each other")

# A stranger's host key, which ssh asks about.
UNKNOWN_HOST_KEY = ("UserKnownHostsFile=/tmp/none", "GlobalKnownHostsFile=/dev/null", "StrictHostKeyChecking=ask")

# ^C would end the program that enters the host. It leads the session, so the terminal would end with it.
SESSION_LEADER = ("setsid", "--ctty", "sh", "-c", 'trap : INT; "$@"; exec sleep 1000', "sh")

CONNECTING_PROGRAM = """
import sys
from crckpt.errors import CommandFailure
from crckpt.host.process.signals import handle_interrupts
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.messages import Hello
from crckpt.migrate.wire.ssh import started
handle_interrupts()
try:
    with (
        started("destination", "/tmp/receive", ssh=("ssh", "-T", *sys.argv[1:])) as remote,
        Connection(remote.incoming, remote.outgoing, "destination", explain_end=remote.explain_end) as connection,
    ):
        print("hello from", connection.receive(Hello).hostname, flush=True)
        remote.note_answer()
except CommandFailure as error:
    print("error:", error.message, flush=True)
"""

RECEIVE = f"""#!{sys.executable}
import socket
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.messages import PROTOCOL, Hello, Sent
with Connection(0, 1, "source") as connection:
    connection.send(Hello(PROTOCOL, "0", socket.gethostname(), "", 1, 2, "x86_64", "6", (), "", 7))
    connection.receive(Sent)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Namespaces]:
    """The hosts, with one half of the connection on each."""
    try:
        with in_namespaces() as found:
            found.run("source", "sh", "-c", "cat >/tmp/connect", stdin=CONNECTING_PROGRAM)
            found.run("destination", "sh", "-c", "cat >/tmp/receive; chmod 700 /tmp/receive", stdin=RECEIVE)
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


def at_terminal(lab: Namespaces, answers: dict[str, str], *options: str) -> str:
    """What crckpt says at the end on a terminal where each of these questions gets its answer."""
    words = [f"-o{option}" for option in (*UNKNOWN_HOST_KEY, *options)]
    command = lab.command("source", (sys.executable, "/tmp/connect", *words))
    ours, its = pty.openpty()
    shown, left = "", list(answers.items())
    with subprocess.Popen([*SESSION_LEADER, *command], stdin=its, stdout=its, stderr=its) as leader:
        try:
            while not (end := re.search(r"(hello|error:) .*\n", shown)):
                shown += os.read(ours, 4096).decode()
                if left and left[0][0] in shown:
                    os.write(ours, left.pop(0)[1].encode())
            wait_for(lambda: not lab.find("/tmp/connect", "source"), "crckpt to end")
            # The terminal echoes again, as before ssh asked for a password.
            assert termios.tcgetattr(its)[3] & termios.ECHO
        finally:
            leader.kill()
            os.close(ours)
            os.close(its)
    return end[0]


def test_ssh_asks_about_a_host_key(lab: Namespaces) -> None:
    assert "hello from destination" in at_terminal(lab, {"fingerprint])?": "yes\n"})
    lab.run("source", "rm", "/tmp/none")


@pytest.mark.parametrize("question", ["fingerprint])?", "password:"])
def test_interruption_ends_a_prompting_ssh(lab: Namespaces, question: str) -> None:
    answers = {"fingerprint])?": "yes\n", question: "\x03"}
    assert "error: interrupted by SIGINT" in at_terminal(lab, answers, "PubkeyAuthentication=no")
    assert not lab.find("ssh", "source")
    lab.run("source", "rm", "-f", "/tmp/none")
