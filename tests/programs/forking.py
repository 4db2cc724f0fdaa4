"""A program that forks children as soon as DIRECTORY/go exists: forking.py DIRECTORY MEGABYTES [live].

Each child ends before the next one is forked, or all live. The program writes "ready", and
"forked" after CHILDREN of them, into DIRECTORY/report.
"""

import os
import signal
import sys
import time
from pathlib import Path

CHILDREN = 300


def main() -> None:
    """Wait, and fork."""
    directory, memory, do_live = Path(sys.argv[1]), os.urandom(int(sys.argv[2]) << 20), "live" in sys.argv
    (directory / "report").write_text("ready")
    while not (directory / "go").exists():
        time.sleep(0.005)
    for _ in range(CHILDREN):
        child = os.fork()
        if child == 0:
            if do_live:
                signal.pause()
            os._exit(0)
        if not do_live:
            os.waitpid(child, 0)
    (directory / "report").write_text("forked")
    while memory:
        time.sleep(1)


if __name__ == "__main__":
    main()
