"""Pages that still have the mark of a missing page, and the process of each userfaultfd."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from trees import PYTHON

from crckpt.helper.calls.taken_userfaultfd import take_pinned, unpin
from crckpt.host import proc
from crckpt.host.syscalls.userfaultfd import Kind, MissingPages, has_guard_pages
from crckpt.model import PAGE_SIZE
from crckpt.ops.lazy.family import Family
from crckpt.ops.lazy.page_marks import MarksFinder, PageMarks

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="root alone may supply missing pages of others"),
    pytest.mark.skipif(not has_guard_pages(), reason="this kernel has no guard pages, so no pages are marked"),
]
PAGES = 16
# It says where its memory is, and makes the calls of madvise that it reads: page, pages, advice. "fork" forks.
PROGRAM = f"""
import ctypes, mmap, os, signal, sys
memory = mmap.mmap(-1, {PAGES * PAGE_SIZE}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
madvise = ctypes.CDLL(None).madvise
madvise.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
print(at, flush=True)
for line in sys.stdin:
    if line == "fork\\n":
        child = os.fork()
        if child == 0:
            signal.pause()
        print(child, flush=True)
    else:
        page, pages, advice = map(int, line.split())
        print(madvise(at + page * {PAGE_SIZE}, pages * {PAGE_SIZE}, advice), flush=True)
"""
# It has a userfaultfd of its own, which never supplies what is marked as missing.
UNANSWERING_PROGRAM = f"""
import ctypes, fcntl, mmap, os, struct, sys
descriptor = ctypes.CDLL(None).syscall(323, os.O_CLOEXEC)
memory = mmap.mmap(-1, {PAGES * PAGE_SIZE}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
fcntl.ioctl(descriptor, 0xC018AA3F, struct.pack("QQQ", 0xAA, 1 | 1 << 13, 0))  # UFFDIO_API
fcntl.ioctl(descriptor, 0xC020AA00, struct.pack("QQQQ", at, {PAGES * PAGE_SIZE}, 3, 0))  # UFFDIO_REGISTER
fcntl.ioctl(descriptor, 0xC018AA06, struct.pack("QQQ", at, {PAGES * PAGE_SIZE}, 1))  # UFFDIO_WRITEPROTECT
print(at, flush=True)
sys.stdin.read()
"""
PROGRAM_WITH_AN_UNANSWERING_CHILD = f"""
import os, sys
if os.fork() == 0:
    {"    ".join(UNANSWERING_PROGRAM.strip().splitlines(keepends=True))}
else:
    sys.stdin.read()
"""
GUARD_INSTALL, GUARD_REMOVE = 102, 103


class Program:
    """The program, running."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        identity = proc.identify(process.pid)
        assert identity is not None
        self.identity = identity
        self.address = self.read()

    def read(self) -> int:
        """Read a line of the program's output."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def say(self, line: str) -> None:
        """Send the program a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    @property
    def memory(self) -> tuple[int, int]:
        """The address of the program's memory."""
        return self.address, self.address + PAGES * PAGE_SIZE


@contextmanager
def running(code: str) -> Iterator[Program]:
    """Run a program."""
    pipe = subprocess.PIPE
    words = (PYTHON, "-c", code)
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        try:
            yield Program(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def marked(program: Program) -> Iterator[tuple[MissingPages, PageMarks]]:
    """Mark all memory of the program as missing."""
    missing, context = take_pinned(program.identity, os.O_CLOEXEC | os.O_NONBLOCK)
    marks = PageMarks(program.pid)
    try:
        missing.register(*program.memory)
        marks.set_on(missing, [program.memory])
        yield missing, marks
    finally:
        unpin(program.identity, context)
        missing.close()
        marks.close()


def find(program: Program, marks: PageMarks) -> list[tuple[int, int]]:
    """Find the marked pages: numbers of the first one and of the one after the last."""
    address = program.address
    return [tuple((each - address) // PAGE_SIZE for each in pages) for pages in marks.find(*program.memory)]  # type: ignore[misc]


def test_page_that_the_program_changed_has_no_mark() -> None:
    with running(PROGRAM) as program, marked(program) as (missing, marks):
        assert find(program, marks) == [(0, PAGES)]
        for page, pages, advice in ((2, 2, GUARD_INSTALL), (2, 1, GUARD_REMOVE), (8, 1, GUARD_INSTALL)):
            program.say(f"{page} {pages} {advice}")
            assert program.read() == 0
        assert find(program, marks) == [(0, 2), (4, 8), (9, PAGES)]
        content = ctypes.create_string_buffer(2 * PAGE_SIZE)
        source = -(-ctypes.addressof(content) // PAGE_SIZE) * PAGE_SIZE
        assert missing.copy(program.address, source, PAGE_SIZE) == (PAGE_SIZE, 0)
        # A page whose guard the program removed gets zeros. Marks and other guard pages stay.
        assert [missing.zero(program.address + page * PAGE_SIZE) for page in (1, 2, 3)] == [False, True, False]
        assert find(program, marks) == [(1, 2), (4, 8), (9, PAGES)]


def test_process_of_a_fork_is_found() -> None:
    with running(PROGRAM) as program, marked(program) as (missing, _):
        finder = MarksFinder(Family.of([program.identity]))
        program.say("fork")
        select.select([missing.descriptor], [], [], 30)
        (message,) = missing.read()
        assert message.kind is Kind.FORK
        child, pid = MissingPages(message.first, is_new=False), program.read()
        finder.ask((program.memory,))
        select.select([child.descriptor], [], [], 30)
        (message,) = child.read()
        marks = finder.answer(message.third, message.second)
        assert marks is not None
        # The userfaultfd is that of the child, so it shows changes of the child's memory.
        child.zero(program.address)
        child.mark(program.address, program.address + PAGE_SIZE, is_set=False)
        assert find(program, marks) == [(1, PAGES)]
        marks.close()
        os.kill(pid, signal.SIGKILL)
        child.close()


def test_child_that_never_answers_about_its_pages_is_asked_once() -> None:
    """The child waits for its own userfaultfd, and so does the thread that queries it."""
    with running(PROGRAM_WITH_AN_UNANSWERING_CHILD) as program:
        finder, threads = MarksFinder(Family.of([program.identity])), threading.active_count()
        for _ in range(3):
            finder.ask((program.memory,))
        assert threading.active_count() == threads + 1


def test_processes_outside_the_tree_are_not_asked_about_pages() -> None:
    """Each foreign process could block a thread for 0.2 s, even with the same user, program and addresses."""
    with running(PROGRAM) as program, running(UNANSWERING_PROGRAM) as other:
        finder, threads = MarksFinder(Family.of([program.identity])), threading.active_count()
        finder.ask((other.memory,))
        assert threading.active_count() == threads
