"""The guard of claimed addresses: a small process that takes them back if crckpt dies before the move is done.

crckpt asks it for the steps of `claim`. The guard runs them all, one after the other: no step of a crckpt that was
killed can come after what undoes it. If crckpt ends before `keep`, it gives the addresses up, unless the expected tree
runs. If the CRIU of that tree was killed, too, the guard ends the tree first. In any case it ends then.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from crckpt.errors import HostCannot, error_text
from crckpt.helper.address_guard.client import GuardAnswer, GuardRequest
from crckpt.helper.channel import Channel, HelperEnded, HelperOutdated, HelperSilent, open_control
from crckpt.helper.kinds import ADDRESS_GUARD
from crckpt.host.network.address import HostAddress, parse_address
from crckpt.host.network.announcements import Announcer
from crckpt.host.network.claim import claim, finish_release, give_up, release
from crckpt.host.proc import LiveRoot
from crckpt.host.process.orphans import end_unfinished_trees
from crckpt.model import MoveId

# One may get lost.
_ANNOUNCEMENTS: Final = 3
_GAP_S: Final = 0.04
_LOOK_S: Final = 0.02
# What ends crckpt (a session that is closed, a service that is stopped) must not end the guard before its work.
_NOT_OURS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class _Guard:
    """Performs the steps. `_left`: announcements that are still to be made."""

    def __init__(self, control: Channel, move_id: MoveId, addresses: tuple[HostAddress, ...]) -> None:
        self._control = control
        self._move_id = move_id
        self._addresses = addresses
        self._unrouted: tuple[HostAddress, ...] = ()
        self._has_claimed = False
        self._is_released = self._is_kept = False
        self._left = 0
        self._root: LiveRoot | None = None
        self._announcer: Announcer | None = None

    def serve(self) -> None:
        """Serve crckpt until the addresses are kept or given up. Raises HostCannot."""
        while not self._is_kept:
            try:
                request = self._control.receive(GuardRequest, _GAP_S if self._left else None)
            except (HelperEnded, HelperOutdated):
                self._end_without_crckpt()
                break
            except HelperSilent:
                self._announce_again()
                continue
            # If crckpt has ended, the next request says so.
            with suppress(HelperEnded):
                self._control.send(self._perform(request))
        while self._left:
            time.sleep(_GAP_S)
            self._announce_again()

    def _end_without_crckpt(self) -> None:
        while self._root is not None and self._root.is_held():
            time.sleep(_LOOK_S)
        if self._root is not None and self._root.log is not None and self._root.is_unfinished():
            # Before the fence is lifted: their end may reset connections.
            end_unfinished_trees([self._root.log])
        if self._root is not None and self._root.find() is not None:
            if self._addresses:
                if not self._is_released:
                    self._release()
                self._keep()
            return
        self._left = 0
        if self._has_claimed and self._addresses:
            give_up(self._addresses, self._move_id)

    def _perform(self, request: GuardRequest) -> GuardAnswer:
        if request.do == "expect":
            self._root = request.root
            return GuardAnswer()
        if not self._addresses:
            self._is_kept = request.do == "keep"
            return GuardAnswer()
        steps: dict[str, Callable[[], str]] = {"claim": self._claim, "release": self._release, "keep": self._keep}
        try:
            return GuardAnswer(warning=steps[request.do]())
        except HostCannot as error:
            return GuardAnswer(failed=error.message, hint=error.hint)

    def _claim(self) -> str:
        self._unrouted = claim(self._addresses, self._move_id)
        self._has_claimed = True
        # Not when the clients wait. If it fails, the release reports it.
        with suppress(OSError):
            self._announcer = Announcer(self._addresses)
        return ""

    def _release(self) -> str:
        release(self._addresses, self._move_id, self._unrouted)
        self._is_released = True
        self._left = _ANNOUNCEMENTS
        try:
            self._announce()
        except OSError as error:
            return f"the moved addresses could not be announced to the network: {error_text(error)}"
        return ""

    def _keep(self) -> str:
        self._is_kept = True
        finish_release(self._addresses, self._move_id, self._unrouted)
        return ""

    def _announce(self) -> None:
        self._left -= 1
        if self._announcer is None:
            self._announcer = Announcer(self._addresses)
        self._announcer.announce()

    def _announce_again(self) -> None:
        # The failure of the first one was reported.
        with suppress(OSError):
            self._announce()


def main(words: list[str]) -> int:
    """Guard addresses until crckpt has kept them, or has ended."""
    for number in _NOT_OURS:
        signal.signal(number, signal.SIG_IGN)
    guard = _Guard(open_control(ADDRESS_GUARD, words[0]), MoveId(words[1]), tuple(map(parse_address, words[2:])))
    try:
        guard.serve()
    except HostCannot:
        # If crckpt lives, it tries again, and reports what fails.
        return HostCannot.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
