"""Replace deadline scheduling in `core-TID.img`, which CRIU dumps but does not restore.

CRIU writes the policy without runtime, deadline and period, and refuses it at a restore (criu/cr-restore.c:
validate_sched_parm). It restores such threads with the default policy. crckpt sets theirs in the restore's hold.
"""

from __future__ import annotations

from typing import Final

from crckpt.images import magics
from crckpt.images.framing import edit_image
from crckpt.images.wire import VARINT, edit_field, encode

# The policy in thread_core_entry in core_entry (images/core.proto), then policies of sched(7).
_PATH: Final = (5, 4)
_DEADLINE: Final = 6
_OTHER: Final = 0
_LOOKS_LIKE: Final = encode(((_PATH[-1], VARINT, _DEADLINE),))


def drop_deadline(core: bytes, name: str = "core.img") -> bytes:
    """Replace SCHED_DEADLINE with the default policy; return any other image unchanged. Raises IntegrityError."""
    # Few images have it, and a search is faster than decoding. A match by chance does no harm.
    if _LOOKS_LIKE not in core:
        return core
    return edit_image(core, name, magics.CORE, _replace_policy)


def _replace_policy(core: bytes, name: str) -> bytes:
    return edit_field(core, _PATH, lambda policy: _OTHER if policy == _DEADLINE else policy, name)
