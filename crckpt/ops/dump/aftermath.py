"""After a failure on a live tree: undo what CRIU left, establish the state of the tree, and say it. Never guess."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from msgspec import Struct

from crckpt.criu.engine import run_id
from crckpt.errors import CrckptError, DumpFailed, IntegrityError, TreeStopped
from crckpt.host import proc
from crckpt.host.disk.log_ends import read_file_ends
from crckpt.host.namespaces import network_locks
from crckpt.host.process.signals import interrupts_put_off
from crckpt.ops.failures import as_ours
from crckpt.store import Repository

_STANDING = ("stopped", "traced")

# What it counted from may be damaged; since it came to nothing, nothing counts from there any more.
_AGAIN = "try again: the next dump of this tree is full"


class TreeState(Struct, frozen=True):
    """Whether every process of a tree still runs.

    `pids` are those that are stopped, held or gone; of a running or held tree, those that ended meanwhile. `holder` is
    the process that holds a tree: another dump, or a debugger.
    """

    kind: Literal["running", "stopped", "held", "lost"]
    pids: tuple[int, ...] = ()
    holder: int = 0

    @property
    def sentence(self) -> str:
        """The state, to end a message with."""
        pids = " ".join(str(pid) for pid in self.pids)
        ended = f" without {pids}, which ended meanwhile" if pids else ""
        return {
            "running": f"the tree runs on{ended}",
            "held": f"the tree{ended} is held by process {self.holder} and runs on when that lets go",
            "stopped": f"processes of the tree are stopped: {pids}",
            "lost": f"processes of the tree are gone: {pids}",
        }[self.kind]

    @property
    def way_out(self) -> str:
        """What makes a tree run again that does not."""
        if self.kind == "lost":
            return "crckpt list shows what it can be restored from"
        return f"kill -CONT {' '.join(str(pid) for pid in self.pids)}" if self.kind == "stopped" else ""


@contextmanager
def tree_state_said(tree: proc.Tree, log: Path, repository: Repository) -> Iterator[None]:
    """If the block fails: lift the network lock that CRIU left, and end the error's message with what became of it.

    A full disk becomes StoreUnusable; whatever it was becomes TreeStopped if the tree does not run any more.
    """
    try:
        yield
    except (CrckptError, OSError) as error:
        with interrupts_put_off():
            state = state_of(tree)
            name, made = _left_by(log, repository)
            said = as_ours(error, DumpFailed, "the dump")
            # An ended tree whose checkpoint is there, or may be, needs the lock until its restore.
            if name and (state.kind != "lost" or made == ""):
                said = _lifted(name, said, tree)
            raise _with_state(said, made, state) from error


def state_of(tree: proc.Tree) -> TreeState:
    """What the processes of a tree that was seen before do now. One that was stopped before may still be."""
    now = {process.pid: proc.read_process(process.pid) for process in tree.processes}
    stopped, gone, holders = [], [], []
    for before in tree.processes:
        process = now[before.pid]
        if process is None or process.start != before.start or (process.state == "zombie" != before.state):
            gone.append(before.pid)
        elif process.state in _STANDING and process.tracer:
            holders.append(process.tracer)
        elif process.state in _STANDING and before.state not in _STANDING:
            stopped.append(before.pid)
    # A tree's processes come and go by themselves; the root is what must be there.
    if tree.root.pid in gone:
        return TreeState("lost", tuple(gone))
    if stopped:
        return TreeState("stopped", tuple(stopped))
    return TreeState("held", tuple(gone), holders[0]) if holders else TreeState("running", tuple(gone))


def _left_by(log: Path, repository: Repository) -> tuple[str | None, str | None]:
    """The id of CRIU's run, and what a failure after the commit leaves: the checkpoint that this run made.

    That is empty if it made none, and None where nobody can tell: the disk that has them may be what failed.
    """
    name = None
    try:
        name = run_id(read_file_ends(log).decode(errors="replace")) if log.exists() else None
        return name, next((made.id[:12] for made in repository.checkpoints() if name and made.run_id == name), "")
    except (CrckptError, OSError):
        return name, None


def _lifted(name: str, error: CrckptError, tree: proc.Tree) -> CrckptError:
    """The error, with what became of the lock if it cannot be lifted."""
    own, its = proc.namespace(os.getpid(), "net"), dict(tree.root.namespaces).get("net")
    try:
        if its is None or its == own:
            network_locks.lift_lock(name)
        else:
            with network_locks.find_network(its, tree.pids) as inside:
                if inside is not None:
                    network_locks.lift_lock(name, inside)
    except CrckptError as failure:
        said = f"{error.message}; CRIU's lock of its connections is still there: {failure.message}"
        return type(error)(said, hint=failure.hint, causes=error.causes)
    return error


def _with_state(error: CrckptError, made: str | None, state: TreeState) -> CrckptError:
    what = f"{f'checkpoint {made}' if made else 'no checkpoint'} was made"
    if made is None:
        what = "whether a checkpoint was made cannot be read"
    said = f"{error.message}; {what}; {state.sentence}"
    if state.kind in ("stopped", "lost"):
        return TreeStopped(said, hint=state.way_out, causes=error.causes)
    again = _AGAIN if isinstance(error, IntegrityError) else ""
    return type(error)(said, hint=error.hint or again, causes=error.causes)
