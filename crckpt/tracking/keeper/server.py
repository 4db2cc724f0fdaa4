"""A keeper: the small process that holds a tree's tracker from one dump to the next, and ends with the tree.

The connection that asks to begin is a dump until it asks `committed` or closes; there is one at a time. The keeper ends
with the tree, on `end` and on SIGTERM, but only after a dump that is going on. A killed keeper leaves nothing in the
tree: every page counts as written then.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from crckpt.errors import CrckptError, error_text
from crckpt.helper.channel import Channel, open_control
from crckpt.helper.kinds import KEEPER, record_path
from crckpt.helper.scope import leave_unit
from crckpt.helper.serve import Server, wake_on_signals
from crckpt.host import proc
from crckpt.host.disk.files import remove_tree
from crckpt.tracking.choose_tracker import choose_tracker
from crckpt.tracking.dump_basis import RoundBase
from crckpt.tracking.keeper.protocol import Answer, BeginAnswer, Keeper, KeeperRequest, base_name, read_committed_base
from crckpt.tracking.preload import library
from crckpt.tracking.tracker import Tracker


class _Service:
    """Answers requests until the tree ends, or the keeper is to end (`is_terminated`: after a SIGTERM)."""

    def __init__(self, tracker: Tracker, keeper: Keeper) -> None:
        self.server = Server(KEEPER, KeeperRequest, self._take, self._drop, lambda why: Answer(refused=why))
        self.is_terminated = False
        self._tracker = tracker
        self._keeper = keeper
        self._dumping: Channel | None = None
        self._staged: tuple[str, ...] = ()
        self._ending = False

    def serve(self, root: int, terminated: int) -> None:
        """Serve until the end. `root` is a pidfd; `terminated` is readable after a SIGTERM."""
        # A pidfd becomes readable when the process ends (pidfd_open(2)).
        self.server.waiting.watch(root, lambda _events: self._end(root))
        self.server.waiting.watch(terminated, lambda _events: self._end(terminated, is_terminated=True))
        # The images of a dump that is going on may need the rounds that this keeper removes when it ends.
        while not self._ending or self._dumping is not None:
            self.server.waiting.wait()

    def _end(self, file: int, *, is_terminated: bool = False) -> None:
        self.server.waiting.forget(file)
        self._ending = True
        self.is_terminated |= is_terminated

    def _take(self, peer: Channel, request: KeeperRequest, _descriptors: list[int]) -> None:
        if request.do == "end":
            # The answer is that the connection closes when this process ends, after everything else.
            self._ending = True
            return
        if request.do != "describe" and self._dumping is not None and self._dumping is not peer:
            answer = Answer(busy=self._dumping.pid)
        else:
            try:
                answer = self._perform(peer, request)
            except CrckptError as error:
                answer = Answer(refused=error.message)
        self.server.answer(peer, answer)

    def _perform(self, peer: Channel, request: KeeperRequest) -> Answer:
        match request.do:
            case "begin":
                basis = self._tracker.begin()
                # Only now: no dump is going on if that failed.
                self._dumping = peer
                began = BeginAnswer(base_name(basis.base), basis.why, basis.tracks, basis.whole)
                return Answer(began=began)
            case "stage":
                self.discard_rounds()
                self._staged = request.directories
            case "frozen":
                self._tracker.check_freeze()
            case "committed":
                self._tracker.commit(read_committed_base(request))
                self._finish_dump()
        tracker, dumping = self._tracker, self._dumping.pid if self._dumping else 0
        keeper = replace(self._keeper, base=base_name(tracker.base), why_full=tracker.why_full, dumping=dumping)
        return Answer(keeper=keeper)

    def _drop(self, peer: Channel) -> None:
        if self._dumping is peer:
            self._finish_dump()

    def _finish_dump(self) -> None:
        self._dumping = None
        base = self._tracker.base
        in_use = base.directory.parents if isinstance(base, RoundBase) else ()
        if self._staged and Path(self._staged[-1]) not in in_use:
            self.discard_rounds()

    def discard_rounds(self) -> None:
        """Remove the rounds. Those that cannot be removed are left to `crckpt gc`."""
        for directory in self._staged:
            with suppress(OSError):
                remove_tree(Path(directory), "rounds")
        self._staged = ()


def main(number: str, pid: int, criu: Path) -> None:
    """Keep the tracker of the tree below `pid`, or answer at once why that cannot be."""
    # The keeper holds a descriptor of each process, and inherits a limit that may be low.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    terminated = wake_on_signals((signal.SIGTERM,))
    first = open_control(KEEPER, number)
    root = proc.read_process(pid)
    if root is None:
        first.send(Answer(refused=f"PID {pid} has ended"))
        return
    # Meanwhile: the command that started us may be all of its unit, and end soon.
    leaving = leave_unit("crckpt-tracker", f"crckpt's tracker of {root.comm} (PID {pid})")
    tracker, why = choose_tracker(root, criu)
    leaving.join()
    if tracker is None:
        first.send(Answer(untracked=why))
        return
    environment = dict(tracker.environment(criu))
    keeper = Keeper(
        os.getpid(),
        pid,
        root.comm,
        tracker.name,
        why,
        str(criu),
        environment,
        identity=library.identity(criu),
    )
    path = record_path(KEEPER, root.identity)
    service = _Service(tracker, keeper)
    try:
        try:
            service.server.listen(path)
        except OSError as error:
            first.send(Answer(refused=f"the directory of its tracker is unusable: {error_text(error)}"))
            return
        service.server.add(first)
        service.server.answer(first, Answer(keeper=keeper))
        try:
            service.serve(os.pidfd_open(pid), terminated)
        finally:
            service.discard_rounds()
            # After a SIGTERM the socket stays, as if the keeper was killed: so the next dump can say why it is full.
            if not service.is_terminated:
                path.unlink(missing_ok=True)
    finally:
        tracker.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
