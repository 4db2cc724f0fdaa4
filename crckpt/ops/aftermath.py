"""After a failure on a live tree: undo what CRIU left, establish the state of the tree, and say it. Never guess."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crckpt.criu.explain import run_id
from crckpt.errors import CrckptError, DumpFailed, StoreUnusable, TreeStopped
from crckpt.host import network, proc
from crckpt.host.signals import interrupts_put_off

_FULL = {
    errno.ENOSPC: "no space is left",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file grew too large",
}


@dataclass(frozen=True)
class TreeState:
    """Whether every process of a tree still runs; `pids` are those that are stopped or gone."""

    kind: Literal["running", "stopped", "lost"]
    pids: tuple[int, ...] = ()

    @property
    def sentence(self) -> str:
        """The state, to end a message with."""
        if self.kind == "running":
            return "no checkpoint was made; the tree runs on"
        what = "stopped" if self.kind == "stopped" else "gone"
        return f"no checkpoint was made; processes of the tree are {what}: {' '.join(str(pid) for pid in self.pids)}"

    @property
    def way_out(self) -> str:
        """The command that makes it run again, if there is one."""
        return f"kill -CONT {' '.join(str(pid) for pid in self.pids)}" if self.kind == "stopped" else ""


@contextmanager
def tree_state_said(tree: proc.Tree, log: Path) -> Iterator[None]:
    """If the block fails: lift the network lock that CRIU left, and end the error's message with the tree's state.

    A full disk becomes StoreUnusable; whatever it was becomes TreeStopped if the tree does not run any more.
    """
    try:
        yield
    except (CrckptError, OSError) as error:
        with interrupts_put_off():
            _lift_lock_named_in(log)
            raise _with_state(_as_ours(error), state_of(tree)) from error


def state_of(tree: proc.Tree) -> TreeState:
    """What the processes of a tree that was seen before do now. One that was stopped before may still be."""
    now = {process.pid: proc.read_process(process.pid) for process in tree.processes}
    stopped, gone = [], []
    for before in tree.processes:
        process = now[before.pid]
        if process is None or process.start != before.start or (process.state == "zombie" != before.state):
            gone.append(before.pid)
        elif process.state in ("stopped", "traced") and before.state not in ("stopped", "traced"):
            stopped.append(before.pid)
    # A tree's processes come and go by themselves; the root is what must be there.
    if tree.root.pid in gone:
        return TreeState("lost", tuple(gone))
    return TreeState("stopped", tuple(stopped)) if stopped else TreeState("running")


def _lift_lock_named_in(log: Path) -> None:
    name = run_id(log.read_text(errors="replace")) if log.exists() else None
    if name:
        network.lift_lock(name)


def _as_ours(error: CrckptError | OSError) -> CrckptError:
    if isinstance(error, CrckptError):
        return error
    if error.errno in _FULL:
        where = f" ({error.filename})" if error.filename else ""
        return StoreUnusable(
            f"{_FULL[error.errno]} for the checkpoint{where}",
            hint="free space (crckpt rm, crckpt gc), or use --store on a larger disk",
        )
    return DumpFailed(f"the dump failed: {error}")


def _with_state(error: CrckptError, state: TreeState) -> CrckptError:
    said = f"{error.message}; {state.sentence}"
    if state.kind != "running":
        return TreeStopped(said, hint=state.way_out or error.hint, causes=error.causes)
    return type(error)(said, hint=error.hint, causes=error.causes)
