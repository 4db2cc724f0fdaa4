"""The hold: CRIU waits for us before it freezes the tree, while it is frozen, or before a restored one runs.

It does at `pre-dump`, `post-dump` or `post-restore`, by an action script, and before it resets the first bit of what
was written (the gate), by the preload library: in a pre-dump, too, where it runs no script in the freeze. Either waits
for a lock that crckpt holds, then answers by what is *recorded*: a file `commit` beside it means go on, anything else
means undo. The kernel lets go of the lock when crckpt dies, so a dead crckpt aborts: before a dump CRIU leaves the tree
alone, after it resumes the tree with its connections, after a restore it ends what it has built.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from crckpt.errors import HostCannot
from crckpt.host.files import remove_tree
from crckpt.host.steps import step

Step = Literal["pre-dump", "post-dump", "post-restore"]

# `<>` opens the pipe without waiting for a reader: a dead crckpt must not keep the tree frozen. And of the files that
# NFS is to lock alone it wants those that are open for writing.
_SCRIPT = """#!/bin/sh
case "$CRTOOLS_SCRIPT_ACTION" in
@STEPS@) here=${0%/*}/$CRTOOLS_SCRIPT_ACTION ;;
*) exit 0 ;;
esac
echo . 1<>"$here/reached"
[ ! -e "$here/commit" ] || exit 0
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
        """What `held` has written, as CRIU's action script: one for all steps."""
        return self._directory.parent / "hold"

    def commit(self) -> None:
        """CRIU goes on: it freezes the tree, or ends the dumped one, or lets the restored one run."""
        step("hold.commit", self._directory)
        (self._directory / "commit").touch(mode=0o600)
        self.release()

    def release(self) -> None:
        """Let CRIU read the record: without a commit before, it undoes what it did. May be called twice."""
        for descriptor in (self._lock, self.reached):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self.reached = -1


def may_hold(directory: Path) -> bool:
    """Whether a script can be run that lies in `directory`."""
    return not os.statvfs(directory).f_flag & os.ST_NOEXEC


@contextmanager
def held(directory: Path, *steps: Step) -> Iterator[tuple[Hold, ...]]:
    """A hold at each of these steps of CRIU, by a script in `directory`, that is aborted unless the block commits it.

    Raises HostCannot.
    """
    if not may_hold(directory.parent):
        raise HostCannot(
            f"{directory} is mounted noexec, and CRIU must run a script there",
            hint="use a store on a file system that is mounted exec: --store DIR, or CRCKPT_STORE=DIR",
        )
    directory.mkdir(mode=0o700)
    with ExitStack() as stack:
        holds = tuple(Hold(directory / name) for name in steps)
        for hold in holds:
            stack.callback(hold.release)
        script = directory / "hold"
        script.write_text(_SCRIPT.replace("@STEPS@", "|".join(steps)))
        script.chmod(0o700)
        yield holds


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
