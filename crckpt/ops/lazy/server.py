"""The helper that fills the memory of a restored tree while the tree runs.

Run as `python -m crckpt.ops.lazy.server DESCRIPTOR [PACKS]`, sockets to the restore. It goes on after the restore has
ended, until all memory is there. Its parent guards the tree: see `guard`.
"""

from __future__ import annotations

import os
import queue
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, TypeVar

import numpy as np

from crckpt.errors import HostCannot, IntegrityError, error_text
from crckpt.host.proc import procfs
from crckpt.host.process.userfaultfd_taker import take_one
from crckpt.host.syscalls.missing_pages import MissingPages
from crckpt.host.syscalls.process_vm import write_memory
from crckpt.ops.lazy.address_space import AddressSpace
from crckpt.ops.lazy.fetch import Fetcher
from crckpt.ops.lazy.guard import GuardedTree, fork_guarded
from crckpt.ops.lazy.marks import open_mark, remove_mark
from crckpt.ops.lazy.pages import ProcessPages
from crckpt.ops.lazy.plan import ProcessPlan
from crckpt.ops.lazy.protocol import (
    Arrived,
    Attach,
    Attached,
    Failed,
    Filled,
    Message,
    Plan,
    Planned,
    Started,
    decode,
    encode,
)
from crckpt.ops.lazy.segments import Segment, Segments
from crckpt.store import Repository
from crckpt.store.format.manifest import unseal
from crckpt.store.held_backend import HeldBackend
from crckpt.store.late_backend import LateBackend
from crckpt.store.read.contents import Contents

_Message = TypeVar("_Message", Plan, Attach, Arrived)

_FAULT_THREADS: Final = 2
_POLL_S: Final = 0.02
# The background waits until no fault came for so long; at most so long before each batch.
_QUIET_S: Final = 0.003
_YIELDS_S: Final = 0.03
# A thread that resolves a fault waits at most so long for one that fills (Python's own: 5 ms).
_SWITCH_S: Final = 0.0005
_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK


class Start(NamedTuple):
    """When all memory may be filled: `descriptor` is readable then; `check` raises if that cannot be any more."""

    descriptor: int
    check: Callable[[], None]


class _Filling:
    """The address spaces that are being filled. `failed` gets why that is impossible."""

    def __init__(self, failed: Callable[[Exception], NoReturn]) -> None:
        self._failed = failed
        self._waiting = select.epoll()
        self._by_descriptor: dict[int, AddressSpace] = {}
        self._faults: queue.SimpleQueue[tuple[AddressSpace, int]] = queue.SimpleQueue()
        self._batches: queue.SimpleQueue[tuple[AddressSpace, int]] = queue.SimpleQueue()
        self._spaces: list[AddressSpace] = []
        # One processor is left to the tree.
        self._fillers = max(1, len(os.sched_getaffinity(0)) - 1)
        self._start: Start | None = None
        self._last_fault = 0.0

    def add(self, space: AddressSpace) -> None:
        """Fill this one, too."""
        self._by_descriptor[space.descriptor] = space
        self._spaces.append(space)
        self._waiting.register(space.descriptor, select.EPOLLIN)
        for batch in space.left:
            self._batches.put((space, batch))

    def begin(self, start: Start) -> None:
        """Begin to fill what threads wait for; everything else after the `start`."""
        self._start = start
        self._waiting.register(start.descriptor, select.EPOLLIN)
        self._run_threads(self._resolve, _FAULT_THREADS)

    def finish(self) -> None:
        """Pass faults on until all memory is there."""
        while self._start is not None or self._spaces:
            # Other threads add children meanwhile: the list stays the same.
            for space in [each for each in self._spaces if each.has_ended]:
                self._spaces.remove(space)
            for descriptor, _ in self._waiting.poll(_POLL_S):
                if self._start is not None and descriptor == self._start.descriptor:
                    self._start.check()
                    self._waiting.unregister(descriptor)
                    self._start = None
                    for space in self._spaces:
                        # Nothing may be left to fill.
                        space.close_if_complete()
                    self._run_threads(self._fill, self._fillers)
                    continue
                space = self._by_descriptor[descriptor]
                for address in space.take_faults():
                    self._faults.put((space, address))

    def _run_threads(self, work: Callable[[], NoReturn], count: int) -> None:
        for _ in range(count):
            threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], NoReturn]) -> None:
        try:
            work()
        except Exception as error:
            self._failed(error)

    def _resolve(self) -> NoReturn:
        while True:
            space, address = self._faults.get()
            self._last_fault = time.monotonic()
            space.resolve(address)

    def _fill(self) -> NoReturn:
        while True:
            space, batch = self._batches.get()
            # The program waits for faults: leave them the processors, but not for ever.
            until = time.monotonic() + _YIELDS_S
            while time.monotonic() < min(self._last_fault + _QUIET_S, until):
                time.sleep(_QUIET_S / 3)
            space.fill(batch)


