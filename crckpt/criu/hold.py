"""The hold: CRIU waits for us before it freezes the tree, while it is frozen, or before a restored one runs.

It does at `pre-dump`, `post-dump` or `post-restore`, by an action script (hold.c), and before it resets the first bit
of what was written (the gate), by the preload library: in a pre-dump, too, where it runs no script in the freeze.
Either answers by what is *recorded*: commit means go on, abort means undo. Before a dump CRIU then leaves the tree
alone, after it CRIU resumes the tree with its connections, after a restore it ends what it has built.

A file `undecided` is renamed to `commit` by crckpt, or to `abort` by CRIU's end: the kernel lets exactly one win.
CRIU's end aborts when crckpt has died (its pipe `alive` ends), and when it shows no sign of life for PATIENCE_S: a
crckpt that is stopped (SIGSTOP, a debugger, a frozen control group) must not keep the tree frozen. One that wakes up
later finds `abort`, and knows that its commit does not count.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

from crckpt.errors import HostCannot
from crckpt.host.disk.files import remove_tree
from crckpt.host.process.signals import start_thread
from crckpt.host.steps import limit, step

Step = Literal["pre-dump", "post-dump", "post-restore"]

PATIENCE_S: Final = limit("CRCKPT_PATIENCE_S", 10)
"""So long a sign of life is believed, in seconds, by whoever waits at CRIU's end. At most 255."""
STUCK_S: Final = 300
"""A crckpt that uses next to no processor time for so long in a hold is stuck: a disk or a server does not answer."""
_BEAT_S: Final = 1.0
_USED_S: Final = 0.001
"""Of a processor, between two beats: less is nothing."""

PROGRAM: Final = Path(__file__).with_name("hold-action")
"""CRIU's action script. Compiled from hold.c when the package is built."""

# Without a C compiler there is no such program, and this stands in, in our own mount namespace only: it reads no signs
# of life. `<>` opens the pipe without waiting for a reader: a dead crckpt must not keep the tree frozen. And of the
# files that NFS is to lock alone it wants those that are open for writing.
_SCRIPT: Final = """#!/bin/sh
case ",$CRCKPT_HOLD_STEPS," in
,,) exit 1 ;;
*,"$CRTOOLS_SCRIPT_ACTION",*) here=$CRCKPT_HOLDS/$CRTOOLS_SCRIPT_ACTION ;;
*) exit 0 ;;
esac
echo . 1<>"$here/reached"
exec 9<>"$here/owner"
if [ ! -e "$here/commit" ] && ! flock --wait @STUCK_S@ 9; then
    echo "crckpt's hold: no answer while CRIU waited at ${here##*/}" >&2
fi
mv "$here/undecided" "$here/abort" 2>/dev/null
[ -e "$here/commit" ]
"""


class GaveUp(HostCannot):
    """CRIU's end has aborted the hold: it had no sign of life of us. CRIU undoes its work and fails."""

    def __init__(self) -> None:
        super().__init__(
            "crckpt did not answer CRIU",
            hint="look for what stops crckpt (SIGSTOP, a debugger, a frozen control group), then try again",
        )


