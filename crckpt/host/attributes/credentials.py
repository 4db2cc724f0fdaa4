"""Read the rights of each thread of a frozen tree from the kernel."""

from __future__ import annotations

from contextlib import suppress

from crckpt.host.proc import procfs
from crckpt.host.proc.status import read_status
from crckpt.images.creds import CAPABILITIES, Rights


def read_thread_rights(root: int) -> dict[int, Rights]:
    """Read the rights of all threads of `root` and its descendants, by thread id in the thread's own pid namespace.

    Without those that have ended.
    """
    found: dict[int, Rights] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        with suppress(OSError):
            # The tree is frozen, so its lists of children are complete (proc_tid_children(5)).
            for tid in procfs.threads(pid):
                status = read_status(pid, tid)
                if "VmSize" in status:  # it has memory
                    found[int(status["NSpid"].split()[-1])] = _rights(status)
                waiting.extend(procfs.children(pid, tid))
    return found


def _rights(status: dict[str, str]) -> Rights:
    return Rights(
        uids=tuple(map(int, status["Uid"].split())),
        gids=tuple(map(int, status["Gid"].split())),
        groups=frozenset(map(int, status["Groups"].split())),
        capabilities=tuple(int(status[name], 16) for name in CAPABILITIES),
        confined=status["NoNewPrivs"] == "1",
    )
