"""Dump the tree below PID with CRIU into WORK, and be killed in the hold, before or after the commit is recorded."""

import os
import signal
import sys
from pathlib import Path

from crckpt.criu.command import Paths, dump_command
from crckpt.criu.engine import run_criu
from crckpt.criu.hold import holds_at
from crckpt.model import DumpOptions


def main() -> None:
    """Never ends by itself."""
    criu, pid, work, when = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    with holds_at(work / "hold", "post-dump") as (hold,):

        def die() -> None:
            if when == "after":
                (work / "hold/post-dump/undecided").rename(work / "hold/post-dump/commit")
            os.kill(os.getpid(), signal.SIGKILL)

        paths = Paths(work / "images", work, hold.script)
        run_criu(
            dump_command(criu, pid, paths, DumpOptions(), leave_running=False),
            work / "dump.log",
            hold=hold,
            in_hold=die,
        )


if __name__ == "__main__":
    main()
