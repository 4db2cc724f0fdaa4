"""What the user asked of a dump. Light to load: CRIU is started before the rest is."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class PreCopy(Struct, frozen=True):
    """Copy in rounds before the freeze, `most` at the most, or until a freeze of `max_freeze_ms` is foreseen.

    `abort_over`: if a longer one is foreseen all the same, make no dump.
    """

    most: int
    max_freeze_ms: float | None = None
    abort_over: bool = False


class Request(Struct, frozen=True):
    """What the user asked for. Without `preflight` it is left to CRIU to find what stands against a dump.

    With `force` a tree is ended, too, that holds what no test has shown to come back.
    `incremental` None: if the tree is tracked already, or is to be copied in rounds before (`pre_copy`).
    """

    target: str
    job: str | None = None
    stop: bool = False
    tcp: Literal["keep", "close"] | None = None
    tag: str | None = None
    note: str | None = None
    dry_run: bool = False
    asynchronous: bool = False
    preflight: bool = True
    incremental: bool | None = None
    pre_copy: PreCopy | None = None
    skip_in_flight: bool = False
    force: bool = False

    @property
    def wants_tracker(self) -> bool | None:
        """Whether a tracker is to be started; None: no, but one that is there is used."""
        return True if self.pre_copy is not None else self.incremental
