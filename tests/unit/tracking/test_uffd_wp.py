"""Memory that write protection tracks, and memory that it leaves alone."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from program_trackers import PAGE, at, dump_round, needs_write_protection, tracking
from target_processes import StatementRunner, is_registered, list_descriptors, reset

from crckpt.helper.calls.remote_calls import OrderResult, take_userfaultfds
from crckpt.host.process.pidfd import borrow
from crckpt.host.syscalls.pagemap import AddressRange, private_anonymous
from crckpt.host.syscalls.userfaultfd import WriteProtection
from crckpt.tracking.dump_basis import DumpBasis
from crckpt.tracking.uffd_wp import UffdWp

MAP_NORESERVE = 0x4000
"""linux/mman.h. A mapping with this flag is not merged with those next to it."""
OWN_USERFAULTFD = "memory is managed by the program's own userfaultfd"
FOREIGN_USERFAULTFD = "another process's userfaultfd manages its memory"


@needs_write_protection
@pytest.mark.parametrize("still_open", [True, False])
def test_program_with_its_own_userfaultfd_is_left_alone(
    claims: Path, target: StatementRunner, still_open: bool
) -> None:
    (taken,) = take_userfaultfds([target.pid])
    own = WriteProtection(taken.descriptor)
    for mapping in private_anonymous(target.pid):
        own.register(mapping)
    if still_open:
        target.do("uffd = LIBC.syscall(323, 1)")
    with tracking(target.pid, UffdWp(), claims) as tracker:
        began = tracker.begin()
        assert (began.base, began.tracks) == (None, False)
        assert began.why.startswith(f"PID {target.pid}: {OWN_USERFAULTFD if still_open else FOREIGN_USERFAULTFD}")
    place = private_anonymous(target.pid)[-1]
    assert is_registered(target.pid, place.start), "its own protection is as it was"
    own.close()


@needs_write_protection
def test_shared_memory_protected_by_another_process_is_left_alone(claims: Path, target: StatementRunner) -> None:
    """The program has passed its userfaultfd to another process, so it has no descriptor of it."""
    file = f"file = os.memfd_create('shared'); os.ftruncate(file, {64 * PAGE})"
    place = target.do(
        f"{file}; result = LIBC.mmap(None, {64 * PAGE}, 3, 1, file, ctypes.c_long(0)); write(result, range(64))"
    )
    (taken,) = take_userfaultfds([target.pid])
    pager = WriteProtection(taken.descriptor)
    pager.register(AddressRange(place, place + 64 * PAGE))
    with tracking(target.pid, UffdWp(), claims) as tracker:
        assert tracker.begin().why.startswith(f"PID {target.pid}: {FOREIGN_USERFAULTFD}")
    assert all(is_registered(target.pid, place + page * PAGE) for page in (0, 63)), "its own protection is as it was"
    pager.close()


@needs_write_protection
def test_process_that_cannot_be_entered_is_dumped_in_full(target: StatementRunner, claims: Path) -> None:
    with tracking(target.pid, UffdWp(), claims) as tracker:
        dump_round(tracker, target.pid)
        child = target.do("pipe = os.pipe(); result = os.fork(); result or os.read(pipe[0], 1)")
        soft, hard = resource.prlimit(child, resource.RLIMIT_NOFILE)
        resource.prlimit(child, resource.RLIMIT_NOFILE, (3, hard))
        for name in ("second", "third"):
            began = dump_round(tracker, target.pid, child, name=name)
            assert began.base is not None
            assert [one.pid for one in began.whole] == [child]
            assert began.whole[0].why.startswith(f"PID {child}: it has no free file descriptor")
        resource.prlimit(child, resource.RLIMIT_NOFILE, (soft, hard))
        assert [one.pid for one in dump_round(tracker, target.pid, child).whole] == [child], "it is attached only now"
        assert dump_round(tracker, target.pid, child).whole == ()


@needs_write_protection
def test_child_forked_during_the_injection_loses_our_userfaultfd(target: StatementRunner, claims: Path) -> None:
    """The test makes another thread fork between the two injected calls."""
    is_first = True

    def entered(pids: Iterable[int]) -> Iterable[OrderResult]:
        nonlocal is_first
        if not is_first:
            return take_userfaultfds(pids)
        is_first = False
        descriptor = target.do("result = LIBC.syscall(323, os.O_CLOEXEC | os.O_NONBLOCK | 1)")
        ours = borrow(target.pid, descriptor)
        target.do("pipe = os.pipe(); child = os.fork(); child or os.read(pipe[0], 1)")
        target.do("os.close(result)")
        return tuple(OrderResult(pid, descriptor=ours) for pid in pids)

    with tracking(target.pid, UffdWp(take=entered), claims) as tracker:
        began = tracker.begin()
        child = target.do("result = child")
        assert "anon_inode:[userfaultfd]" not in list_descriptors(child), "CRIU would refuse the dump that begins now"
        assert (began.base, began.tracks) == (None, True)
        for pid in (target.pid, child):
            reset(pid)
        tracker.check_freeze()
        tracker.commit(at("first"))
        assert dump_round(tracker, target.pid, child) == DumpBasis(at("first"), "", tracks=True, whole=())


@needs_write_protection
@pytest.mark.parametrize("is_old", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("how", [0x11, 0x12], ids=["shared", "private"])
def test_file_mapped_after_crckpt_listed_the_mappings_is_not_tracked(
    target: StatementRunner, claims: Path, tmp_path: Path, how: int, is_old: bool
) -> None:
    """If crckpt tracked it, a page that was written and then dropped would count as unchanged.

    The test maps the file between the moments in which crckpt lists the mappings and registers them.
    """
    (tmp_path / "file").write_bytes(bytes(64 * PAGE))
    target.do(f"file = os.open({str(tmp_path / 'file')!r}, os.O_RDWR)")
    place = target.do(f"result = area(64, {MAP_NORESERVE}); write(result, range(64))")
    over = f"LIBC.mmap(ctypes.c_void_p({place}), ctypes.c_size_t({64 * PAGE}), 3, {how}, file, ctypes.c_long(0))"
    moment = Moment(place, lambda: target.do(over))
    with tracking(target.pid, UffdWp(protection=moment.before_it_is_registered()), claims) as tracker:
        if is_old:
            dump_round(tracker, target.pid)
        moment.is_awaited = True
        dump_round(tracker, target.pid, name="second")
        assert not is_registered(target.pid, place)
        assert dump_round(tracker, target.pid).base == at("second")


@needs_write_protection
def test_mapping_that_grew_after_the_listing_is_not_split(target: StatementRunner, claims: Path) -> None:
    """The program could not move or grow a split mapping as a whole. Here the mapping grows after crckpt listed it."""
    place = target.do(
        f"result = area(128, {MAP_NORESERVE}); LIBC.munmap(ctypes.c_void_p(result + 64 * PAGE), 64 * PAGE)"
    )
    moment = Moment(place, lambda: target.do(f"resized({place}, 64, 128)"), is_awaited=True)
    with tracking(target.pid, UffdWp(protection=moment.before_it_is_registered()), claims) as tracker:
        dump_round(tracker, target.pid)
        place = target.do(f"result = resized({place}, 128, 256); write(result, range(256))")
        assert dump_round(tracker, target.pid).base == at("first")
        assert all(is_registered(target.pid, place + page * PAGE) for page in (0, 64, 255))


@needs_write_protection
def test_mapping_that_was_not_unprotected_is_not_tracked(target: StatementRunner, claims: Path) -> None:
    """The test creates another map in the middle after crckpt has listed the mappings.

    The kernel stops there, so old marks would stay in the pages after it.
    """
    place = target.do(f"result = area(64, {MAP_NORESERVE}); write(result, range(64))")
    other = f"LIBC.mmap(ctypes.c_void_p({place} + PAGE), PAGE, 3, 0x32, -1, ctypes.c_long(0))"
    moment = Moment(place, lambda: target.do(other), is_awaited=True)
    with tracking(target.pid, UffdWp(protection=moment.before_it_is_unprotected()), claims) as tracker:
        tracker.look()
        assert not any(is_registered(target.pid, place + page * PAGE) for page in range(64))
        tracker.look()
        assert all(is_registered(target.pid, place + page * PAGE) for page in range(64))


@dataclass
class Moment:
    """Something is done when the map at this place has its turn, once, if it is awaited.

    The moment lies between two system calls: from outside it would be met by chance.
    """

    place: int
    do: Callable[[], object]
    is_awaited: bool = False

    def _has_come(self, found: AddressRange) -> None:
        if self.is_awaited and found.start == self.place:
            self.is_awaited = False
            self.do()

    def before_it_is_registered(self) -> type[WriteProtection]:
        come = self._has_come

        class Overtaken(WriteProtection):
            def register(self, found: AddressRange, *, is_new: bool = True) -> None:
                come(found)
                super().register(found, is_new=is_new)

        return Overtaken

    def before_it_is_unprotected(self) -> type[WriteProtection]:
        come = self._has_come

        class Overtaken(WriteProtection):
            def protect(self, start: int, end: int, mode: int = 0) -> None:
                come(AddressRange(start, end))
                super().protect(start, end, mode)

        return Overtaken
