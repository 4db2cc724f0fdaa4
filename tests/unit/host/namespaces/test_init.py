"""The init of a PID namespace forwards signals to the root of the tree, and ends with it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from entering import state, wait_for

from crckpt.host import proc

WITHIN_S = 60
# A signal that another thread gets is to the main thread as one that comes just before it waits.
INIT = """
import os, signal, sys, threading, time
from crckpt.host.namespaces.init import main

root = os.fork()
if root == 0:
    signal.pause()
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
sys.exit(main(root, *sys.argv[1:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a PID namespace")
def test_init_of_a_namespace_forwards_signals(tmp_path: Path) -> None:
    ready, owner = tmp_path / "ready", tmp_path / "owner"
    os.mkfifo(ready)
    owner.touch()
    reading = os.open(ready, os.O_RDONLY | os.O_NONBLOCK)
    new = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
    process = subprocess.Popen((*new, sys.executable, "-c", INIT, str(ready), str(owner)))
    try:
        assert select.select([reading], [], [], WITHIN_S)[0]
        (init,) = proc.children(process.pid)
        wait_for(lambda: state(init) == "S", "it to wait")
        os.kill(init, signal.SIGTERM)
        assert process.wait(WITHIN_S) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        os.close(reading)
