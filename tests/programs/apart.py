"""A program with its own host name and monotonic clock (uts and time namespaces, which its starter made)."""

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Final

from selfcheck import Program

NAME: Final = "crckpt-test"
AHEAD_S: Final = 5_000_000
"""How far `unshare --monotonic` has set its clock: more than a host of tests has been up."""


def main() -> None:
    """Rename the host, then check the name and the clock at every tick."""
    program = Program(Path(sys.argv[1]))
    assert ctypes.CDLL(None).sethostname(NAME.encode(), len(NAME)) == 0
    last = time.monotonic()
    namespaces = {kind: os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("uts", "time")}

    def look() -> None:
        nonlocal last
        now = time.monotonic()
        program.expect(os.uname().nodename == NAME, f"the host is called {os.uname().nodename}")
        program.expect(last <= now < last + 600, f"the clock went from {last} to {now}")
        program.expect(now > AHEAD_S, f"the clock is at {now}")
        last = now
        for kind, held in namespaces.items():
            same = os.path.samestat(os.fstat(held), Path(f"/proc/self/ns/{kind}").stat())
            program.expect(same, f"the descriptor is of another {kind} namespace")

    program.run(look)


if __name__ == "__main__":
    main()
