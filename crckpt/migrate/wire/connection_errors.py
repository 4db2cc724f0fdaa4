"""Why the two sides of a migration cannot go on."""

from __future__ import annotations

from typing import Final

from crckpt.errors import RemoteError

ALLOW_COMMANDS: Final = (
    "allow the account there to run commands (its login shell; ForceCommand in sshd_config, command= in "
    "authorized_keys); or edit its startup file, which may end the shell"
)


class ConnectionLost(RemoteError):
    """The connection to the other side has ended, is silent, or carried what crckpt does not send."""


class ConnectionEnded(ConnectionLost):
    """The other side has closed the connection, or has ended; what has started it may know why."""


class AbortReceived(RemoteError):
    """The other side has sent Abort, and waits for Aborted; the connection can still be used. `why` is its reason."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(f"{peer} aborted the move: {why}")
        self.why = why


class ProtocolError(ConnectionLost):
    """The other side sent what crckpt does not send, or does not send now."""

    def __init__(self, peer: str, what: str) -> None:
        super().__init__(
            f"{peer} sent {what}",
            hint="install the same version of crckpt on both hosts; if they have it, please report this as a bug",
        )


class PrintedText(ConnectionLost):
    """The other side printed text instead of a message, after others (`has_begun`), or as its last (`has_ended`)."""

    def __init__(self, peer: str, text: str, *, has_begun: bool = False, has_ended: bool = False) -> None:
        shown = " ".join(text.split())[:500]
        if has_ended and not has_begun:
            super().__init__(f"{peer} printed text, and did not run crckpt: {shown}", hint=ALLOW_COMMANDS)
            return
        where = "among crckpt's messages" if has_begun else "before crckpt's first message"
        super().__init__(
            f"{peer} printed text {where}: {shown}",
            hint=f"edit the startup file of the shell on {peer} (.bashrc): print nothing if there is no terminal",
        )


def make_broken_error(peer: str, error: OSError) -> ConnectionEnded:
    """Make the error for a descriptor that cannot be read or written any more."""
    return ConnectionEnded(f"the connection to {peer} broke: {error.strerror}", hint=f"check the network to {peer}")
