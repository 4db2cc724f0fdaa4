"""The tracker of a tree describes the next dump: its base, and why it must be full."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from checkout import PROJECT
from program_trackers import PAGE, at, dump_round, needs_write_protection, tracking
from target_processes import StatementRunner, is_registered, list_descriptors, reset, running

from crckpt.errors import HostCannot
from crckpt.tracking.dump_basis import DumpBasis
from crckpt.tracking.soft_dirty import SoftDirty
from crckpt.tracking.tracker import Method, Tracker
from crckpt.tracking.uffd_wp import UffdWp

FIRST_DUMP_REASON = "this is the first tracked dump of this tree"
UNCOMMITTED_REASON = "the tracker did not see the end of the last dump or round"


def pages(tracker: Tracker, pid: int, place: int, count: int = 64) -> set[int]:
    """Which of these pages the tracker says are written."""
    method = UffdWp() if tracker.name == UffdWp.name else SoftDirty()
    numbers = {page for start, end in method.find_written(pid).tolist() for page in range(start, end, PAGE)}
    return {page for page in range(count) if place + page * PAGE in numbers}


def test_pages_of_a_round_count_from_the_last_committed_dump(
    target: StatementRunner, method: Method, claims: Path
) -> None:
    place = target.do("result = area(64); write(result, range(64))")
    with tracking(target.pid, method, claims) as tracker:
        assert dump_round(tracker, target.pid) == DumpBasis(None, FIRST_DUMP_REASON, tracks=True, whole=())
        assert pages(tracker, target.pid, place) == set()
        target.do("write(result, (1, 60))")
        assert pages(tracker, target.pid, place) == {1, 60}
        assert dump_round(tracker, target.pid, name="second") == DumpBasis(at("first"), "", tracks=True, whole=())
        assert tracker.begin() == DumpBasis(at("second"), "", tracks=True, whole=())
        assert tracker.begin() == DumpBasis(None, UNCOMMITTED_REASON, tracks=True, whole=()), (
            "the one before came to nothing"
        )
        tracker.check_freeze()
        tracker.commit(at("third"))
        assert tracker.begin().base == at("third")


def test_tracker_leaves_no_descriptor_in_the_tracked_process(
    target: StatementRunner, method: Method, claims: Path
) -> None:
    place = target.do("result = area(64); write(result, range(64))")
    before = sorted(list_descriptors(target.pid))
    with tracking(target.pid, method, claims) as tracker:
        dump_round(tracker, target.pid)
        assert sorted(list_descriptors(target.pid)) == before
    assert not is_registered(target.pid, place)
    assert target.do("write(place := result, range(64)); result = 5") == 5


def test_mappings_created_since_a_round_are_registered_in_the_next(
    target: StatementRunner, method: Method, claims: Path
) -> None:
    with tracking(target.pid, method, claims) as tracker:
        dump_round(tracker, target.pid)
        place = target.do("result = area(64); write(result, range(64))")
        assert dump_round(tracker, target.pid).base == at("first")
        assert pages(tracker, target.pid, place) == set(), "the dump has it"
        target.do("write(result, [3])")
        assert pages(tracker, target.pid, place) == {3}


def test_child_forked_by_a_tracked_process_is_tracked(target: StatementRunner, method: Method, claims: Path) -> None:
    with tracking(target.pid, method, claims) as tracker:
        dump_round(tracker, target.pid)
        child = target.do("result = os.fork(); result or os.read(os.pipe()[0], 1)")
        began = dump_round(tracker, target.pid, child, name="second")
        assert began.base == at("first"), "the parent's part counts on"
        assert [process.pid for process in began.whole] == [child]
        assert began.whole[0].why == f"PID {child}: the process is new"
        assert dump_round(tracker, target.pid, child, name="third") == DumpBasis(
            at("second"), "", tracks=True, whole=()
        )
        target.do("os.kill(result, 9); os.waitpid(result, 0)")
        assert tracker.begin() == DumpBasis(at("third"), "", tracks=True, whole=())


def test_next_dump_is_full_after_exec(target: StatementRunner, method: Method, claims: Path) -> None:
    with tracking(target.pid, method, claims) as tracker:
        dump_round(tracker, target.pid)
        assert target.process.stdin is not None
        assert target.process.stdout is not None
        target.process.stdin.write("os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])\n")
        target.process.stdin.flush()
        assert target.process.stdout.readline() == "ready\n"
        began = dump_round(tracker, target.pid, name="second")
        assert began == DumpBasis(None, f"PID {target.pid}: the program was replaced (exec)", tracks=True, whole=())
        place = target.do("result = area(64); write(result, range(64))")
        assert dump_round(tracker, target.pid, name="third").base == at("second")
        target.do("write(result, [9])")
        assert pages(tracker, target.pid, place) == {9}


def test_query_between_two_dumps_forgets_no_written_page(target: StatementRunner, method: Method, claims: Path) -> None:
    with tracking(target.pid, method, claims) as tracker:
        dump_round(tracker, target.pid)
        child = target.do("result = os.fork(); result or os.read(os.pipe()[0], 1)")
        tracker.look()
        tracker.look()
        began = tracker.begin()
        assert [one.pid for one in began.whole] == [child], "the base does not have it, however long we know it"
        grandchild = target.do("result = os.fork(); result or os.read(os.pipe()[0], 1)")
        tracker.look()
        tracker.check_freeze()
        tracker.commit(at("second"))
        assert [one.pid for one in tracker.begin().whole] == [grandchild], "it came after the round had begun"


def test_second_tracker_of_a_process_resets_no_page(target: StatementRunner, method: Method, claims: Path) -> None:
    with tracking(target.pid, method, claims) as first:
        dump_round(first, target.pid)
        with tracking(target.pid, method, claims) as second:
            began = second.begin()
            assert (began.base, began.tracks) == (None, False)
            assert began.why == f"PID {target.pid}: it is tracked by another crckpt"
            assert second.find_refusal() == began.why
        assert first.begin() == DumpBasis(at("first"), "", tracks=True, whole=())
    with tracking(target.pid, method, claims) as third:
        assert third.begin().tracks, "the claim ended with its owner"


def test_dump_of_a_tracked_tree_that_ended_is_an_error(target: StatementRunner, method: Method, claims: Path) -> None:
    with tracking(target.pid, method, claims) as tracker:
        dump_round(tracker, target.pid)
        target.process.kill()
        target.process.wait()
        with pytest.raises(HostCannot, match=rf"PID {target.pid} \(python3.*\) has ended"):
            tracker.begin()


UNTRACKED_DEVICES = {
    "an O_DIRECT descriptor": "file = os.open({path!r}, os.O_RDWR | os.O_CREAT | os.O_DIRECT)",
    "an aio ring": "ring = ctypes.c_ulong(); assert LIBC.syscall(206, 8, ctypes.byref(ring)) == 0",
    "an io_uring": "words = (ctypes.c_uint32 * 30)(); ring = LIBC.syscall(425, 8, words); assert ring >= 0",
}


@pytest.mark.parametrize("what", UNTRACKED_DEVICES)
def test_device_that_writes_to_memory_makes_the_dump_full(
    target: StatementRunner, method: Method, claims: Path, tmp_path: Path, what: str
) -> None:
    with tracking(target.pid, method, claims) as tracker:
        dump_round(tracker, target.pid)
        try:
            target.do(UNTRACKED_DEVICES[what].format(path=str(tmp_path / "file")))
        except AssertionError:
            pytest.skip(f"the test cannot have {what} here")
        began = dump_round(tracker, target.pid, name="second")
        assert (began.base, began.tracks) == (None, False)
        assert began.why.startswith(f"PID {target.pid} has {what}")
        assert began.why.endswith("crckpt cannot see what the device writes")
        assert tracker.begin().why == began.why


def test_device_seen_at_the_freeze_makes_the_next_round_full(
    target: StatementRunner, method: Method, claims: Path, tmp_path: Path
) -> None:
    with tracking(target.pid, method, claims) as tracker:
        dump_round(tracker, target.pid)
        assert tracker.begin().base == at("first")
        target.do(UNTRACKED_DEVICES["an O_DIRECT descriptor"].format(path=str(tmp_path / "file")))
        tracker.check_freeze()
        tracker.commit(at("second"))
        target.do("os.close(file)")
        began = dump_round(tracker, target.pid, name="third")
        assert began.base is None, "what the device wrote after the reset of the bits is in no dump"
        assert "O_DIRECT" in began.why
        assert began.tracks
        assert tracker.begin().base == at("third")


@needs_write_protection
def test_tracked_process_is_unaffected_by_the_death_of_the_tracker(target: StatementRunner, claims: Path) -> None:
    place = target.do("result = area(64); write(result, range(64))")
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom crckpt.host import proc\n"
        "from crckpt.tracking.tracker import Claims\nfrom crckpt.tracking.tracker import Tracker\n"
        "from crckpt.tracking.uffd_wp import UffdWp\n"
        "tracker = Tracker(proc.read_process(int(sys.argv[1])), UffdWp(), Claims(Path(sys.argv[2])))\n"
        "tracker.begin(); print('ready', flush=True); sys.stdin.read()\n"
    )
    words = (sys.executable, "-c", program, str(target.pid), str(claims))
    with running(*words, cwd=PROJECT) as dying:
        reset(target.pid)
        dying.kill()
        dying.wait()
    assert target.do("write(result, [1])") == place
    with tracking(target.pid, UffdWp(), claims) as tracker:
        assert tracker.begin() == DumpBasis(None, FIRST_DUMP_REASON, tracks=True, whole=())
        assert pages(tracker, target.pid, place) == set(range(64)), "every page reads as written"
