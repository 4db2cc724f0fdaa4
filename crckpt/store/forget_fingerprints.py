"""Forget the fingerprints of packs that may be damaged."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from crckpt.model import PackId
from crckpt.store.backend.protocol import Backend
from crckpt.store.layout import fingerprints_name


def forget_fingerprints(backend: Backend, digests: Iterable[PackId]) -> None:
    """Remove the fingerprints of packs, so that these are read whole before anything new depends on them."""
    for digest in digests:
        # A failure is ignored: where this cannot write, nothing new is stored either.
        with suppress(OSError):
            backend.remove(fingerprints_name(digest), "fingerprints")
