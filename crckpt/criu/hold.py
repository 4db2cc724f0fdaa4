"""The hold: CRIU waits for us while the tree is frozen, or before a restored one runs.

It does at `post-dump` or `post-restore`, by an action script, and before it resets the first bit of what was written
(the gate), by the preload library: in a pre-dump, too, where it runs no script in the freeze. Either waits for a lock
that crckpt holds, then answers by what is *recorded*: a file `commit` beside it means go on, anything else means undo.
The kernel lets go of the lock when crckpt dies, so a dead crckpt aborts: after a dump CRIU resumes the tree with its
connections, after a restore it ends what it has built.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from crckpt.errors import HostCannot
from crckpt.host.files import remove_tree

Step = Literal["post-dump", "post-restore"]

# `<>` opens the pipe without waiting for a reader: a dead crckpt must not keep the tree frozen. And of the files that
# NFS is to lock alone it wants those that are open for writing.
_SCRIPT = """#!/bin/sh
here=${0%/*}
[ "$CRTOOLS_SCRIPT_ACTION" = @STEP@ ] || exit 0
echo . 1<>"$here/reached"
exec 9<>"$here/owner"
flock 9
[ -e "$here/commit" ]
"""


class Hold:
    """One hold. `reached` is a descriptor that becomes readable at the step, `owner` the file that we hold locked."""

    def __init__(self, directory: Path) -> None:
        """Make `directory`, private. Take the lock that CRIU's end will wait for."""
        directory.mkdir(mode=0o700)
        self._directory = directory
        os.mkfifo(directory / "reached", 0o600)
        self.reached = os.open(directory / "reached", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.owner = directory / "owner"
        self._lock = os.open(self.owner, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def words(self) -> tuple[str, ...]:
        """What comes before CRIU's command for its preload library (preload.c) to wait here."""
        return ("env", f"CRCKPT_HOLD={self._directory}")

    @property
    def script(self) -> Path:
        """What `held` has written, as CRIU's action script."""
        return self._directory / "hold"

    def commit(self) -> None:
        """CRIU goes on: the dumped tree is ended (or runs on, as it was told), the restored one starts to run."""
        (self._directory / "commit").touch(mode=0o600)
        self.release()

    def release(self) -> None:
        """Let CRIU read the record: without a commit before, it undoes what it did. May be called twice."""
        for descriptor in (self._lock, self.reached):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self.reached = -1


@contextmanager
def held(directory: Path, step: Step) -> Iterator[Hold]:
    """A hold at this step of CRIU, by its script, that is aborted unless the block commits it. Raises HostCannot."""
    if os.statvfs(directory.parent).f_flag & os.ST_NOEXEC:
        raise HostCannot(
            f"{directory} is mounted noexec, and CRIU must run a script there",
            hint="use a store on a file system that is mounted exec: --store DIR, or CRCKPT_STORE=DIR",
        )
    hold = Hold(directory)
    try:
        hold.script.write_text(_SCRIPT.replace("@STEP@", step))
        hold.script.chmod(0o700)
        yield hold
    finally:
        hold.release()


@contextmanager
def gate(directory: Path) -> Iterator[Hold]:
    """A hold at CRIU's first reset of what was written, by its preload library, that is as well aborted.

    Nothing is left of it: a CRIU that comes later is refused.
    """
    hold = Hold(directory)
    try:
        yield hold
    finally:
        hold.release()
        remove_tree(directory, "hold")
