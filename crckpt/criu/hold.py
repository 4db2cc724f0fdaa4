"""The hold: CRIU waits for crckpt before it freezes the tree, while it is frozen, or before a restored tree runs.

CRIU waits at `pre-dump`, `post-dump` or `post-restore` in an action script (hold.c), and at the gate in the preload
library (gate.c): before it resets the first bit of what was written, in a pre-dump, too, which runs no script.
CRIU's side answers by what is *recorded*: commit means go on, abort means undo. After an abort before the freeze CRIU
leaves the tree alone; after a dump it resumes the tree with its connections; after a restore it ends what it built.

CRIU's side aborts when crckpt has died (its pipe `alive` ends), or gives no sign of life for PATIENCE_S: a crckpt that
is stopped (SIGSTOP, a debugger, a frozen control group) must not keep the tree frozen. When it runs again it finds
`abort`, and its commit does not count.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeAlias

from crckpt.errors import HostCannot
from crckpt.host.disk.files import remove_tree
from crckpt.host.process.signals import start_thread
from crckpt.host.process.typed_command import name_store
from crckpt.host.steps import limit, step

Step = Literal["pre-dump", "post-dump", "post-restore"]

PATIENCE_S: Final = limit("CRCKPT_PATIENCE_S", 10)
"""How long CRIU's side waits after a sign of life, in seconds. At most 255."""
STUCK_S: Final = 300
"""A crckpt that uses next to no processor time for so long in a hold is stuck: a disk or server does not answer."""
_BEAT_S: Final = 1.0
# Processor time between two beats: less counts as none.
_USED_S: Final = 0.001

PROGRAM: Final = Path(__file__).with_name("hold-action")
"""CRIU's action script, compiled from hold.c when the package is built."""

# Replaces PROGRAM where there was no C compiler, in our own mount namespace only. It reads no signs of life. `<>` opens
# the pipe without waiting for a reader: a dead crckpt must not keep the tree frozen. It also opens `owner` for writing,
# without which NFS takes no exclusive lock.
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


AfterCommit: TypeAlias = Callable[[], None]
"""Done once a hold is committed, before CRIU goes on."""

InHold: TypeAlias = Callable[[], AfterCommit | None]
"""The work of crckpt in a hold, which may return what is to be done once the hold is committed."""


class GaveUp(HostCannot):
    """CRIU's side has aborted the hold, without a sign of life from us. CRIU undoes its work and fails."""

    def __init__(self) -> None:
        super().__init__(
            "crckpt did not answer CRIU",
            hint="find what stops crckpt (SIGSTOP, a debugger, a frozen control group), then try again",
        )


