"""The oracle detects wrong pages when any one guard is removed.

A guard that cannot be missed on this kernel, because the kernel got one of its own, is tested for what it does
(tests/unit/tracking/preload/test_guards.py).
"""

from __future__ import annotations

import errno
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from oracle import EVERY_PAGE_IS_NEW, MISSING_PAGE, NO_RSEQ, Oracle, churning, compile_program
from target_processes import preload_library, reset

from crckpt.helper.calls.remote_calls import take_userfaultfds
from crckpt.host import proc
from crckpt.host.syscalls import memory_trials, pagemap
from crckpt.host.syscalls.userfaultfd import WriteProtection
from crckpt.tracking import refusals
from crckpt.tracking.dump_basis import RoundBase
from crckpt.tracking.preload import library
from crckpt.tracking.soft_dirty import SoftDirty
from crckpt.tracking.tracker import Claims, Tracker
from crckpt.tracking.uffd_wp import UffdWp

SEED: Final = 99
CHANGES_BETWEEN_DUMPS: Final = 5000
ROUNDS: Final = 20
_TRIES: Final = 10
"""A wrong page comes up in one of the first few."""
WRONG_PAGE_MESSAGES: Final = rf"{MISSING_PAGE}|wrong pages"


@pytest.fixture
def oracle(churn: Path, criu: Path, tmp_path: Path) -> Iterator[Oracle]:
    with churning(churn, tmp_path / "work", SEED, CHANGES_BETWEEN_DUMPS) as pid:
        oracle = Oracle(criu, pid, tmp_path / "work")
        yield oracle
        oracle.tracker.close()


@pytest.fixture
def oracle_of_write_protection(oracle: Oracle) -> Oracle:
    if oracle.tracker.name != UffdWp.name:
        pytest.skip("this is a trap of write protection; here it is the kernel's own bits that track")
    return oracle


def some_rounds(oracle: Oracle, between: Callable[[], object]) -> None:
    for _ in range(ROUNDS):
        oracle.dump_round()
        between()


def is_caught(oracle: Oracle, between: Callable[[], object] = lambda: None) -> None:
    """Check that the oracle finds wrong pages in some rounds: on a busy machine the tree writes little in one round."""
    for _ in range(ROUNDS):
        try:
            oracle.dump_round()
            between()
        except AssertionError as error:
            # If the tree has written all pages, none of them can be wrong until the next round.
            if EVERY_PAGE_IS_NEW in str(error):
                continue
            if re.search(WRONG_PAGE_MESSAGES, str(error)) is None:
                raise
            return
    pytest.fail("no page was wrong")


