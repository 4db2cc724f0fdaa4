"""Read what the processes of a tree use now, so that `doctor TARGET` shows users which program they named."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.usage import ProcessUsage, read_process_usage
from crckpt.ops.dump.examine import Examination


class UsingProcess(Struct, frozen=True):
    """A process of the tree, and what it uses."""

    pid: int
    comm: str
    usage: ProcessUsage


def read_tree_usage(examination: Examination) -> tuple[UsingProcess, ...]:
    """Read what each process of an examined tree uses, the root first. Processes that have ended are left out."""
    return tuple(_processes(examination.observed.tree))


def _processes(tree: proc.Tree) -> Iterator[UsingProcess]:
    for process in tree.processes:
        usage = read_process_usage(process.pid)
        # Else it is of another process, which has got the PID.
        if usage is not None and process.identity.keeps_pid:
            yield UsingProcess(process.pid, process.comm, usage)
