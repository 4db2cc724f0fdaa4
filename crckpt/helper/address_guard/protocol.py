"""Requests to the guard of claimed addresses, and its answers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from crckpt.host.proc.live_root import LiveRoot


class GuardRequest(Struct, frozen=True):
    """Perform one of the steps of `claim`; or `keep` the addresses: the guard then ends.

    `expect` the tree with this `root` to use the addresses: CRIU holds it, and lets it run, or ends it.
    """

    do: Literal["claim", "expect", "release", "keep"]
    root: LiveRoot | None = None


class GuardAnswer(Struct, frozen=True):
    """The step is done, or why it `failed`. `warning`: what did not work, but does not matter to the step."""

    failed: str = ""
    hint: str = ""
    warning: str = ""
