"""The hold: CRIU waits for us at `post-dump` (tree frozen) or `post-restore` (tree built, not yet running).

CRIU's action script waits for a lock that crckpt holds, then answers by what is *recorded*: a file `commit` beside it
means go on, anything else means undo. The kernel lets go of the lock when crckpt dies, so a dead crckpt aborts:
after a dump CRIU resumes the tree with its connections, after a restore it ends what it has built.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from crckpt.errors import HostCannot

Step = Literal["post-dump", "post-restore"]

# `<>` opens the pipe without waiting for a reader: a dead crckpt must not keep the tree frozen.
_SCRIPT = """#!/bin/sh
here=${0%/*}
[ "$CRTOOLS_SCRIPT_ACTION" = @STEP@ ] || exit 0
echo . 1<>"$here/reached"
flock "$here/owner" true
[ -e "$here/commit" ]
"""


class Hold:
    """One hold. `reached` is a descriptor that becomes readable at the step, `owner` the file that we hold locked."""

    def __init__(self, directory: Path, step: Step) -> None:
        """Prepare `directory` (exists, private). Take the lock that CRIU's script will wait for."""
        if os.statvfs(directory).f_flag & os.ST_NOEXEC:
            raise HostCannot(
                f"{directory} is mounted noexec, and CRIU must run a script there",
                hint="use a store on a file system that is mounted exec: crckpt --store DIR ...",
            )
        self._directory = directory
        self.script = directory / "hold"
        self.script.write_text(_SCRIPT.replace("@STEP@", step))
        self.script.chmod(0o700)
        os.mkfifo(directory / "reached", 0o600)
        self.reached = os.open(directory / "reached", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.owner = directory / "owner"
        self._lock = os.open(self.owner, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

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
    """A hold that is aborted unless the block commits it."""
    directory.mkdir(mode=0o700)
    hold = Hold(directory, step)
    try:
        yield hold
    finally:
        hold.release()
