"""An interruption at any time leaves no thread waiting for a lock that is never released."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal, sys, time
from itertools import count
from crckpt.errors import Interrupted
from crckpt.host.process.signals import handle_interrupts
from crckpt.store.workers import wait_for_result, workers

LOCKING_METHODS = ("__enter__", "acquire")

def interrupt_at(number):
    left = number
    def trace(frame, event, _):
        nonlocal left
        frame.f_trace_opcodes = frame.f_code.co_name in LOCKING_METHODS
        if event == "opcode":
            left -= 1
            if not left:
                sys.settrace(None)
                os.kill(os.getpid(), signal.SIGINT)
        return trace
    sys.settrace(trace)

def work():  # a thread takes locks when it has done something
    with workers() as pool:
        for future in [pool.submit(time.sleep, 0.01) for _ in range(2)]:
            wait_for_result(future)

for number in count(1):
    child = os.fork()
    if not child:
        signal.alarm(20)  # its end, if it waits for ever
        handle_interrupts()
        interrupt_at(number)
        try:
            work()
        except Interrupted:
            os._exit(3)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status)
    if status != 3:
        break
"""


def test_interruption_of_worker_threads_leaves_no_lock_held() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    *interrupted, last = result.stdout.split()
    assert last == "0", f"after {len(interrupted)} moments: {last}"
    assert len(interrupted) > 20
