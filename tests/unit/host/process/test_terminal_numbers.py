"""The numbers of real pseudoterminals: CRIU opens 32 at most until one has the number that it needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from other_user import as_user

from crckpt.errors import HostCannot
from crckpt.host.proc.fd import read_targets
from crckpt.host.process.terminals import lower_numbers_held, read_used_numbers
from crckpt.host.syscalls import own_process
from crckpt.host.syscalls.own_process import mount

OPENED_BY_CRIU = 32
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000


@contextmanager
def opened_terminals(count: int) -> Iterator[list[int]]:
    """Terminals with the lowest numbers that are free. Both ends of each are open."""
    opened: list[tuple[int, int]] = []
    try:
        opened.extend(os.openpty() for _ in range(count))
        yield [int(Path(os.ttyname(slave)).name) for _, slave in opened]
    finally:
        for ends in opened:
            for end in ends:
                os.close(end)


def count_opened_until(number: int) -> int:
    """How many terminals a program opens until one has this number, as CRIU does; 0 if it does not get it."""
    with opened_terminals(OPENED_BY_CRIU) as numbers:
        return numbers.index(number) + 1 if number in numbers else 0


def own_descriptors() -> set[int]:
    return {fd for fd, _ in read_targets(os.getpid())}


@pytest.fixture
def high_number() -> int:
    """A free number with more free ones below it than CRIU opens."""
    return 60 + max(read_used_numbers(), default=0)


def test_numbers_of_terminals_in_use_are_found() -> None:
    with opened_terminals(2) as numbers:
        assert read_used_numbers() >= set(numbers)


def test_terminals_are_held_until_criu_can_reach_a_high_number(high_number: int) -> None:
    assert count_opened_until(high_number) == 0
    with lower_numbers_held(frozenset({high_number})):
        # No more are held than must be: other programs need terminals, too, and may open some meanwhile.
        assert OPENED_BY_CRIU - 8 <= count_opened_until(high_number) <= OPENED_BY_CRIU
    assert count_opened_until(high_number) == 0


def test_terminal_number_that_the_tree_needs_is_left_free(high_number: int) -> None:
    needed = {high_number, high_number - OPENED_BY_CRIU - 1}
    with lower_numbers_held(frozenset(needed)):
        assert not read_used_numbers() & needed


@pytest.mark.parametrize("needed", [frozenset[int](), frozenset({0, 31})])
def test_no_terminal_is_held_for_low_numbers(needed: frozenset[int]) -> None:
    before = own_descriptors()
    with lower_numbers_held(needed, "/nonexistent"):
        assert own_descriptors() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount terminals")
def test_host_without_free_terminals_is_reported(tmp_path: Path) -> None:
    """The kernel reports ENOSPC, as for a full disk."""

    def check() -> None:
        own_process.unshare(CLONE_NEWNS)
        mount("", "/", "", MS_REC | MS_PRIVATE)
        mount("devpts", str(tmp_path), "devpts", 0, "newinstance,ptmxmode=0666,max=5")
        with lower_numbers_held(frozenset({35}), f"{tmp_path}/ptmx"):
            assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3", "ptmx"]
        with pytest.raises(HostCannot, match="all pseudoterminals of this host are in use"):
            hold(60, f"{tmp_path}/ptmx")
        assert [path.name for path in tmp_path.iterdir()] == ["ptmx"]

    as_user(check, 0)


def hold(number: int, multiplexer: str) -> None:
    with lower_numbers_held(frozenset({number}), multiplexer):
        pass


def test_failure_to_open_terminals_leaves_none_open(high_number: int) -> None:
    before = own_descriptors()
    with pytest.raises(OSError, match="Inappropriate ioctl"), lower_numbers_held(frozenset({high_number}), "/dev/null"):
        pass
    assert own_descriptors() == before
