"""What every restore of a moved tree needs: its request, and the addresses that move along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import convert

from crckpt.errors import NOTHING_LEFT, HostCannot, RestoreFailed
from crckpt.host.proc import LiveRoot, identify_live_root, read_process
from crckpt.migrate.addresses import GuardedAddresses, HostAddress, guarded_addresses, list_destination_addresses
from crckpt.migrate.wire import messages
from crckpt.model import CheckpointId, MoveId
from crckpt.ops.restore.request import RestoreRequest
from crckpt.store import Checkpoint
from crckpt.store.moves import Move


@contextmanager
def claimed_addresses(
    addresses: tuple[HostAddress, ...], move_id: MoveId, checkpoint: Checkpoint
) -> Iterator[GuardedAddresses]:
    """Claim the addresses behind a fence for the tree of a checkpoint; give them up at the end unless kept."""
    taken = {number for task in checkpoint.tree for number in (task.pid, *task.threads)}
    with guarded_addresses(addresses, move_id, taken) as guard:
        guard.claim()
        yield guard


def identify_built(root: int, criu: int) -> LiveRoot:
    """Identify the root of a tree that CRIU has built and holds. Raises RestoreFailed if it has ended."""
    process = read_process(root)
    if process is None:
        raise RestoreFailed("the root of the restored tree has ended", state=NOTHING_LEFT)
    return identify_live_root(process, criu)


def release_or_explain(guard: GuardedAddresses, root: LiveRoot) -> str:
    """Open the fence of a tree that runs, whatever happens; return what did not work, empty if all did."""
    if not root.is_held():
        # CRIU was killed: the tree that it has built ends, and the fence must not let out its resets.
        return ""
    try:
        return guard.release()
    except HostCannot as error:
        # To keep the addresses removes the fence, too.
        return error.message


def make_addresses(move: Move) -> tuple[HostAddress, ...]:
    """Return the addresses that move with the tree."""
    return list_destination_addresses(convert(move.options, messages.RestoreOptions).addresses)


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
