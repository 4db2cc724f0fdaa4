"""Runs crckpt's commands in children that have little memory and little time, forked from one that has loaded all.

A line on stdin is a list of words; the answer is the exit code, and what was said. Minus the signal is said of one that
was ended by it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

from crckpt.cli.app import run

MEMORY = 1 << 30
"""Bytes of address space beyond what is there at the start."""

SECONDS = 20
"""Of the processor; of the clock it is three times as much: other programs run."""


def _limit() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.alarm(3 * SECONDS)


def _serve() -> None:
    import crckpt.ops.gc
    import crckpt.ops.inspect.show
    import crckpt.ops.report
    import crckpt.ops.verify
    import crckpt.store.read.reader
    import crckpt.store.upkeep.audit
    import crckpt.store.write.packing  # noqa: F401

    for line in sys.stdin:
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(out)
            os.dup2(into, 1)
            os.dup2(into, 2)
            _limit()
            code = run(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        os.close(into)
        with os.fdopen(out, "rb") as pipe:
            output = pipe.read().decode(errors="replace")
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output]), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    _serve()
