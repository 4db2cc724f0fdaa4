"""Hold something that prevents a checkpoint or its restore: provoking.py KIND WORKDIR.

The kinds are the functions of the modules provoking_*. WORKDIR/ready appears when it is held, or WORKDIR/cannot with
the reason if this machine lacks it. Each SIGUSR1 adds a byte to WORKDIR/answers.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import provoking_files
import provoking_sockets
import provoking_tasks


def main() -> None:
    """Hold the resource and wait."""
    kind, workdir = sys.argv[1], Path(sys.argv[2])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    # Opened here: in the mount namespace where we are, whoever started us.
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    (hold,) = (
        getattr(module, kind)
        for module in (provoking_files, provoking_sockets, provoking_tasks)
        if hasattr(module, kind)
    )
    try:
        held: object = hold(workdir)
    except OSError as error:
        (workdir / "cannot").write_text(f"{kind}: {error}")
        raise
    provoking_tasks.wait(workdir, held)


if __name__ == "__main__":
    main()