class _Helper:
    """Answers the restore, then fills."""

    def __init__(self, tree: GuardedTree, connection: socket.socket, packs: socket.socket | None) -> None:
        """`packs` is for parts of packs that come later."""
        self._tree = tree
        self._packs = packs
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._mark = -1

    def run(self) -> None:
        """Do all of it; return if there is nothing to do any more."""
        self._send(Started((os.getppid(), *procfs.threads(os.getpid()))))
        plan = self._receive(Plan)
        if plan is None:
            return
        repository = Repository.open(Path(plan.store))
        with ExitStack() as stack:
            stack.enter_context(repository.shared())
            attach = self._receive(Attach)
            if attach is None:
                return
            contents = self._open(plan, repository)
            if not plan.manifest:
                # All packs are open: nobody needs to keep them in the store for as long as the program likes, which may
                # go on in ever new children that lack memory, too.
                stack.close()
            self._fill(plan, attach, contents)

    def _open(self, plan: Plan, repository: Repository) -> Contents:
        if not plan.manifest or self._packs is None:
            held = repository.get(plan.checkpoint)
            return Contents(HeldBackend(repository.root, held), held)
        checkpoint = unseal(plan.manifest, plan.checkpoint)
        return Contents(LateBackend(repository.root, checkpoint, plan.manifest, Fetcher(self._packs).fetch), checkpoint)

    def _fill(self, plan: Plan, attach: Attach, contents: Contents) -> None:
        root, is_late = attach.tasks[attach.root], bool(plan.manifest)
        self._mark = open_mark(*root)

        def find_pages(process: ProcessPlan) -> ProcessPages:
            return ProcessPages(contents, process.pagemap, process.ranges, plan.hot)

        taken, whole = [], []
        for process in plan.processes:
            pid, start = attach.tasks[process.pid]
            if missing := _take(process, pid, start):
                taken.append((process, pid, missing))
            else:
                _fill_whole(pid, find_pages(process))
                whole.append(pid)
        self._tree.write(tuple(attach.tasks.values()))
        self._send(Attached(tuple(whole)))
        filling = _Filling(self._end_tree)
        # The tree is still held: it takes a while to decide that it runs.
        for process, pid, missing in taken:
            segments = Segments(Segment(first, last, first) for first, last in process.ranges)
            filling.add(AddressSpace(pid, find_pages(process), missing, segments, filling.add))
        self._send(Planned())
        filling.begin(Start(self._connection.fileno(), self._check_arrival if is_late else lambda: None))
        filling.finish()
        remove_mark(*root)
        if is_late:
            self._send(Filled())

    def _check_arrival(self) -> None:
        if self._receive(Arrived) is None:
            raise IntegrityError("the connection to the other host was lost")

    def _end_tree(self, error: Exception) -> NoReturn:
        """End without success: then the guard ends the tree. The mark says why."""
        os.write(self._mark, f"{error_text(error) or type(error).__name__}\n".encode(errors="replace"))
        os._exit(1)

    def fail(self, error: Exception) -> None:
        """Report why the restore fails, and end the tree."""
        with suppress(OSError):
            self._send(Failed(error_text(error)))
        if self._tree.read():
            self._end_tree(error)

    def _receive(self, kind: type[_Message]) -> _Message | None:
        """Receive a message; None if the restore has ended."""
        with suppress(OSError):
            if line := self._lines.readline():
                message = decode(line)
                if isinstance(message, kind):
                    return message
        return None

    def _send(self, message: Message) -> None:
        self._connection.sendall(encode(message))


def _take(process: ProcessPlan, pid: int, start: int) -> MissingPages | None:
    """Take a userfaultfd of a process in the hold, and register its mappings; None if that is impossible."""
    try:
        missing = MissingPages(take_one(pid, start, _FLAGS))
    except (HostCannot, OSError):
        return None
    try:
        for mapping in process.mappings:
            missing.register(*mapping)
    except OSError:
        missing.close()
        return None
    return missing


def _fill_whole(pid: int, pages: ProcessPages) -> None:
    """Fill a process in the hold."""
    for batch in range(pages.batches):
        for piece in pages.unpack_batch(batch):
            ours = np.array([[piece.content, piece.length]], np.uint64)
            write_memory(pid, ours, np.array([[piece.origin, piece.length]], np.uint64))


def main(descriptor: int, packs: int | None = None) -> NoReturn:
    """Run the helper. `descriptor` is a socket; so is `packs`, for parts of packs that come later."""
    tree = GuardedTree()
    # The restore, its session and its terminal may end before us.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-1000")
    fork_guarded(tree)
    sys.setswitchinterval(_SWITCH_S)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    helper = _Helper(tree, socket.socket(fileno=descriptor), socket.socket(fileno=packs) if packs is not None else None)
    try:
        helper.run()
    except Exception as error:
        helper.fail(error)
    # Not waiting for the threads.
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
