"""The session of ssh in which crckpt receives a tree: systemd may end it with all that is in it."""

from __future__ import annotations

from crckpt.causes import Finding, cause
from crckpt.helper.scope import leave_session
from crckpt.model import JobName


class SshSession:
    """The session, which we leave for a scope of our own before the tree is restored. `source` is the other host."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._kept: str | None = None

    def leave(self, job: JobName) -> None:
        """Leave it, if that was not tried yet."""
        if self._kept is None:
            self._kept = leave_session(f"crckpt-{job}", f"{job}, which crckpt moved from {self._source}")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Why the tree may end with the session."""
        return (cause("session-kept").finding(group=self._kept),) if self._kept else ()
