"""After a failure on a live tree: undo what CRIU left, establish the state of the tree, and say it. Never guess."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crckpt.criu.explain import run_id
from crckpt.errors import CrckptError, DumpFailed, Interrupted, TreeStopped
from crckpt.host import network, proc
from crckpt.host.signals import interrupts_put_off
from crckpt.ops.failures import as_ours
from crckpt.store import Repository


@dataclass(frozen=True)
class TreeState:
    """Whether every process of a tree still runs; `pids` are those that are stopped or gone."""

    kind: Literal["running", "stopped", "lost"]
    pids: tuple[int, ...] = ()

    @property
    def sentence(self) -> str:
        """The state, to end a message with."""
        if self.kind == "running":
            return "the tree runs on"
        what = "stopped" if self.kind == "stopped" else "gone"
        return f"processes of the tree are {what}: {' '.join(str(pid) for pid in self.pids)}"

    @property
    def way_out(self) -> str:
        """The command that makes it run again, if there is one."""
        return f"kill -CONT {' '.join(str(pid) for pid in self.pids)}" if self.kind == "stopped" else ""


@contextmanager
def untouched_said() -> Iterator[None]:
    """If the block, which does nothing to the tree, is interrupted or the system refuses something: say so."""
    try:
        yield
    except (Interrupted, OSError) as error:
        ours = as_ours(error, DumpFailed, "the dump")
        raise type(ours)(f"{ours.message}; nothing was begun, the tree runs on", hint=ours.hint) from error


@contextmanager
def tree_state_said(tree: proc.Tree, log: Path, repository: Repository) -> Iterator[None]:
    """If the block fails: lift the network lock that CRIU left, and end the error's message with what became of it.

    A full disk becomes StoreUnusable; whatever it was becomes TreeStopped if the tree does not run any more.
    """
    try:
        yield
    except (CrckptError, OSError) as error:
        with interrupts_put_off():
            name = run_id(log.read_text(errors="replace")) if log.exists() else None
            made, state = _made_by(name, repository), state_of(tree)
            # An ended tree whose checkpoint is there needs the lock until its restore.
            if name and (state.kind != "lost" or not made):
                network.lift_lock(name)
            raise _with_state(as_ours(error, DumpFailed, "the dump"), made, state) from error


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


def _made_by(run: str | None, repository: Repository) -> str:
    """What a failure after the commit leaves: the checkpoint that this run of CRIU made; empty if there is none."""
    return next((made.id[:12] for made in repository.checkpoints() if run and made.run_id == run), "")


def _with_state(error: CrckptError, made: str, state: TreeState) -> CrckptError:
    said = f"{error.message}; {f'checkpoint {made}' if made else 'no checkpoint'} was made; {state.sentence}"
    if state.kind != "running":
        return TreeStopped(said, hint=state.way_out or error.hint, causes=error.causes)
    return type(error)(said, hint=error.hint, causes=error.causes)
