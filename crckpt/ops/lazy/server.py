"""The helper that fills the memory of a restored tree while the tree runs.

It goes on after the restore has ended, until all memory is there. Its parent guards the tree: see `family`.
"""

from __future__ import annotations

import errno
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
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import numpy as np

from crckpt.errors import HostCannot, IntegrityError, error_text
from crckpt.helper.calls.taken_userfaultfd import take_pinned, unpin
from crckpt.helper.channel import Channel, open_control
from crckpt.helper.kinds import FILLER
from crckpt.host.proc import Identity, procfs
from crckpt.host.proc.maps import read_maps
from crckpt.host.syscalls.process_vm import write_memory
from crckpt.host.syscalls.userfaultfd import MissingPages
from crckpt.ops.lazy.address_space import FilledSpace, Segment, Segments
from crckpt.ops.lazy.client import Arrived, Attach, FillerAnswer, Plan, fetches_over
from crckpt.ops.lazy.family import Family, GuardedTree, fork_guarded, open_mark, remove_mark
from crckpt.ops.lazy.page_marks import MarksFinder
from crckpt.ops.lazy.pages import ProcessPages
from crckpt.ops.lazy.plan import ProcessPlan
from crckpt.store import Repository
from crckpt.store.backend.local import LateBackend
from crckpt.store.format.manifest import unseal
from crckpt.store.read.contents import Contents

_Message = TypeVar("_Message", Plan, Attach, Arrived)

_FAULT_THREADS: Final = 2
_POLL_S: Final = 0.02
# How often it looks which processes have ended.
_LOOK_S: Final = 0.1
# So long, and so many times as long as the restored processes took, their children may take after them.
_CHILDREN_S: Final = 600.0
_CHILDREN_TIMES: Final = 10
# Descriptors of each process; and those that are left to find the page maps of new ones.
_DESCRIPTORS: Final = 2
_SPARE: Final = 128
# The background waits until no fault came for so long; at most so long before each batch.
_QUIET_S: Final = 0.003
_YIELDS_S: Final = 0.03
# A thread that resolves a fault waits at most so long for one that fills (Python's own: 5 ms).
_SWITCH_S: Final = 0.0005
_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK
# A thread that waits for a stop takes the signals of all.
_unpinning: Final = threading.Lock()


