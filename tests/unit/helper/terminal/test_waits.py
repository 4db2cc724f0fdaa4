"""Signals end the waits of attach and of a restore with a holder, whichever thread gets them.

A signal that another thread gets is to the main thread as one that comes just before it waits.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from target_processes import state, wait_for

from crckpt.helper.terminal.protocol import ATTACH, DESCRIBE, LONGEST, RESIZE

WITHIN_S = 60
ATTACHING_PROGRAM = """
import signal, sys, threading, time
from pathlib import Path
from crckpt.errors import Interrupted
from crckpt.host.process.signals import handle_interrupts
from crckpt.helper.terminal.protocol import HeldTerminal, HeldTree
from crckpt.helper.terminal.relay import FoundTerminal, attach

threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGWINCH})
handle_interrupts()
TREE = HeldTree(1, 1, 1, "sh", "job", "ab" * 32, "log")
try:
    attach(FoundTerminal(HeldTerminal(1, TREE), Path(sys.argv[1])), 0, None)
except Interrupted as error:
    print(error)
"""


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        listening.settimeout(WITHIN_S)
        yield listening


def test_attach_ends_when_it_gets_a_signal(listener: socket.socket) -> None:
    master, slave = os.openpty()
    words = (sys.executable, "-c", ATTACHING_PROGRAM, listener.getsockname())
    process = subprocess.Popen(words, stdin=slave, stdout=subprocess.PIPE, text=True)
    os.close(slave)
    try:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(WITHIN_S)
            assert connection.recv(LONGEST) == DESCRIBE + str(process.pid).encode()
            assert connection.recv(LONGEST).startswith(ATTACH)
            wait_for(lambda: state(process.pid) == "S", "it to wait")
            process.send_signal(signal.SIGWINCH)
            assert connection.recv(LONGEST).startswith(RESIZE)
            wait_for(lambda: state(process.pid) == "S", "it to wait again")
            process.terminate()
            # The end of the connection, once it has ended.
            assert connection.recv(LONGEST) == b""
        assert process.communicate(timeout=WITHIN_S)[0] == "interrupted by SIGTERM\n"
    finally:
        process.kill()
        process.communicate()
        os.close(master)


HOLDING_PROGRAM = """
import signal, socket, subprocess, threading
from crckpt.host.process.signals import forward_signals
from crckpt.helper.terminal.client import TerminalHolder
from crckpt.helper.channel import Channel
from crckpt.helper.kinds import TERMINAL
from crckpt.helper.start import StartedHelper
from crckpt.helper.terminal.protocol import HolderAnswer

program = subprocess.Popen(["sleep", "300"])
ours, holders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

def hold():
    Channel(TERMINAL, holders).send(HolderAnswer(ended=(program.pid, -program.wait())))

threading.Thread(target=hold, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
forward_signals(program.pid, on_our_terminal=False)
print(program.pid, flush=True)
print(TerminalHolder(StartedHelper(TERMINAL, ours, program), -1).wait(program.pid), flush=True)
"""


def test_signal_reaches_a_program_on_a_held_terminal() -> None:
    process = subprocess.Popen((sys.executable, "-c", HOLDING_PROGRAM), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    program = int(process.stdout.readline())
    try:
        wait_for(lambda: state(process.pid) == "S", "it to wait")
        process.terminate()
        assert process.communicate(timeout=WITHIN_S)[0] == f"{signal.SIGTERM.value}\n"
    finally:
        if process.poll() is None:
            process.kill()
            os.kill(program, signal.SIGKILL)
        process.communicate()