class Hold:
    """One hold. `reached` is a descriptor that becomes readable at the step, `owner` the file that we hold locked.

    `environment` is for the CRIU that is to wait here.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str], patience_s: int = PATIENCE_S) -> None:
        """Make `directory`, private, with the record and the pipes. Take the lock of `owner`."""
        directory.mkdir(mode=0o700)
        self.environment = environment
        self._directory = directory
        self._beat = bytes([patience_s])
        for name in ("reached", "alive"):
            os.mkfifo(directory / name, 0o600)
        self.reached = os.open(directory / "reached", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # For reading too: then it is opened without waiting for a reader.
        self._alive = os.open(directory / "alive", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.owner = directory / "owner"
        self._lock = os.open(self.owner, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.close(os.open(directory / "undecided", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self._one_at_a_time = threading.Lock()
        self.work_began: float | None = None
        self.beat()

    @property
    def script(self) -> Path:
        """CRIU's action script: one for all steps."""
        return PROGRAM if PROGRAM.exists() else self._directory.parent / "hold"

    def beat(self) -> None:
        """Say that we live."""
        with self._one_at_a_time:
            if self._alive >= 0:
                with suppress(BlockingIOError):  # nobody reads yet, and there is a sign for hours
                    os.write(self._alive, self._beat)

    def check(self) -> None:
        """Raise GaveUp if it was aborted by CRIU's end."""
        if (self._directory / "abort").exists():
            raise GaveUp

    def commit(self) -> None:
        """CRIU goes on: it freezes the tree, or ends the dumped one, or lets the restored one run.

        Raises GaveUp if it does not, OSError if that cannot be recorded.
        """
        step("hold.commit", self._directory)
        try:
            (self._directory / "undecided").rename(self._directory / "commit")
        except FileNotFoundError:
            self.check()
            # NFS may say so of a rename that it has done.
            if not (self._directory / "commit").exists():
                raise
        self.release()

    def release(self) -> None:
        """Let CRIU read the record: without a commit before, it undoes what it did. May be called twice."""
        with self._one_at_a_time:
            for descriptor in (self._alive, self._lock, self.reached):
                if descriptor >= 0:
                    os.close(descriptor)
            self._alive = self._lock = self.reached = -1


def can_hold(directory: Path) -> bool:
    """Whether CRIU can run the action script of a hold in `directory`."""
    return PROGRAM.exists() or not os.statvfs(directory).f_flag & os.ST_NOEXEC


@contextmanager
def holds_at(directory: Path, *steps: Step, patience_s: int = PATIENCE_S) -> Iterator[tuple[Hold, ...]]:
    """A hold at each of these steps of CRIU that is aborted unless the block commits it.

    `directory` is made, in CRIU's work directory. Raises HostCannot.
    """
    if not can_hold(directory.parent):
        raise HostCannot(
            f"{directory} is mounted noexec, and CRIU must run a script there",
            hint="install crckpt with a C compiler (gcc), or use a store that is mounted exec: --store DIR",
        )
    directory.mkdir(mode=0o700)
    # CRIU works in its work directory: so nothing that a tree has mounted elsewhere stands between.
    environment = {"CRCKPT_HOLDS": directory.name, "CRCKPT_HOLD_STEPS": ",".join(steps)}
    with ExitStack() as stack:
        holds = tuple(Hold(directory / name, environment, patience_s) for name in steps)
        for hold in holds:
            stack.callback(hold.release)
        if not PROGRAM.exists():
            script = directory / "hold"
            descriptor = os.open(script, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
            with open(descriptor, "w") as file:  # noqa: PTH123
                file.write(_SCRIPT.replace("@STUCK_S@", str(STUCK_S)))
        stack.enter_context(_beating(*holds))
        yield holds


@contextmanager
def gate(directory: Path, patience_s: int = PATIENCE_S) -> Iterator[Hold]:
    """A hold at CRIU's first reset of what was written, by its preload library, that is as well aborted.

    Nothing is left of it: a CRIU that comes later is refused.
    """
    hold = Hold(directory, {"CRCKPT_HOLD": str(directory)}, patience_s)
    try:
        with _beating(hold):
            yield hold
    finally:
        hold.release()
        remove_tree(directory, "hold")


@contextmanager
def _beating(*holds: Hold) -> Iterator[None]:
    """Give signs of life at these holds, by a thread, for as long as we live and are not stuck in one of them."""
    is_over = threading.Event()

    def beat() -> None:
        used, since = _used_by_others(), time.monotonic()
        while not is_over.wait(_BEAT_S):
            before, used = used, _used_by_others()
            began = max(hold.work_began or 0.0 for hold in holds)
            if used - before > _USED_S or not began:
                since = time.monotonic()
            if time.monotonic() - max(since, began) < STUCK_S:
                for hold in holds:
                    hold.beat()

    thread = start_thread(beat)
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _used_by_others() -> float:
    """Seconds of processor time that this process used, but for this thread."""
    return time.process_time() - time.thread_time()
