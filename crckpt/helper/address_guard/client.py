"""Start the guard of claimed addresses, and ask it for the steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal

from msgspec import Struct

from crckpt.errors import CrckptError, HostCannot
from crckpt.helper.kinds import ADDRESS_GUARD
from crckpt.helper.start import StartedHelper, start_helper
from crckpt.host.network.address import HostAddress
from crckpt.host.network.claim import give_up, table_name
from crckpt.host.proc import LiveRoot
from crckpt.host.steps import step
from crckpt.model import MoveId


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


_STEP_S: Final = 30.0
_SHORT_STEP_S: Final = 1.0
# It may wait half a minute for connections to end.
_GIVES_UP_S: Final = 60.0


class GuardedAddresses:
    """Addresses that a guard takes back unless they are kept. The methods raise HostCannot.

    The guard also ends the expected tree if crckpt and CRIU are killed before it runs. Without addresses this is all
    that it does, and nothing fails if it fails.
    """

    def __init__(self, addresses: Sequence[HostAddress], move_id: MoveId, helper: StartedHelper) -> None:
        self._addresses = addresses
        self._move_id = move_id
        self._helper = helper
        self._is_claimed = False
        self._is_kept = False
        self.guard = helper.pid

    def claim(self) -> None:
        """Add the addresses behind a fence: programs here can bind them. If it fails, nothing is left."""
        # From here on, the guard may have done some of it.
        self._is_claimed = True
        self._ask("claim")

    def expect(self, root: LiveRoot) -> None:
        """Let the tree with this root, which CRIU holds, have the addresses once it runs, even if we are killed."""
        self._ask("expect", root)

    def release(self) -> str:
        """Open the fence and tell the neighbours, once the other host has given the addresses up.

        Nothing may end the tree that uses them any more: its end would reset its connections.
        Return what did not work and does not matter to the move; empty if all did.
        """
        return self._ask("release").warning

    def keep(self) -> str:
        """The tree runs here: let the addresses stay, whatever happens next. Return what is left; empty if nothing."""
        left = ""
        try:
            self._ask("keep")
        except HostCannot as error:
            # A guard that was killed does not give up either.
            left = f"the addresses are here, but the nft table {table_name(self._move_id)} may be left: {error.message}"
        self._is_kept = True
        return left

    def close(self) -> None:
        """End the guard. Give the addresses up, unless they are kept. Raises HostCannot if that fails."""
        if self._is_kept:
            # It ends after its last announcement.
            self._helper.leave()
            return
        # The guard reads the end of this, and gives up.
        self._helper.close()
        if not self._helper.child.ends_within(_GIVES_UP_S):
            self._helper.child.kill()
        if self._helper.end() != 0 and self._is_claimed and self._addresses:
            give_up(self._addresses, self._move_id)

    def _ask(self, do: Literal["claim", "expect", "release", "keep"], root: LiveRoot | None = None) -> GuardAnswer:
        try:
            step("guard.ask", do)
            self._helper.send(GuardRequest(do, root))
            step("guard.answer", do)
            answer = self._helper.receive(GuardAnswer, _STEP_S if self._addresses else _SHORT_STEP_S)
        except HostCannot:
            if self._addresses:
                raise
            return GuardAnswer()
        if answer.failed:
            raise HostCannot(answer.failed, hint=answer.hint)
        return answer


@contextmanager
def guarded_addresses(
    addresses: Sequence[HostAddress], move_id: MoveId, taken: Collection[int] = ()
) -> Iterator[GuardedAddresses]:
    """Start the guard; give the addresses up when the block ends, unless they are kept.

    The guard's PID is none of `taken`. If the block fails, and giving up does, too, the error has both. Raises
    HostCannot.
    """
    step("guard.start", move_id)
    helper = start_helper(ADDRESS_GUARD, move_id, *map(str, addresses), taken=taken)
    guarded = GuardedAddresses(addresses, move_id, helper)
    try:
        yield guarded
    except CrckptError as error:
        try:
            guarded.close()
        except HostCannot as left:
            raise error.reword(f"{error.message}; {left.message}", hint=left.hint or error.hint) from error
        raise
    except BaseException:
        guarded.close()
        raise
    guarded.close()
