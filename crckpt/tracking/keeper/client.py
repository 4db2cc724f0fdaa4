"""Find, start, ask and end the keepers of trees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.errors import DumpFailed, HostCannot
from crckpt.helper.channel import Channel, HelperEnded, HelperSilent, connect, find_helpers
from crckpt.helper.kinds import KEEPER, HelperRecord, find_records, record_path
from crckpt.helper.start import start_helper
from crckpt.host import proc
from crckpt.host.steps import limit
from crckpt.tracking.dump_basis import Base, DumpBasis
from crckpt.tracking.keeper.protocol import ENDED_MARK, Answer, Keeper, KeeperRequest, base_name

_PATIENCE_S: Final = 60.0
# `crckpt ps` asks all keepers in turn: one that is stopped must not keep it for long.
DESCRIBE_TIMEOUT_S: Final = limit("CRCKPT_ANSWER_S", 10)
# The tree stands still until the keeper answers.
_PATIENCE_FROZEN_S: Final = 2.0
ENDED: Final = f"{KEEPER.title} has ended"
KILLED: Final = "its tracker was ended (by a signal, with the systemd unit that started it, or by an upgrade)"


class Untracked(HostCannot):
    """No method tracks the tree; the message says why."""


class KeeperSession:
    """A connection to a keeper. Methods raise HelperSilent, or HostCannot if the keeper or the tree has ended."""

    def __init__(self, channel: Channel, *, why_new: str = "") -> None:
        """`why_new` is why a tree that was tracked before needed a new keeper, or empty."""
        self._channel = channel
        self.why_new = why_new

    def describe(self) -> Keeper:
        """Ask for the keeper's state."""
        keeper = self._ask(KeeperRequest("describe"), DESCRIBE_TIMEOUT_S).keeper
        assert keeper is not None
        return keeper

    def begin(self) -> DumpBasis:
        """Begin a dump, as `Tracker.begin`. Raises DumpFailed if another dump of this tree is going on."""
        answer = self._ask(KeeperRequest("begin"))
        if answer.busy:
            raise DumpFailed(
                f"process {answer.busy} is copying or dumping this tree",
                hint="wait until it has ended; crckpt list shows what is being stored",
            )
        assert answer.began is not None
        return answer.began.basis

    def hand_over(self, directories: tuple[Path, ...]) -> None:
        """Have the keeper remove these once its base is no round in the last of them, or when it ends."""
        self._ask(KeeperRequest("stage", directories=tuple(map(str, directories))))

    def check_freeze(self) -> None:
        """Have the keeper look at the frozen tree, as `Tracker.check_freeze`, within two seconds."""
        self._ask(KeeperRequest("frozen"), _PATIENCE_FROZEN_S)

    def commit(self, base: Base) -> None:
        """Report that the dump or round is kept, as `Tracker.commit`."""
        self._ask(KeeperRequest("committed", base_name(base)))

    def end(self) -> None:
        """End the keeper. Returns when it has let the tree go, which waits for a dump that is going on."""
        with suppress(HelperEnded):
            self._ask(KeeperRequest("end"), None)

    def retire(self) -> None:
        """End the keeper as if it was terminated: the next dump starts another."""
        self._channel.terminate()

    def close(self) -> None:
        """Close the connection. The keeper stays."""
        self._channel.close()

    def _ask(self, request: KeeperRequest, patience_s: float | None = _PATIENCE_S) -> Answer:
        return _raise_if_refused(self._channel.ask(request, Answer, patience_s))


def was_killed(root: proc.Process) -> bool:
    """Return whether the tree, which has no keeper now, had one that was killed: the next dump starts another."""
    # A keeper that ends by itself removes its socket.
    return record_path(KEEPER, root.identity).exists()


def was_ended(root: proc.Process) -> bool:
    """Return whether the tree, which has no keeper now, had one that was ended on request."""
    return _ended_mark(root.identity).exists()


def mark_ended(root: int) -> None:
    """Remember that the keeper of the tree below `root` was ended on request, if that process still runs."""
    process = proc.identify(root)
    # This is only for a sentence of the next dump.
    with suppress(OSError):
        if process is not None:
            _ended_mark(process).touch(mode=0o600)


def find_session(root: proc.Process) -> KeeperSession | None:
    """Connect to the keeper that the tree has, if it has one. Raises HelperSilent."""
    channel = connect(KEEPER, record_path(KEEPER, root.identity), DESCRIBE_TIMEOUT_S)
    return KeeperSession(channel) if channel is not None else None


def keepers(of: int | None = None) -> Iterator[tuple[Keeper, KeeperSession] | HelperSilent | HelperRecord]:
    """Yield all keepers, or those `of` a process: with a session that the caller closes, or why there is none.

    A record is of one that was killed; it is removed once the tree has ended.
    """
    for mark in find_records(KEEPER, ENDED_MARK):
        if not mark.root.keeps_pid:
            mark.path.unlink(missing_ok=True)
    for record, channel in find_helpers(KEEPER, DESCRIBE_TIMEOUT_S, of):
        if not isinstance(channel, Channel):
            yield channel or record
        else:
            session = KeeperSession(channel)
            try:
                yield session.describe(), session
            except HelperSilent as error:
                session.close()
                yield error
            except HostCannot:
                session.close()


def forget_killed(record: HelperRecord) -> None:
    """Forget that this keeper was killed: no dump starts another."""
    record.path.unlink(missing_ok=True)
    mark_ended(record.root.pid)


def _ended_mark(root: proc.Identity) -> Path:
    """The file that shows that the keeper of this process was ended on request."""
    return record_path(KEEPER, root, ENDED_MARK)


def start_session(root: proc.Process, criu: Path, why_new: str) -> KeeperSession:
    """Start a keeper for a tree that has none. Raises HostCannot, which says why the tree cannot be tracked."""
    helper = start_helper(KEEPER, str(root.pid), str(criu))
    # It outlives this process, and is never waited for.
    helper.child.abandon()
    session = KeeperSession(helper, why_new=why_new)
    try:
        _raise_if_refused(helper.receive(Answer, _PATIENCE_S))
    except HostCannot:
        session.close()
        raise
    _ended_mark(root.identity).unlink(missing_ok=True)
    return session


def _raise_if_refused(answer: Answer) -> Answer:
    if answer.untracked:
        raise Untracked(answer.untracked)
    if answer.refused:
        raise HostCannot(answer.refused)
    return answer
