"""What is done about packs in which damage may be."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from crckpt.store.backend.protocol import Backend
from crckpt.store.layout import fingerprints_name


def forget_fingerprints(backend: Backend, digests: Iterable[str]) -> None:
    """Remove the fingerprints of packs: so these are read whole before anything new depends on them.

    Where we may not write, neither may who stores.
    """
    for digest in digests:
        with suppress(OSError):
            backend.remove(fingerprints_name(digest), "fingerprints")
