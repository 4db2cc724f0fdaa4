"""What a tree's tracker says of the next dump: what it can count from, and why it must be full."""

from __future__ import annotations

import fcntl
import resource
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from entering import NO_WRITE_PROTECTION, Told, held, registered, reset, running
from places import PROJECT

from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.host.process.take_userfaultfd import TakeResult, take_userfaultfds
from crckpt.host.syscalls import memory_trials
from crckpt.host.syscalls.pagemap import AddressRange, private_anonymous
from crckpt.host.syscalls.pidfd_getfd import borrow
from crckpt.host.syscalls.userfaultfd import WriteProtection
from crckpt.tracking import uffd_wp
from crckpt.tracking.choose_tracker import choose_tracker
from crckpt.tracking.claims import Claims
from crckpt.tracking.dump_basis import DumpBasis, RoundBase
from crckpt.tracking.soft_dirty import SoftDirty
from crckpt.tracking.tracker import Method, Tracker
from crckpt.tracking.uffd_wp import UffdWp

PAGE = 4096
ALONE = 0x4000
"""MAP_NORESERVE: it does not join its neighbours."""
UFFDIO_WRITEPROTECT = 0xC018AA06
FIRST = "this is the first tracked dump of this tree"
UNCOMMITTED = "the tracker did not see the end of the last dump or round"
OWN = "memory is managed by the program's own userfaultfd"
FOREIGN = "another process's userfaultfd manages its memory"


NO_SOFT_DIRTY = (
    "" if memory_trials.tracks_by_soft_dirty() else "this kernel has no soft-dirty bits (CONFIG_MEM_SOFT_DIRTY)"
)
needs_write_protection = pytest.mark.skipif(bool(NO_WRITE_PROTECTION), reason=NO_WRITE_PROTECTION)
needs_soft_dirty = pytest.mark.skipif(bool(NO_SOFT_DIRTY), reason=NO_SOFT_DIRTY)
METHODS = (
    pytest.param(UffdWp, id="uffd-wp", marks=needs_write_protection),
    pytest.param(SoftDirty, id="soft-dirty", marks=needs_soft_dirty),
)


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    made: Method = request.param()
    return made


@pytest.fixture
def claims(tmp_path: Path) -> Path:
    return tmp_path / "tracked"


@contextmanager
def tracking(pid: int, method: Method, claims: Path) -> Iterator[Tracker]:
    root = proc.read_process(pid)
    assert root is not None
    tracker = Tracker(root, method, Claims(claims))
    try:
        yield tracker
    finally:
        tracker.close()


def at(name: str) -> RoundBase:
    """A round in a directory of this name."""
    return RoundBase(Path(name))


def dumped(tracker: Tracker, *pids: int, name: str = "first") -> DumpBasis:
    """A round, with what a dump does to the bits."""
    began = tracker.begin()
    for pid in pids if began.tracks else ():
        if tracker.name == "uffd-wp":
            reset(pid)
        else:
            Path(f"/proc/{pid}/clear_refs").write_text("4")
    tracker.check_freeze()
    tracker.commit(at(name))
    return began


def pages(tracker: Tracker, pid: int, place: int, count: int = 64) -> set[int]:
    """Which of these pages the tracker says are written."""
    method = UffdWp() if tracker.name == UffdWp.name else SoftDirty()
    numbers = {page for start, end in method.find_written(pid).tolist() for page in range(start, end, PAGE)}
    return {page for page in range(count) if place + page * PAGE in numbers}


def test_rounds_count_from_the_last_committed_dump(target: Told, method: Method, claims: Path) -> None:
    place = target.do("told = area(64); write(told, range(64))")
    with tracking(target.pid, method, claims) as tracker:
        assert dumped(tracker, target.pid) == DumpBasis(None, FIRST, tracks=True, whole=())
        assert pages(tracker, target.pid, place) == set()
        target.do("write(told, (1, 60))")
        assert pages(tracker, target.pid, place) == {1, 60}
        assert dumped(tracker, target.pid, name="second") == DumpBasis(at("first"), "", tracks=True, whole=())
        assert tracker.begin() == DumpBasis(at("second"), "", tracks=True, whole=())
        assert tracker.begin() == DumpBasis(None, UNCOMMITTED, tracks=True, whole=()), "the one before came to nothing"
        tracker.check_freeze()
        tracker.commit(at("third"))
        assert tracker.begin().base == at("third")