class _Filling:
    """The address spaces that are being filled. `failed` gets why that is impossible."""

    def __init__(self, finder: MarksFinder, failed: Callable[[Exception], NoReturn]) -> None:
        self._finder = finder
        self._failed = failed
        self._waiting = select.epoll()
        self._spaces: dict[int, FilledSpace] = {}
        self._faults: queue.SimpleQueue[tuple[FilledSpace, int]] = queue.SimpleQueue()
        # Each space is here as often as threads may fill it at the same time, until it has no batch left.
        self._turns: queue.SimpleQueue[FilledSpace] = queue.SimpleQueue()
        self._new_children: queue.SimpleQueue[FilledSpace] = queue.SimpleQueue()
        # One processor is left to the tree.
        self._fillers = max(1, len(os.sched_getaffinity(0)) - 1)
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_spaces = (most - len(tuple(Path("/proc/self/fd").iterdir())) - _SPARE) // _DESCRIPTORS
        self._start: int | None = None
        self._is_filling = False
        self._last_fault = 0.0

    def add(self, space: FilledSpace) -> None:
        """Fill this one, too. Raises OSError if there are too many."""
        if len(self._spaces) >= self._most_spaces:
            self._forget_ended()
            if len(self._spaces) >= self._most_spaces:
                raise OSError(errno.EMFILE, f"the tree has more than {self._most_spaces} processes that lack memory")
        self._spaces[space.descriptor] = space
        self._waiting.register(space.descriptor, select.EPOLLIN)
        if self._is_filling:
            space.close_if_complete()
        if space.unmarked_ranges:
            self._new_children.put(space)
        else:
            self._give_turns(space)

    def begin(self, start: int) -> None:
        """Begin to fill what threads wait for; everything else once the descriptor `start` is readable."""
        self._start = start
        self._waiting.register(start, select.EPOLLIN)
        self._run_threads(self._resolve, _FAULT_THREADS)
        self._run_threads(self._find_marks, 1)

    def finish(self, check_start: Callable[[], None]) -> None:
        """Pass faults on until all memory is there. `check_start` raises if not all may be filled after the start."""
        began = looked = time.monotonic()
        until = began + _CHILDREN_S
        while self._start is not None or self._spaces:
            now = time.monotonic()
            if now - looked > _LOOK_S:
                self._forget_ended()
                looked = now
                if not self._is_filling or any(not space.is_child for space in tuple(self._spaces.values())):
                    until = now + _CHILDREN_S + _CHILDREN_TIMES * (now - began)
            if now > until:
                raise HostCannot(f"it forked for {now - began:.0f} s, faster than its children can be filled")
            for descriptor, _ in self._waiting.poll(_POLL_S):
                if descriptor == self._start:
                    check_start()
                    self._waiting.unregister(descriptor)
                    self._start = None
                    self._is_filling = True
                    for space in tuple(self._spaces.values()):
                        # Nothing may be left to fill.
                        space.close_if_complete()
                    self._run_threads(self._fill, self._fillers)
                elif (found := self._spaces.get(descriptor)) is not None:
                    for address in found.take_faults():
                        self._faults.put((found, address))

    def _forget_ended(self) -> None:
        """Forget the processes that have ended: a program may fork without end."""
        # Other threads add children meanwhile, also with the number of a descriptor that was closed.
        for descriptor, space in tuple(self._spaces.items()):
            if space.end_if_over() and self._spaces.get(descriptor) is space:
                del self._spaces[descriptor]

    def _run_threads(self, work: Callable[[], NoReturn], count: int) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:
                self._failed(error)

        for _ in range(count):
            threading.Thread(target=run, daemon=True).start()

    def _resolve(self) -> NoReturn:
        while True:
            space, address = self._faults.get()
            self._last_fault = time.monotonic()
            space.resolve(address)

    def _fill(self) -> NoReturn:
        while True:
            space = self._turns.get()
            # The program waits for faults: leave them the processors, but not for ever.
            until = time.monotonic() + _YIELDS_S
            while time.monotonic() < min(self._last_fault + _QUIET_S, until):
                time.sleep(_QUIET_S / 3)
            if space.fill_next():
                self._turns.put(space)

    def _give_turns(self, space: FilledSpace) -> None:
        for _ in range(self._fillers):
            self._turns.put(space)

    def _find_marks(self) -> NoReturn:
        children: list[FilledSpace] = []
        while True:
            # Wait only if none is left.
            while not children or not self._new_children.empty():
                children.append(self._new_children.get())
            ranges = {each for space in children for each in space.unmarked_ranges}
            self._finder.ask(tuple(sorted(ranges)))
            for space in children:
                if not space.unmarked_ranges:
                    self._give_turns(space)
            children = [each for each in children if each.unmarked_ranges]
            time.sleep(_POLL_S)


