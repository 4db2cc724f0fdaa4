"""Post-copy at the destination: the tree runs before its checkpoint is in the store here.

Until all packs are here the tree depends on the connection. If that is lost, the tree is ended, and the record stays
`committed`: the source, whose record is `ended`, hands its checkpoint over again.
"""

from __future__ import annotations

from crckpt.migrate.transfer.late_packs import SourcePacks
from crckpt.migrate.transfer.receive_packs import Receiver
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.messages import CheckRestore, Offer, Prepare
from crckpt.ops.lazy.client import Filler
from crckpt.ops.lazy.guard import end_unfilled
from crckpt.store import Checkpoint, Repository
from crckpt.store.format.manifest import unseal
from crckpt.store.moves import Move


class PostCopy:
    """The packs of one move that come late."""

    def __init__(self, connection: Connection, repository: Repository) -> None:
        """Nothing is read yet."""
        self._connection = connection
        self._repository = repository
        self._packs = SourcePacks(connection)
        self._filler: Filler | None = None

    def open(self, message: CheckRestore | Prepare) -> tuple[Repository, Checkpoint]:
        """Open the store as if it had the checkpoint of a message. Raises IntegrityError."""
        checkpoint = unseal(message.manifest, message.checkpoint)
        return self._repository.with_late_packs(checkpoint, message.manifest, self._packs.fetch), checkpoint

    def serve(self, filler: Filler | None, message: Prepare) -> None:
        """Let the helper read the packs, too, once it has the tree."""
        self._filler = filler
        if filler is not None:
            filler.serve(message.manifest, self._packs.fetch)

    def finish(self, receiver: Receiver, message: Prepare) -> None:
        """Receive the packs and store the checkpoint; wait until the memory of the tree is complete.

        Raises what `Receiver` raises, and RestoreFailed.
        """
        receiver.answer_offer(self._connection, self._connection.receive(Offer))
        receiver.store_checkpoint(message.manifest, message.checkpoint)
        if self._filler is not None:
            self._filler.wait_until_filled()

    def end_tree(self, move: Move) -> None:
        """End the tree, whose memory can no longer be completed; return when it has ended."""
        if self._filler is not None:
            self._filler.close()
        wait_until_decided(move)


def wait_until_decided(move: Move | None) -> None:
    """Wait while a helper fills the memory of the tree of a move, or ends the tree. End it if nobody does either."""
    if move is not None and move.root is not None:
        end_unfilled(move.root)
