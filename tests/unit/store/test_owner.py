"""A record of a process shows forever whether that process is alive."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from crckpt.host import proc
from crckpt.store.owner import identify_owner


def test_owner_that_is_a_zombie_counts_as_dead(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    process = proc.read_process(child)
    assert process is not None
    forked = replace(identify_owner(0.0), pid=child, start=process.start)
    assert not forked.is_alive
    os.waitpid(child, 0)