class _Helper:
    def __init__(self, tree: GuardedTree, control: Channel, packs: socket.socket) -> None:
        """`packs` is for parts of packs that come later."""
        self._tree = tree
        self._packs = packs
        self._control = control
        self._mark = -1

    def run(self) -> None:
        """Do all of it; return if there is nothing to do any more."""
        self._control.send(FillerAnswer(tids=(os.getppid(), *procfs.threads(os.getpid()))))
        plan = self._receive(Plan)
        if plan is None:
            return
        repository = Repository.open(Path(plan.store))
        with ExitStack() as stack:
            stack.enter_context(repository.shared())
            attach = self._receive(Attach)
            if attach is None:
                return
            is_late = bool(plan.manifest)
            checkpoint = unseal(plan.manifest, plan.checkpoint) if is_late else repository.get(plan.checkpoint)
            fetch = fetches_over(self._packs) if is_late else None
            packs = (use.digest for use in checkpoint.packs)
            backend = LateBackend(repository.root, checkpoint.id, packs, plan.manifest, fetch)

            def hold_packs() -> None:
                if is_late and self._receive(Arrived) is None:
                    raise IntegrityError("the connection to the other host was lost")
                # Once all packs are open, nobody needs to keep them in the store for as long as the program likes,
                # which may go on in ever new children that lack memory, too.
                backend.hold()
                stack.close()

            if not is_late:
                hold_packs()
            self._fill(plan, attach, Contents(backend, checkpoint), hold_packs if is_late else lambda: None)

    def _fill(self, plan: Plan, attach: Attach, contents: Contents, check_start: Callable[[], None]) -> None:
        root = attach.tasks[attach.root]
        self._mark = open_mark(root)

        def find_pages(process: ProcessPlan) -> ProcessPages:
            return ProcessPages(contents, process.pagemap, process.ranges, plan.hot)

        taken = []
        for process in plan.processes:
            task = attach.tasks[process.pid]
            if found := _take(process, task):
                taken.append((process, task, *found))
            else:
                pages = find_pages(process)
                for piece in (each for batch in range(pages.batches) for each in pages.unpack_batch(batch)):
                    ours = np.array([[piece.content, piece.length]], np.uint64)
                    write_memory(task.pid, ours, np.array([[piece.origin, piece.length]], np.uint64))
        family = Family.of(attach.tasks.values())
        self._tree.write(family)
        self._control.send(FillerAnswer())
        finder = MarksFinder(family)
        filling = _Filling(finder, self._end_tree)
        # The tree is still held: it takes a while to decide that it runs.
        for process, task, missing, context in taken:
            segments = Segments(Segment(first, last, first) for first, last in process.ranges)
            free, pages = partial(_unpin, task, context, missing), find_pages(process)
            filling.add(FilledSpace(task.pid, pages, missing, segments, finder, filling.add, unpin=free))
        self._control.send(FillerAnswer())
        filling.begin(self._control.fileno())
        filling.finish(check_start)
        remove_mark(root)
        if plan.manifest:
            self._control.send(FillerAnswer())

    def _end_tree(self, error: Exception) -> NoReturn:
        """End without success: then the guard ends the tree. The mark says why."""
        os.write(self._mark, f"{error_text(error) or type(error).__name__}\n".encode(errors="replace"))
        os._exit(1)

    def fail(self, error: Exception) -> None:
        """Report why the restore fails, and end the tree."""
        with suppress(HostCannot):
            # Some have no text.
            self._control.send(FillerAnswer(failed=error_text(error) or type(error).__name__))
        if self._tree.read().tasks:
            self._end_tree(error)

    def _receive(self, kind: type[_Message]) -> _Message | None:
        """Receive a message; None if the restore has ended."""
        with suppress(HostCannot):
            return self._control.receive(kind)
        return None


def _take(process: ProcessPlan, task: Identity) -> tuple[MissingPages, int] | None:
    """Take a userfaultfd of a process in the hold, and register its mappings; None if that is impossible."""
    try:
        missing, context = take_pinned(task, _FLAGS)
    except (HostCannot, OSError):
        return None
    try:
        for mapping in process.mappings:
            missing.register(*mapping)
    except OSError:
        unpin(task, context)
        missing.close()
        return None
    return missing, context


def _unpin(task: Identity, context: int, missing: MissingPages) -> None:
    """Let a process whose memory is complete go on without its userfaultfd."""
    with _unpinning:
        try:
            unpin(task, context)
        except (HostCannot, OSError):
            # It cannot be entered now. Then the userfaultfd stays, with nothing to do.
            with suppress(OSError):
                for each in read_maps(task.pid):
                    with suppress(OSError):
                        missing.remove(each.start, each.end)


def main(number: str, packs: str) -> NoReturn:
    """Run the helper. `packs` is a socket for parts of packs that come later."""
    tree = GuardedTree()
    # The restore, its session and its terminal may end before us.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-1000")
    fork_guarded(tree)
    sys.setswitchinterval(_SWITCH_S)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    helper = _Helper(tree, open_control(FILLER, number), socket.socket(fileno=int(packs)))
    try:
        helper.run()
    except Exception as error:
        helper.fail(error)
    # Not waiting for the threads.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