def test_nothing_is_left_in_the_target(target: Told, method: Method, claims: Path) -> None:
    place = target.do("told = area(64); write(told, range(64))")
    before = sorted(held(target.pid))
    with tracking(target.pid, method, claims) as tracker:
        dumped(tracker, target.pid)
        assert sorted(held(target.pid)) == before
    assert not registered(target.pid, place)
    assert target.do("write(place := told, range(64)); told = 5") == 5


def test_new_maps_are_registered_in_the_next_round(target: Told, method: Method, claims: Path) -> None:
    with tracking(target.pid, method, claims) as tracker:
        dumped(tracker, target.pid)
        place = target.do("told = area(64); write(told, range(64))")
        assert dumped(tracker, target.pid).base == at("first")
        assert pages(tracker, target.pid, place) == set(), "the dump has it"
        target.do("write(told, [3])")
        assert pages(tracker, target.pid, place) == {3}


def test_a_forked_child_is_followed(target: Told, method: Method, claims: Path) -> None:
    with tracking(target.pid, method, claims) as tracker:
        dumped(tracker, target.pid)
        child = target.do("told = os.fork(); told or os.read(os.pipe()[0], 1)")
        began = dumped(tracker, target.pid, child, name="second")
        assert began.base == at("first"), "the parent's part counts on"
        assert [one.pid for one in began.whole] == [child]
        assert began.whole[0].why == f"PID {child}: the process is new"
        assert dumped(tracker, target.pid, child, name="third") == DumpBasis(at("second"), "", tracks=True, whole=())
        target.do("os.kill(told, 9); os.waitpid(told, 0)")
        assert tracker.begin() == DumpBasis(at("third"), "", tracks=True, whole=())


def test_after_exec_the_next_dump_is_full(target: Told, method: Method, claims: Path) -> None:
    with tracking(target.pid, method, claims) as tracker:
        dumped(tracker, target.pid)
        assert target.process.stdin is not None
        assert target.process.stdout is not None
        target.process.stdin.write("os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])\n")
        target.process.stdin.flush()
        assert target.process.stdout.readline() == "ready\n"
        began = dumped(tracker, target.pid, name="second")
        assert began == DumpBasis(None, f"PID {target.pid}: the program was replaced (exec)", tracks=True, whole=())
        place = target.do("told = area(64); write(told, range(64))")
        assert dumped(tracker, target.pid, name="third").base == at("second")
        target.do("write(told, [9])")
        assert pages(tracker, target.pid, place) == {9}


def test_looking_between_two_dumps_forgets_nothing(target: Told, method: Method, claims: Path) -> None:
    with tracking(target.pid, method, claims) as tracker:
        dumped(tracker, target.pid)
        child = target.do("told = os.fork(); told or os.read(os.pipe()[0], 1)")
        tracker.look()
        tracker.look()
        began = tracker.begin()
        assert [one.pid for one in began.whole] == [child], "the base does not have it, however long we know it"
        grandchild = target.do("told = os.fork(); told or os.read(os.pipe()[0], 1)")
        tracker.look()
        tracker.check_freeze()
        tracker.commit(at("second"))
        assert [one.pid for one in tracker.begin().whole] == [grandchild], "it came after the round had begun"


def test_of_two_trackers_the_second_resets_nothing(target: Told, method: Method, claims: Path) -> None:
    with tracking(target.pid, method, claims) as first:
        dumped(first, target.pid)
        with tracking(target.pid, method, claims) as second:
            began = second.begin()
            assert (began.base, began.tracks) == (None, False)
            assert began.why == f"PID {target.pid}: it is tracked by another crckpt"
            assert second.find_refusal() == began.why
        assert first.begin() == DumpBasis(at("first"), "", tracks=True, whole=())
    with tracking(target.pid, method, claims) as third:
        assert third.begin().tracks, "the claim ended with its owner"


def test_a_claim_is_not_on_who_gets_the_pid_next(claims: Path) -> None:
    with closing(Claims(claims)) as one, closing(Claims(claims)) as other:
        assert one.claim(4194303, 1 << 40)
        assert not other.claim(4194303, 1 << 40)
        assert other.claim(4194303, (1 << 40) + 1)
        one.give_up(4194303, 1 << 40)
        assert other.claim(4194303, 1 << 40)


