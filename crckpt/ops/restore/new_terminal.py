"""Restore a tree onto a new terminal, which has a holder, instead of the terminal that it was started from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from crckpt.causes import Finding, cause
from crckpt.helper.calls.remote_calls import Order, carry_out
from crckpt.helper.terminal.client import TerminalHolder, held_terminal
from crckpt.helper.terminal.protocol import HeldTree
from crckpt.host import proc
from crckpt.images.tree import ImageTree
from crckpt.ops.restore.attempt import RestoreAttempt
from crckpt.preflight.restore.descriptors import find_terminal_leader
from crckpt.preflight.restore.tasks import find_needed_ids


@contextmanager
def new_terminal(attempt: RestoreAttempt, tree: ImageTree) -> Iterator[TerminalHolder]:
    """Make a terminal with a holder for the tree. If the block fails, both end."""
    # CRIU puts a tree without a session leader into its own session, which must live as long as the tree. A root that
    # leads its session gets the terminal in the hold.
    is_session = tree.root.pid != tree.root.sid
    in_namespace = attempt.request.new_pid_namespace
    needed = find_needed_ids(tree)
    with held_terminal(attempt.checkpoint.job, needed, is_session=is_session, in_namespace=in_namespace) as holder:
        yield holder


def give_terminal(holder: TerminalHolder, tree: ImageTree, init: int | None) -> Iterator[Finding]:
    """In the hold: let the tree have the terminal as it had the old one; yield what was lost."""
    # CRIU has given it the owner that the old one had.
    owner = tree.root.core.credentials
    if owner is not None:
        os.fchown(holder.slave, owner.uid, -1)
    leader = find_terminal_leader(tree)
    if leader is None:
        return
    pid = proc.outer_pids((leader.pid,), init).get(leader.pid)
    if pid is None:
        return
    values = (("controlling_terminal", (leader.fd, leader.group)),)
    for answer in carry_out((Order(pid, pid, "set", values, is_lent=True),)):
        for why in filter(None, (answer.why, *(why for _, why in answer.failed))):
            yield cause("terminal-not-controlling").finding(why=why)


def commit_terminal(holder: TerminalHolder, attempt: RestoreAttempt, tree: ImageTree, root: int) -> Iterator[Finding]:
    """Report to the holder that the tree runs, whose root we see as `root`; yield what was lost."""
    checkpoint = attempt.checkpoint
    held = HeldTree(
        root, proc.start_time(root) or 0, tree.root.pid, tree.root.comm, checkpoint.job, checkpoint.id, holder.log
    )
    if why := holder.commit(held):
        yield cause("terminal-not-attachable").finding(why=why, log=holder.log)
