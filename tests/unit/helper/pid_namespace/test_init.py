"""The init of a PID namespace forwards signals to the root of the tree, and ends with it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
from target_processes import state, wait_for

from crckpt.host import proc

WITHIN_S = 60
# For the main thread, a signal to another thread is like a signal that comes just before the main thread waits.
INIT = """
import os, signal, sys, threading, time
from crckpt.helper.pid_namespace.init import main

root = os.fork()
if root == 0:
    signal.pause()
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
sys.exit(main(sys.argv[1], root, is_rehearsal=False))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a PID namespace")
def test_init_of_a_namespace_forwards_signals() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    new = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
    with ours, theirs:
        number = theirs.fileno()
        process = subprocess.Popen((*new, sys.executable, "-c", INIT, str(number)), pass_fds=(number,))
        try:
            ours.settimeout(WITHIN_S)
            ours.recv(1000)
            (init,) = proc.children(process.pid)
            wait_for(lambda: state(init) == "S", "it to wait")
            os.kill(init, signal.SIGTERM)
            assert process.wait(WITHIN_S) == 128 + signal.SIGTERM
        finally:
            process.kill()
            process.wait()
