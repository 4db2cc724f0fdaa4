"""Handle a failure on a live tree: explain it, undo what CRIU left, and report the tree's state. Never guess."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from crckpt.criu.engine import CriuResult, run_id
from crckpt.errors import (
    NOTHING_MADE,
    TREE_RUNS,
    CommandFailure,
    CrckptError,
    DumpFailed,
    IntegrityError,
    Interrupted,
    StoreUnusable,
    TargetNotRunning,
    TreeStopped,
)
from crckpt.host import proc
from crckpt.host.disk.log_excerpt import read_file_ends
from crckpt.host.network import packet_filter
from crckpt.host.process.signals import interrupts_allowed, interrupts_deferred
from crckpt.model import RunId
from crckpt.ops.context import Context
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.failures import criu_failure, to_dump_error
from crckpt.store import Repository

_ENDING_S = 0.5
_STANDING = ("stopped", "traced")
# Causes by which the base is not what CRIU expects, or does not match the tree.
_OF_THE_BASE = ("parent-pages", "parent-directory", "parent-untracked")

# The base may be damaged. Since this dump failed, the next one does not count from it.
_AGAIN = "try again: the next dump of this tree is full"


class BaseMismatch(DumpFailed):
    """The tree does not match what the dump or round counts from: a full one can be made. `reason` is a clause."""

    reason = ""


def raise_if_failed(target: DumpTarget, result: CriuResult, *, has_base: bool) -> CriuResult:
    """The result of a CRIU that worked on the tree. `has_base`: the dump or round counts from another one.

    Raises DumpFailed, explained, if it failed; StoreUnusable if a disk became full; BaseMismatch; TargetNotRunning if
    the tree ended before CRIU stopped it.
    """
    if result.ok:
        return result
    # This explains more than CRIU's log, which may be about another process.
    has_seized = "Seized task" in result.log  # criu/seize.c
    if target.root is not None and (target.root.is_replaced or not (target.root.is_alive or has_seized)):
        target.root.check()
        raise TargetNotRunning(
            f"PID {target.pid} ended before the freeze", hint="find its new PID: pgrep -af NAME (package procps)"
        )
    was_killed = result.status < 0
    if was_killed:
        # A process that was inside a call of CRIU's does not survive that; its end takes a moment.
        proc.wait_until_gone(target.observed.tree.pids, _ENDING_S)
    # An interruption may have ended a CRIU that had no session of its own yet: then it is the reason.
    with interrupts_allowed():
        # Rarely needed and slow to import: CRIU's log is explained after a failure only.
        from crckpt.criu.explain import explain
        from crckpt.ops.failure_locations import name_place_in_tree
        from crckpt.ops.failures import find_full_directory

        explanation = explain(result.log)
        found, kind = None if was_killed else explanation.finding, DumpFailed
        if found is not None and has_base and found.key in _OF_THE_BASE:
            kind = BaseMismatch
        find_place = partial(name_place_in_tree, target.observed, inside="pid" in target.plan.enter)
        known = (*target.plan.blockers, find_full_directory(target.context))
        failure = criu_failure(result, kind, "the dump", find_place, known=known)
        if found is not None and found.key == "no-space":
            said = failure.causes_said
            raise StoreUnusable(failure.what, hint=failure.hint, causes=failure.causes, causes_said=said)
        if found is not None and isinstance(failure, BaseMismatch):
            what = f"of {explanation.place} " if explanation.place else ""
            failure.reason = f"what CRIU found {what}does not match what was copied before: {found.what}"
        # A killed CRIU leaves sockets in repair mode, which no other process can end.
        if was_killed and target.plan.options.tcp == "keep":
            failure = failure.reword(f"{failure.what}; TCP connections may be dead")
        raise failure


@contextmanager
def tree_state_reported(tree: proc.Tree, log: Path, repository: Repository, context: Context) -> Iterator[None]:
    """If the block fails, lift the network lock that CRIU left, and end the error's message with the tree's state.

    A full disk becomes StoreUnusable. Every error but TargetNotRunning becomes TreeStopped if the tree does not run any
    more.
    """
    try:
        yield
    except (CrckptError, Interrupted, OSError) as error:
        with interrupts_deferred():
            (clause, way_out, is_lost), failure = _read_state(tree), to_dump_error(error, "the dump", context)
            # The checkpoint that was made if the failure came after the commit; None if that cannot be read: the
            # store's disk may be what failed.
            name, made = None, None
            with suppress(CrckptError, OSError):
                name = run_id(read_file_ends(log).decode(errors="replace")) if log.exists() else None
                made = next((each.id[:12] for each in repository.checkpoints() if name and each.run_id == name), "")
            # CRIU lifts its lock when it undoes a dump (criu/cr-dump.c:2098), but not if it was killed. A tree that
            # ended after its checkpoint was made, or may have been, needs the lock until its restore.
            if name and (not is_lost or made == ""):
                failure = _lift_lock(name, failure, tree)
            raise _with_state(failure, made, clause, way_out) from error


def _read_state(tree: proc.Tree) -> tuple[str, str, bool]:
    """The state of a tree that was read before: a clause to end a message with; the remedy if not every process of it
    runs, else empty; whether it is lost.
    """
    # A process that was stopped then may still be.
    now = {process.pid: proc.read_process(process.pid) for process in tree.processes}
    stopped, gone, holders = [], [], []
    for before in tree.processes:
        process = now[before.pid]
        # A process that was a zombie before has not ended since: CRIU saves zombies, too.
        if process is None or process.identity != before.identity or (process.state == "zombie" != before.state):
            gone.append(before.pid)
        elif process.state in _STANDING and process.tracer:
            holders.append(process.tracer)
        elif process.state in _STANDING and before.state not in _STANDING:
            stopped.append(before.pid)
    pids = " ".join(map(str, gone))
    # Other processes of a tree may come and go; the root must be there.
    if tree.root.pid in gone:
        clause = f"these processes of the tree have ended: {pids}"
        return clause, "find a checkpoint to restore: crckpt list", True
    if stopped:
        still = " ".join(map(str, stopped))
        return f"these processes of the tree are stopped: {still}", f"kill -CONT {still}", False
    ended = f" without {pids}, which has ended" if pids else ""
    if holders:
        # Another dump, or a debugger.
        held = f"the tree{ended} is held by process {holders[0]}, and continues when that process ends"
        return held, "", False
    return f"{TREE_RUNS}{ended}", "", False


def _lift_lock(name: RunId, error: CommandFailure, tree: proc.Tree) -> CommandFailure:
    """Lift the network lock. The error, which says so if that fails."""
    own, its = proc.namespace(os.getpid(), "net"), dict(tree.root.namespaces).get("net")
    # CRIU's table lies in the network namespace of the tree.
    try:
        if its is None or its == own:
            packet_filter.lift_lock(name)
        else:
            with packet_filter.find_network(its, tree.pids) as inside:
                if inside is not None:
                    packet_filter.lift_lock(name, inside)
    except CrckptError as failure:
        said = f"{error.what}; CRIU's lock of its connections is still there: {failure.message}"
        return error.reword(said, hint=failure.hint)
    return error


def _with_state(error: CommandFailure, made: str | None, clause: str, way_out: str) -> CommandFailure:
    known = NOTHING_MADE if made == "" else f"checkpoint {made} was made"
    if made is None:
        known = "crckpt cannot read whether a checkpoint was made"
    if isinstance(error, TargetNotRunning):
        return error.reword(error.message, state=known)
    # A move says in its own words where the program runs, but not which checkpoint was made.
    said, now = (error.what, f"{known}; {clause}") if made == "" else (f"{error.what}; {known}", clause)
    if way_out:
        return TreeStopped(said, state=now, hint=way_out, causes=error.causes, causes_said=error.causes_said)
    return error.reword(said, state=now, hint=error.hint or (_AGAIN if isinstance(error, IntegrityError) else ""))
