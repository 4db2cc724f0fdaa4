"""Epolls whose files were closed, or are not open where a restore would make the epoll."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from small_programs import WAIT_STATEMENTS, program

from crckpt.host import proc
from crckpt.host.observe import epolls
from crckpt.host.observe.epolls import LostEpoll, find_lost_epolls, find_slow_epolls
from crckpt.host.proc.fd import read_targets


def find_lost(descriptors: tuple[proc.Descriptor, ...], numbers: dict[int, int]) -> tuple[LostEpoll, ...]:
    lost, unexamined = find_lost_epolls(descriptors, numbers)
    assert unexamined == ()
    return lost


@contextmanager
def own_descriptors() -> Iterator[None]:
    """Afterwards, close what was opened meanwhile."""
    before = {fd for fd, _ in read_targets(os.getpid())}
    try:
        yield
    finally:
        for fd, _ in read_targets(os.getpid()):
            if fd not in before:
                os.close(fd)


def test_epoll_watching_a_closed_file_is_lost() -> None:
    """The file may still be open in another place, such as the queue of a socket."""
    left, right = socket.socketpair()
    watched = os.eventfd(0)
    with left, right, select.epoll() as epoll:
        epoll.register(watched)
        assert find_lost(proc.descriptors(os.getpid()), {}) == ()
        socket.send_fds(left, [b"."], [watched])
        os.close(watched)
        (found,) = find_lost(proc.descriptors(os.getpid()), {})
        assert found.fd == epoll.fileno()


def test_epoll_whose_file_has_another_number_is_kept() -> None:
    watched = os.eventfd(0)
    with select.epoll() as epoll:
        epoll.register(watched)
        kept = os.dup(watched)
        os.close(watched)
        assert find_lost(proc.descriptors(os.getpid()), {}) == ()
        os.close(kept)


def two_eventfds() -> tuple[int, int]:
    return os.eventfd(0), os.eventfd(0)


def two_pipes() -> tuple[int, int]:
    (watched, _), (other, _) = os.pipe(), os.pipe()
    return watched, other


def two_sockets() -> tuple[int, int]:
    return socket.socket().detach(), socket.socket().detach()


@pytest.mark.parametrize("open_two", [two_eventfds, two_pipes, two_sockets])
def test_epoll_of_a_closed_file_with_a_reused_number_is_lost(open_two: Callable[[], tuple[int, int]]) -> None:
    """All eventfds share an inode; each socket has its own."""
    left, right = socket.socketpair()
    with own_descriptors(), left, right, select.epoll() as epoll:
        watched, other = open_two()
        epoll.register(watched)
        socket.send_fds(left, [b"."], [watched])
        os.dup2(other, watched)
        (found,) = find_lost(proc.descriptors(os.getpid()), {})
        assert found.fd == epoll.fileno()
        # Now the epoll watches both files by one number.
        epoll.register(watched)
        (found,) = find_lost(proc.descriptors(os.getpid()), {})
        assert found.fd == epoll.fileno()


def test_epoll_with_two_files_added_by_one_number_is_kept() -> None:
    with own_descriptors(), select.epoll() as epoll:
        watched, other = two_eventfds()
        epoll.register(watched)
        os.dup(watched)
        os.dup2(other, watched)
        epoll.register(watched)
        assert find_lost(proc.descriptors(os.getpid()), {}) == ()


def test_epoll_that_stops_watching_during_the_check_is_not_reported() -> None:
    """The server is not frozen while crckpt reads its descriptors."""
    with own_descriptors(), select.epoll() as epoll:
        watched, other = two_eventfds()
        epoll.register(watched)
        read_before = proc.descriptors(os.getpid())
        os.dup2(other, watched)
        assert find_lost(read_before, {}) == ()
        os.close(watched)
        assert find_lost(read_before, {}) == ()
        without = tuple(found for found in read_before if found.fd != watched)
        assert find_lost(without, {}) == ()
        epoll.close()
        assert find_lost(without, {}) == ()


def test_epoll_is_lost_if_the_process_that_creates_it_lacks_the_watched_file() -> None:
    """CRIU creates an epoll in the process with the lowest PID.

    The numbers of watched files are those of the first process that has the file.
    """
    with own_descriptors(), select.epoll() as epoll:
        watched, other = os.eventfd(0), os.eventfd(0)
        epoll.register(watched)
        ours = proc.descriptors(os.getpid())
        for inherited, is_lost in ((watched, False), (other, True)):
            with program(WAIT_STATEMENTS, epoll.fileno(), inherited) as child:
                both = (*ours, *proc.descriptors(child.pid))
                assert find_lost(both, {}) == ()
                found = find_lost(both, {child.pid: 1, os.getpid(): 2})
                assert found == ((LostEpoll(os.getpid(), epoll.fileno(), child.pid),) if is_lost else ())
        # The child has another file by that number.
        with program(f"os.dup2({other}, {watched})\n{WAIT_STATEMENTS}", epoll.fileno(), watched, other) as child:
            assert find_lost((*ours, *proc.descriptors(child.pid)), {child.pid: 1, os.getpid(): 2})


def test_epoll_of_one_file_by_two_numbers_is_lost_once_one_is_closed() -> None:
    """CRIU would add the file twice by the number that is still open."""
    with own_descriptors(), select.epoll() as epoll:
        watched = os.eventfd(0)
        again = os.dup(watched)
        epoll.register(watched)
        epoll.register(again)
        assert find_lost(proc.descriptors(os.getpid()), {}) == ()
        os.close(watched)
        assert find_lost(proc.descriptors(os.getpid()), {}) == (LostEpoll(os.getpid(), epoll.fileno()),)


def test_epoll_of_a_file_that_an_earlier_process_has_by_another_number_is_lost() -> None:
    """CRIU looks for the number only in the first process that has the file."""
    with own_descriptors():
        watched = os.eventfd(0)
        code = (
            f"import select; epoll = select.epoll(); watched = os.dup({watched}); epoll.register(watched)\n"
            f"os.close(watched)\n{WAIT_STATEMENTS}"
        )
        with program(code, watched) as child:
            theirs = proc.descriptors(child.pid)
            assert find_lost(theirs, {}) == ()
            ((pid, _, builder),) = (
                (found.pid, found.fd, found.builder)
                for found in find_lost((*proc.descriptors(os.getpid()), *theirs), {})
            )
            assert (pid, builder) == (child.pid, 0)


def test_epolls_with_too_many_files_take_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel walks through all files of an epoll for each comparison, which takes seconds here."""
    monkeypatch.setattr(epolls, "_COMPARES_FOR_S", 0.05)
    with own_descriptors(), select.epoll() as epoll, select.epoll() as other:
        for _ in range(10_000):
            watched = os.eventfd(0)
            epoll.register(watched)
            other.register(watched)
        descriptors = proc.descriptors(os.getpid())
        began = time.monotonic()
        _, unexamined = find_lost_epolls(descriptors, {})
        assert time.monotonic() - began < 1
        assert [one.fd for one in unexamined] == [epoll.fileno(), other.fileno()]


def test_epolls_that_criu_takes_minutes_to_save_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time grows with the square of the number of files in an epoll, whatever number of descriptors it has."""
    monkeypatch.setattr(epolls, "_MOST_COMPARISONS", 2 * 100**2)
    with own_descriptors(), select.epoll() as epoll, select.epoll() as other, select.epoll() as third:
        for _ in range(100):
            watched = os.eventfd(0)
            for each in (epoll, other):
                each.register(watched)
        for _ in range(10):
            os.dup(epoll.fileno())
        assert find_slow_epolls(proc.descriptors(os.getpid())) is None
        third.register(os.eventfd(0))
        assert find_slow_epolls(proc.descriptors(os.getpid())) is not None
        epoll.register(os.eventfd(0))
        largest, count = find_slow_epolls(proc.descriptors(os.getpid())) or (None, 0)
        assert (largest and largest.fd, count) == (epoll.fileno(), 202)
