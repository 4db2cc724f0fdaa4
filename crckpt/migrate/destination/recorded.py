"""Records of moves at the destination: what the source is told of them, what is left, and what restores need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import convert

from crckpt.errors import NOTHING_LEFT, HostCannot, MoveInDoubt, PreflightRefused, RestoreFailed
from crckpt.helper.address_guard.client import GuardedAddresses, guarded_addresses
from crckpt.host.network.address import HostAddress
from crckpt.host.network.claim import give_up
from crckpt.host.proc import LiveRoot, identify_live_root, read_process
from crckpt.host.process.orphans import end_unfinished_trees
from crckpt.migrate.addresses import list_destination_addresses
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.connection_errors import ConnectionLost
from crckpt.model import CheckpointId, JobName, MoveId
from crckpt.ops.lazy.family import end_unfilled
from crckpt.ops.restore.request import RestoreRequest
from crckpt.store import Checkpoint, Repository
from crckpt.store.move_states import State
from crckpt.store.moves import Move, advance, begin_move, read_last_moves, read_move, store_move
from crckpt.store.transaction import end_unfinished_restores


def read_state(repository: Repository, message: messages.Resume, source: str) -> tuple[messages.MoveState, Move | None]:
    """Read the answer for a source from a move's record, and the record. Raises PreflightRefused if it is busy."""
    moves = read_last_moves(repository.backend)[0]
    # What this host has moved away is not for other hosts to decide.
    move = next((move for move in moves if move.id == message.move and move.side == "destination"), None)
    if move is None:
        job = message.aborted_job
        return messages.MoveState(message.move, _record_abort(repository, message.move, job, source)), None
    refuse_busy(move)
    wait_until_decided(move)
    now = end_unfinished_tree(repository, move)
    if now.state != move.state:
        store_move(repository.backend, now)
    has_ended = now.root is not None and now.root.has_ended()
    return messages.MoveState(move.id, now.state, now.checkpoint, has_ended), now


def _record_abort(repository: Repository, move_id: MoveId, job: JobName | None, source: str) -> State | None:
    """Record that an unknown move was aborted: a crckpt that was stopped must not begin it. Return the state."""
    if job is None:
        return None
    last = read_move(repository.backend, job)
    is_moved = last is not None and last.side == "destination" and last.state == "done"
    if last is not None and is_moved and (last.root is None or not last.root.has_ended()):
        # The tree of another move may run here, and its record names it.
        return None
    move = advance(begin_move("destination", job, source, move_id), "aborted", why="it never began here")
    return store_move(repository.backend, move).state


def refuse_busy(move: Move) -> None:
    """Raise PreflightRefused if another crckpt still works on the move: soon it notices that its connection is lost."""
    if not move.is_over and move.owner.is_alive and move.owner.pid != os.getpid():
        raise PreflightRefused(
            f"crckpt (PID {move.owner.pid}) is still moving {move.job}",
            hint=f"try again in a moment; if it hangs: kill -9 {move.owner.pid}",
        )


def end_unfinished_tree(repository: Repository, move: Move) -> Move:
    """End the tree of a move if crckpt and CRIU were killed before it ran; return the move, judged."""
    if move.side == "destination" and not move.owner.is_alive:
        end_unfinished_restores(repository.backend.scratch)
        root = move.root
        if root is not None and root.log is not None and root.is_unfinished():
            end_unfinished_trees([root.log])
    return move.judge()


def explain_loss(move: Move, error: ConnectionLost, *, is_late: bool) -> MoveInDoubt:
    """Explain in which state the move of a tree is. `is_late`: its memory was to be sent while it runs here.

    Without a hint: the source, whose user reads this, finishes the move itself or says how.
    """
    if move.state == "committed" and is_late:
        now = f"{move.job} was ended here, because not all of its memory had arrived"
    elif move.state == "committed":
        now = f"{move.job} has ended on {move.peer}, and its tree could not be restored here"
    else:
        now = f"the checkpoint of {move.job} is safe here, and only {move.peer} knows whether its tree has ended there"
    return MoveInDoubt(f"{error.message}; {now}")


def wait_until_decided(move: Move | None) -> None:
    """Wait while a helper fills the memory of the tree of a move, or ends the tree. End it if nobody does either."""
    if move is not None and move.root is not None:
        end_unfilled(move.root)


@contextmanager
def claimed_addresses(
    addresses: tuple[HostAddress, ...], move_id: MoveId, checkpoint: Checkpoint
) -> Iterator[GuardedAddresses]:
    """Claim the addresses behind a fence for the tree of a checkpoint; give them up at the end unless kept."""
    taken = {number for task in checkpoint.tree for number in (task.pid, *task.threads)}
    with guarded_addresses(addresses, move_id, taken) as guard:
        guard.claim()
        yield guard


def give_up_left_addresses(move: Move) -> tuple[HostAddress, ...]:
    """Give up what a crckpt has left that was killed together with its guard. Return the addresses of the move."""
    if addresses := list_destination_addresses(convert(move.options, messages.RestoreOptions).addresses):
        give_up(addresses, move.id)
    return addresses


def expect_built(root: int, criu: int, guard: GuardedAddresses | None) -> LiveRoot:
    """Identify the root of a tree that CRIU has built and holds. Raises RestoreFailed if it has ended.

    The `guard` ends that tree if we are killed together with CRIU.
    """
    process = read_process(root)
    if process is None:
        raise RestoreFailed("the root of the restored tree has ended", state=NOTHING_LEFT)
    live = identify_live_root(process, criu)
    if guard is not None:
        guard.expect(live)
    return live


def release_or_explain(guard: GuardedAddresses | None, root: LiveRoot) -> str:
    """Open the fence of a tree that runs, whatever happens; return what did not work, empty if all did."""
    # If CRIU was killed, the tree that it has built ends, and the fence must not let out its resets.
    if guard is None or not root.is_held():
        return ""
    try:
        return guard.release()
    except HostCannot as error:
        # To keep the addresses removes the fence, too.
        return error.message


def make_restore_request(checkpoint: CheckpointId, options: messages.RestoreOptions) -> RestoreRequest:
    """Make the request for the restore of a moved tree."""
    return RestoreRequest(
        checkpoint,
        detach=True,
        tcp=options.tcp,
        grown=options.grown,
        # The tree has stood still since its last checkpoint: if a file seems newer, the clocks differ.
        written="keep",
        preflight=options.preflight,
        allow_weaker=options.allow_weaker,
        tty=options.tty or "ours",
    )