def test_a_tree_that_has_ended_is_told(target: Told, method: Method, claims: Path) -> None:
    with tracking(target.pid, method, claims) as tracker:
        dumped(tracker, target.pid)
        target.process.kill()
        target.process.wait()
        with pytest.raises(HostCannot, match=rf"PID {target.pid} \(python3.*\) has ended"):
            tracker.begin()


UNSEEN = {
    "an O_DIRECT descriptor": "file = os.open({path!r}, os.O_RDWR | os.O_CREAT | os.O_DIRECT)",
    "an aio ring": "ring = ctypes.c_ulong(); assert LIBC.syscall(206, 8, ctypes.byref(ring)) == 0",
    "an io_uring": "words = (ctypes.c_uint32 * 30)(); ring = LIBC.syscall(425, 8, words); assert ring >= 0",
}


@pytest.mark.parametrize("what", UNSEEN)
def test_what_a_device_writes_would_be_missed(
    target: Told, method: Method, claims: Path, tmp_path: Path, what: str
) -> None:
    with tracking(target.pid, method, claims) as tracker:
        dumped(tracker, target.pid)
        try:
            target.do(UNSEEN[what].format(path=str(tmp_path / "file")))
        except AssertionError:
            pytest.skip(f"the test cannot have {what} here")
        began = dumped(tracker, target.pid, name="second")
        assert (began.base, began.tracks) == (None, False)
        assert began.why.startswith(f"PID {target.pid} has {what}")
        assert began.why.endswith("crckpt cannot see what the device writes")
        assert tracker.begin().why == began.why


def test_what_came_up_before_the_freeze_spoils_the_next_round(
    target: Told, method: Method, claims: Path, tmp_path: Path
) -> None:
    with tracking(target.pid, method, claims) as tracker:
        dumped(tracker, target.pid)
        assert tracker.begin().base == at("first")
        target.do(UNSEEN["an O_DIRECT descriptor"].format(path=str(tmp_path / "file")))
        tracker.check_freeze()
        tracker.commit(at("second"))
        target.do("os.close(file)")
        began = dumped(tracker, target.pid, name="third")
        assert began.base is None, "what was in flight when the bits were reset is nowhere"
        assert "O_DIRECT" in began.why
        assert began.tracks
        assert tracker.begin().base == at("third")


@needs_write_protection
@pytest.mark.parametrize("still_open", [True, False])
def test_a_program_with_its_own_userfaultfd_is_left_alone(claims: Path, target: Told, still_open: bool) -> None:
    (taken,) = take_userfaultfds([target.pid])
    own = WriteProtection(taken.descriptor)
    for one in private_anonymous(target.pid):
        own.register(one)
    if still_open:
        target.do("uffd = LIBC.syscall(323, 1)")
    with tracking(target.pid, UffdWp(), claims) as tracker:
        began = tracker.begin()
        assert (began.base, began.tracks) == (None, False)
        assert began.why.startswith(f"PID {target.pid}: {OWN if still_open else FOREIGN}")
    place = private_anonymous(target.pid)[-1]
    assert registered(target.pid, place.start), "its own protection is as it was"
    own.close()


@needs_write_protection
def test_shared_memory_that_somebody_else_protects_is_left_alone(claims: Path, target: Told) -> None:
    """By a userfaultfd of the program that it has handed on: among its descriptors there is none."""
    file = f"file = os.memfd_create('shared'); os.ftruncate(file, {64 * PAGE})"
    place = target.do(
        f"{file}; told = LIBC.mmap(None, {64 * PAGE}, 3, 1, file, ctypes.c_long(0)); write(told, range(64))"
    )
    (taken,) = take_userfaultfds([target.pid])
    pager = WriteProtection(taken.descriptor)
    pager.register(AddressRange(place, place + 64 * PAGE))
    with tracking(target.pid, UffdWp(), claims) as tracker:
        assert tracker.begin().why.startswith(f"PID {target.pid}: {FOREIGN}")
    assert all(registered(target.pid, place + page * PAGE) for page in (0, 63)), "its own protection is as it was"
    pager.close()


