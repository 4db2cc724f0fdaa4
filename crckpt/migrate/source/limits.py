"""How long the destination may take for its part: it may live and do nothing while the tree is frozen."""

from __future__ import annotations

from typing import Final

from crckpt.store import Checkpoint

_ANSWER_S: Final = 120
# Bytes per second, at least.
_SLOWEST_RESTORE: Final = 16 << 20
# Of --bandwidth, for each of some moves at once; used before the speed is known.
_SLOWEST_LINK: Final = 4 << 10
# The link may become slower than it was during the rounds.
_SLOWER: Final = 10


def limit_sending(checkpoint: Checkpoint, bytes_per_s: float) -> float:
    """Return how many seconds it may take to send what is new in a checkpoint, after sending at this speed."""
    return _ANSWER_S + checkpoint.statistics.new_bytes / max(bytes_per_s / _SLOWER, _SLOWEST_LINK)


def limit_restore(checkpoint: Checkpoint) -> float:
    """Return how many seconds the restore of a checkpoint may take."""
    return _ANSWER_S + checkpoint.statistics.raw_bytes / _SLOWEST_RESTORE