@pytest.fixture(params=["holes are marked", "what is not registered is clean"])
def library_without_a_guard(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A preload library that lacks one guard."""
    old, new = {
        # Without this guard, a mark looks like a page that was swapped out, and dropped pages come back.
        "holes are marked": ("scan.return_mask = wanted, scan.vec = (uintptr_t)regions, scan.vec_len = AT_ONCE;", ""),
        "what is not registered is clean": ("->vec)[i].categories |= SOFT_DIRTY;", "->vec)[i].categories |= 0;"),
    }[request.param]
    return preload_library(tmp_path, old, new)


def test_oracle_detects_a_preload_library_without_its_guard(
    oracle_of_write_protection: Oracle, library_without_a_guard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The guard is switched off by a patch, because no argument does it.
    monkeypatch.setattr(library, "LIBRARY", library_without_a_guard)
    is_caught(oracle_of_write_protection)


def test_oracle_detects_tracked_mappings_of_files(
    oracle_of_write_protection: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dropped write over a file leaves a mark, and the page looks unchanged. Two guards prevent this."""

    def private(pid: int, *, with_room: bool = False) -> tuple[pagemap.AddressRange, ...]:
        found = []
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            addresses, rights, _, _, inode, *_ = line.split(maxsplit=5)
            if rights[3] == "p" and (inode != "0" or not line.endswith("]")):
                found.append(pagemap.AddressRange(*(int(part, 16) for part in addresses.split("-"))))
        return tuple(found)

    # The guard is switched off by a patch, because no argument does it.
    monkeypatch.setattr(pagemap, "private_anonymous", private)
    monkeypatch.setattr(pagemap, "others", lambda _: ())
    is_caught(oracle_of_write_protection)


def test_oracle_detects_a_reset_without_a_commit(oracle: Oracle, tmp_path: Path) -> None:
    """A dump resets the bits and is discarded. The next one counts from the dump before it."""
    assert oracle.dump_round() == ""
    assert oracle.dump_round() == "round-1"
    is_caught(oracle, lambda: oracle.tracker.commit(RoundBase(tmp_path / "work/round-1")))


def test_oracle_detects_wrong_pages_if_a_second_tracker_resets_the_bits(
    oracle: Oracle, criu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second tracker resets the bits that the first one needs. With write protection two guards prevent this."""
    root = proc.read_process(oracle.pid)
    assert root is not None
    method = UffdWp() if oracle.tracker.name == UffdWp.name else SoftDirty()
    # The guard is switched off in both trackers by a patch, because no argument does it.
    monkeypatch.setattr(Claims, "claim", lambda *_: True)
    second = Tracker(root, method, Claims(tmp_path / "others"))
    oracle.dump_round()
    if method.name == UffdWp.name:
        began = second.begin()
        why = f"PID {oracle.pid}: {refusals.FOREIGN_USERFAULTFD}"
        assert (began.tracks, began.why) == (False, why), "the kernel tells"
        monkeypatch.setattr(Tracker, "_find_spoiler", lambda _: "")
    is_caught(oracle, lambda: oracle.dump_round(tracker=second))
    second.close()


def _take_userfaultfd(pid: int) -> int:
    """Take one: a program that waits for a processor cannot be entered at once."""
    for _ in range(_TRIES):
        (taken,) = take_userfaultfds([pid])
        if taken.descriptor >= 0:
            return taken.descriptor
    raise AssertionError(taken.why)


def test_oracle_detects_wrong_pages_if_another_userfaultfd_resets_the_bits(
    churn: Path, criu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of another userfaultfd can reset the bits at any time."""
    register = WriteProtection.register

    def heedless(self: WriteProtection, found: pagemap.AddressRange, *, is_new: bool = True) -> None:
        try:
            register(self, found, is_new=is_new)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise

    with churning(churn, tmp_path / "work", SEED, CHANGES_BETWEEN_DUMPS) as pid:
        if memory_trials.tracks_by_soft_dirty():
            pytest.skip("this is a trap of write protection; here it is the kernel's own bits that track")
        own = WriteProtection(_take_userfaultfd(pid))
        for one in pagemap.private_anonymous(pid):
            with suppress(OSError):  # the mapping has been removed
                own.register(one)
        # The guard is switched off by a patch, because no argument does it.
        monkeypatch.setattr(WriteProtection, "register", heedless)
        oracle = Oracle(criu, pid, tmp_path / "work")
        with pytest.raises(AssertionError, match=WRONG_PAGE_MESSAGES):
            some_rounds(oracle, lambda: reset(pid))
        oracle.tracker.close()
        own.close()


@contextmanager
def device(program: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    pipe = subprocess.PIPE
    argv = [str(program)]
    process = subprocess.Popen(argv, env=NO_RSEQ, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, cwd="/")
    try:
        assert process.stdout is not None
        output = process.stdout.readline()
        if not output:
            assert process.stderr is not None
            pytest.skip(f"nothing here writes memory as a device does: {process.stderr.read().decode().strip()}")
        yield int(output.split()[0]), process
    finally:
        process.kill()
        process.communicate()


def written_by(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(content)
    assert process.stdout.readline() == f"{len(content)}\n".encode()


def test_oracle_detects_pages_that_a_device_has_written(
    criu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device writes pinned pages, which the page tables do not show. The process has no descriptor of its ring."""
    with device(compile_program(tmp_path, "device")) as (pid, process):
        (tmp_path / "work").mkdir()
        oracle = Oracle(criu, pid, tmp_path / "work")
        began = oracle.tracker.begin()
        why = f"PID {pid} has 64 KiB of memory pinned for a device; crckpt cannot see what the device writes"
        assert (began.base, began.tracks, began.why) == (None, False, why)
        with monkeypatch.context() as patch:
            # The guard is switched off by a patch, because no argument does it.
            patch.setattr(refusals, "find_unseen_writer", lambda _: "")
            assert oracle.dump_round() == ""
            written_by(process, b"written by the device")
            with pytest.raises(AssertionError, match="1 wrong pages"):
                oracle.dump_round()
        written_by(process, b"and again")
        assert oracle.dump_round() == "", "what is said to be full is right"
        oracle.tracker.close()