class Hold:
    """One hold. `reached` is a descriptor that is readable once CRIU waits; `owner` is a file that we keep locked.

    `environment` is for the CRIU that waits here.
    """

    def __init__(
        self, directory: Path, environment: Mapping[str, str], patience_s: int = PATIENCE_S, program: Path = PROGRAM
    ) -> None:
        """Make the private `directory` with the record and the pipes. Lock `owner`."""
        directory.mkdir(mode=0o700)
        self.environment = environment
        self._directory = directory
        self._program = program
        # A sign of life says how long CRIU's side waits for the next one.
        self._beat = bytes([patience_s])
        for name in ("reached", "alive"):
            os.mkfifo(directory / name, 0o600)
        self.reached = os.open(directory / "reached", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # Opened for reading, too, so that it does not wait for a reader.
        self._alive = os.open(directory / "alive", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.owner = directory / "owner"
        self._lock = os.open(self.owner, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # The script, which reads no signs of life, waits for this lock: the kernel frees it when crckpt dies.
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # crckpt renames it to `commit`, CRIU's side to `abort`: the kernel lets exactly one win.
        os.close(os.open(directory / "undecided", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self._mutex = threading.Lock()
        self.work_began: float | None = None
        self.beat()

    @property
    def script(self) -> Path:
        """CRIU's action script, for all steps."""
        return self._program if self._program.exists() else self._directory.parent / "hold"

    def beat(self) -> None:
        """Give a sign of life."""
        with self._mutex:
            if self._alive >= 0:
                with suppress(BlockingIOError):  # the pipe is full: nothing reads it yet
                    os.write(self._alive, self._beat)

    def check(self) -> None:
        """Raise GaveUp if CRIU's side has aborted it."""
        if (self._directory / "abort").exists():
            raise GaveUp

    def commit(self, after_commit: AfterCommit | None = None) -> None:
        """Let CRIU go on: it freezes the tree, or ends the dumped one, or lets the restored one run.

        `after_commit` is done before CRIU goes on, once it is decided that it will; it must not raise anything.
        Raises GaveUp if CRIU has given up, OSError if the commit cannot be recorded.
        """
        step("hold.commit", self._directory)
        try:
            (self._directory / "undecided").rename(self._directory / "commit")
        except FileNotFoundError:
            self.check()
            # NFS may report this for a rename that it has done.
            if not (self._directory / "commit").exists():
                raise
        if after_commit is not None:
            after_commit()
        self.release()

    def release(self) -> None:
        """Let CRIU read the record. Without a commit it undoes its work. May be called again."""
        with self._mutex:
            # The end of `alive`, or of the lock, ends the wait of CRIU's side, which then reads the record.
            for descriptor in (self._alive, self._lock, self.reached):
                if descriptor >= 0:
                    os.close(descriptor)
            self._alive = self._lock = self.reached = -1


def can_hold(directory: Path, program: Path = PROGRAM) -> bool:
    """Return whether CRIU can run the action script of a hold in `directory`."""
    return program.exists() or not os.statvfs(directory).f_flag & os.ST_NOEXEC


@contextmanager
def holds_at(
    directory: Path, *steps: Step, patience_s: int = PATIENCE_S, program: Path = PROGRAM
) -> Iterator[tuple[Hold, ...]]:
    """Make a hold at each of these steps, in `directory` below CRIU's work directory; abort what is not committed.

    `program` is the action script; if there is none, a shell script is written in its place.
    Raises HostCannot.
    """
    if not can_hold(directory.parent, program):
        raise HostCannot(
            f"{directory} is mounted noexec, but CRIU must run a script there",
            hint=name_store(
                "install crckpt with a C compiler (gcc), or name a directory on another mount: for a restore from a "
                "store that cannot be written --staging DIR, else"
            ),
        )
    directory.mkdir(mode=0o700)
    # Relative to CRIU's work directory, so that no mount of the tree can hide it.
    environment = {"CRCKPT_HOLDS": directory.name, "CRCKPT_HOLD_STEPS": ",".join(steps)}
    with ExitStack() as stack:
        holds = tuple(Hold(directory / name, environment, patience_s, program) for name in steps)
        for hold in holds:
            stack.callback(hold.release)
        if not program.exists():
            script = directory / "hold"
            descriptor = os.open(script, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
            with open(descriptor, "w") as file:  # noqa: PTH123
                file.write(_SCRIPT.replace("@STUCK_S@", str(STUCK_S)))
        stack.enter_context(_beating(*holds))
        yield holds


@contextmanager
def gate(directory: Path, patience_s: int = PATIENCE_S) -> Iterator[Hold]:
    """Make a hold at the gate; abort it if it is not committed, and remove it: a later CRIU is refused."""
    hold = Hold(directory, {"CRCKPT_HOLD": str(directory)}, patience_s)
    try:
        with _beating(hold):
            yield hold
    finally:
        hold.release()
        remove_tree(directory, "hold")


@contextmanager
def _beating(*holds: Hold) -> Iterator[None]:
    """Give signs of life at these holds from a thread, unless we are stuck in one of them."""
    is_over = threading.Event()

    def beat() -> None:
        used, since = _processor_time(), time.monotonic()
        while not is_over.wait(_BEAT_S):
            before, used = used, _processor_time()
            began = max(hold.work_began or 0.0 for hold in holds)
            # Before CRIU reaches the hold, a crckpt that only waits is not stuck.
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


def _processor_time() -> float:
    """Seconds of processor time of this process, without this thread."""
    return time.process_time() - time.thread_time()