@needs_write_protection
def test_one_process_that_cannot_be_entered_is_dumped_whole(target: Told, claims: Path) -> None:
    with tracking(target.pid, UffdWp(), claims) as tracker:
        dumped(tracker, target.pid)
        child = target.do("pipe = os.pipe(); told = os.fork(); told or os.read(pipe[0], 1)")
        soft, hard = resource.prlimit(child, resource.RLIMIT_NOFILE)
        resource.prlimit(child, resource.RLIMIT_NOFILE, (3, hard))
        for name in ("second", "third"):
            began = dumped(tracker, target.pid, child, name=name)
            assert began.base is not None
            assert [one.pid for one in began.whole] == [child]
            assert began.whole[0].why.startswith(f"PID {child} has no free file descriptor")
        resource.prlimit(child, resource.RLIMIT_NOFILE, (soft, hard))
        assert [one.pid for one in dumped(tracker, target.pid, child).whole] == [child], "it is attached only now"
        assert dumped(tracker, target.pid, child).whole == ()


@needs_write_protection
def test_a_child_forked_while_its_parent_was_entered_is_rid_of_ours(
    target: Told, claims: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment is made: another thread forks between the two calls that are injected."""

    def entered(pids: Iterable[int]) -> tuple[TakeResult, ...]:
        monkeypatch.undo()
        descriptor = target.do("told = LIBC.syscall(323, os.O_CLOEXEC | os.O_NONBLOCK | 1)")
        ours = borrow(target.pid, descriptor)
        target.do("pipe = os.pipe(); child = os.fork(); child or os.read(pipe[0], 1)")
        target.do("os.close(told)")
        return tuple(TakeResult(pid, ours) for pid in pids)

    # The moment lies between two system calls: from outside it would be met by chance.
    monkeypatch.setattr(uffd_wp, "take_userfaultfds", entered)
    with tracking(target.pid, UffdWp(), claims) as tracker:
        began = tracker.begin()
        child = target.do("told = child")
        assert "anon_inode:[userfaultfd]" not in held(child), "CRIU would refuse the dump that begins now"
        assert (began.base, began.tracks) == (None, True)
        for pid in (target.pid, child):
            reset(pid)
        tracker.check_freeze()
        tracker.commit(at("first"))
        assert dumped(tracker, target.pid, child) == DumpBasis(at("first"), "", tracks=True, whole=())


@needs_write_protection
@pytest.mark.parametrize("is_old", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("how", [0x11, 0x12], ids=["shared", "private"])
def test_a_file_that_came_where_memory_was_listed_is_not_tracked(
    target: Told, claims: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: int, is_old: bool
) -> None:
    """The moment is made. What is written over a file and dropped would keep its mark, and count as clean."""
    (tmp_path / "file").write_bytes(bytes(64 * PAGE))
    target.do(f"file = os.open({str(tmp_path / 'file')!r}, os.O_RDWR)")
    place = target.do(f"told = area(64, {ALONE}); write(told, range(64))")
    over = f"LIBC.mmap(ctypes.c_void_p({place}), ctypes.c_size_t({64 * PAGE}), 3, {how}, file, ctypes.c_long(0))"
    with tracking(target.pid, UffdWp(), claims) as tracker:
        if is_old:
            dumped(tracker, target.pid)
        overtaken(monkeypatch, place, lambda: target.do(over))
        dumped(tracker, target.pid, name="second")
        assert not registered(target.pid, place)
        assert dumped(tracker, target.pid).base == at("second")


@needs_write_protection
def test_a_map_that_grew_since_it_was_listed_is_not_split(
    target: Told, claims: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment is made. The program could not move or grow it as a whole any more."""
    place = target.do(f"told = area(128, {ALONE}); LIBC.munmap(ctypes.c_void_p(told + 64 * PAGE), 64 * PAGE)")
    overtaken(monkeypatch, place, lambda: target.do(f"resized({place}, 64, 128)"))
    with tracking(target.pid, UffdWp(), claims) as tracker:
        dumped(tracker, target.pid)
        place = target.do(f"told = resized({place}, 128, 256); write(told, range(256))")
        assert dumped(tracker, target.pid).base == at("first")
        assert all(registered(target.pid, place + page * PAGE) for page in (0, 64, 255))


@needs_write_protection
def test_what_was_not_unprotected_is_not_tracked(target: Told, claims: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment is made: another map comes in the midst; the kernel stops there, and behind it are old marks."""
    place = target.do(f"told = area(64, {ALONE}); write(told, range(64))")
    asked = fcntl.ioctl

    def stopped_amid(descriptor: int, request: int, argument: bytes) -> object:
        if request == UFFDIO_WRITEPROTECT and struct.unpack_from("<Q", argument) == (place,):
            monkeypatch.undo()
            target.do(f"LIBC.mmap(ctypes.c_void_p({place} + PAGE), PAGE, 3, 0x32, -1, ctypes.c_long(0))")
        return asked(descriptor, request, argument)

    # The moment lies between two system calls: from outside it would be met by chance.
    monkeypatch.setattr(fcntl, "ioctl", stopped_amid)
    with tracking(target.pid, UffdWp(), claims) as tracker:
        tracker.look()
        assert not any(registered(target.pid, place + page * PAGE) for page in range(64))
        tracker.look()
        assert all(registered(target.pid, place + page * PAGE) for page in range(64))


def overtaken(monkeypatch: pytest.MonkeyPatch, place: int, do: Callable[[], object]) -> None:
    """This is done just before the map that was seen at this place is registered, once."""
    register = WriteProtection.register

    def register_late(protection: WriteProtection, found: AddressRange, *, is_new: bool = True) -> None:
        if found.start == place:
            monkeypatch.undo()
            do()
        register(protection, found, is_new=is_new)

    # The moment lies between two system calls: from outside it would be met by chance.
    monkeypatch.setattr(WriteProtection, "register", register_late)


@needs_write_protection
@pytest.mark.parametrize("miss", [True, False])
def test_write_protection_is_taken_where_soft_dirty_bits_miss_writes(
    target: Told, claims: Path, monkeypatch: pytest.MonkeyPatch, miss: bool
) -> None:
    """And they are where any of its processes cannot be entered for it."""
    # A kernel has the bits or has them not, and misses writes or does not: the order is to be right on all.
    monkeypatch.setattr(memory_trials, "tracks_by_soft_dirty", lambda: True)
    monkeypatch.setattr(memory_trials, "soft_dirty_misses_joined", lambda: miss)
    monkeypatch.setattr("crckpt.tracking.choose_tracker.find_criu_refusal", lambda _criu, _tracker: "")
    assert chosen(target, claims) == (UffdWp.name if miss else SoftDirty.name)
    child = target.do("pipe = os.pipe(); told = os.fork(); told or os.read(pipe[0], 1)")
    for pid in (child, target.pid):
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
        assert chosen(target, claims) == SoftDirty.name
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert chosen(target, claims) == (UffdWp.name if miss else SoftDirty.name)


def chosen(target: Told, claims: Path) -> str:
    """The name of the tracker that is taken, which is said with a reason."""
    root = proc.read_process(target.pid)
    assert root is not None
    choice = choose_tracker(root, Path("criu"), claims)
    assert choice.tracker is not None
    choice.tracker.close()
    assert choice.why.startswith(f"tracker: {choice.tracker.name} (")
    return choice.tracker.name


@needs_write_protection
def test_the_tracker_dies_and_the_target_does_not_notice(target: Told, claims: Path) -> None:
    place = target.do("told = area(64); write(told, range(64))")
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom crckpt.host import proc\n"
        "from crckpt.tracking.claims import Claims\nfrom crckpt.tracking.tracker import Tracker\n"
        "from crckpt.tracking.uffd_wp import UffdWp\n"
        "tracker = Tracker(proc.read_process(int(sys.argv[1])), UffdWp(), Claims(Path(sys.argv[2])))\n"
        "tracker.begin(); print('ready', flush=True); sys.stdin.read()\n"
    )
    words = (sys.executable, "-c", program, str(target.pid), str(claims))
    with running(*words, cwd=PROJECT) as dying:
        reset(target.pid)
        dying.kill()
        dying.wait()
    assert target.do("write(told, [1])") == place
    with tracking(target.pid, UffdWp(), claims) as tracker:
        assert tracker.begin() == DumpBasis(None, FIRST, tracks=True, whole=())
        assert pages(tracker, target.pid, place) == set(range(64)), "every page reads as written"
