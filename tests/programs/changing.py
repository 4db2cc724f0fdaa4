"""A program that changes on request, to compare `crckpt show` and `crckpt diff` with its own facts.

It has a text in memory, a file at an offset, a deleted file, two listening sockets and two threads. When WORKDIR/change
appears it opens and closes files and sockets, forks a child, ends a thread and starts another, writes pages, and maps
and unmaps memory. Its facts say where everything is.
"""

import ctypes
import mmap
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Final, NoReturn

from selfcheck import PAGE, Program, fork

PAGES: Final = 64
_OFFSET: Final = 4321


class ChangingProgram:
    """What the program has, before and after its change."""

    def __init__(self, program: Program) -> None:
        """Set everything up."""
        self.program = program
        self.workdir = program.workdir
        self.end_of_thread = threading.Event()
        self.pages = self._mapped("pages", 4 * PAGES)
        for page in range(PAGES):
            self.pages[page * PAGE : page * PAGE + 8] = b"page %03d" % page
        self.going = self._mapped("going", PAGES)
        self.going[: 5 * PAGE] = b"g" * 5 * PAGE
        self.shared = mmap.mmap(-1, PAGES * PAGE)
        self.shared[: 6 * PAGE] = b"s" * 6 * PAGE
        # The middle of a memory file: its sixth page is the second of the map.
        memfd = os.memfd_create("window")
        os.ftruncate(memfd, 8 * PAGE)
        os.pwrite(memfd, b"known-%05d-window" % PAGE, 5 * PAGE)
        self.window = mmap.mmap(memfd, 2 * PAGE, offset=4 * PAGE)
        # It crosses the border of two pages.
        self.text = mmap.mmap(-1, 8 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.text[PAGE - 9 : PAGE + 9] = b"known-%07d-text" % PAGE
        self._open()
        self.leaving = threading.Thread(target=self.end_of_thread.wait)
        self.leaving.start()
        self.changed = False
        self._say()

    def _mapped(self, name: str, pages: int) -> mmap.mmap:
        """Map a file privately: the kernel joins it with no other map, and unwritten pages are the file's."""
        path = self.workdir / name
        path.write_bytes(b"file" * (pages * PAGE // 4))
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def _open(self) -> None:
        (self.workdir / "data").write_bytes(b"0123456789" * 1000)
        self.data = os.open(self.workdir / "data", os.O_RDONLY)
        os.lseek(self.data, _OFFSET, os.SEEK_SET)
        self.log = os.open(self.workdir / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.gone = os.open(self.workdir / "gone", os.O_RDWR | os.O_CREAT)
        os.write(self.gone, b"x" * 777)
        (self.workdir / "gone").unlink()
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(self.workdir / "listen.sock"))
        self.unix.listen()
        self.tcp = socket.create_server(("127.0.0.1", 0))

    def step(self) -> None:
        """Change once, on request."""
        if self.changed or not (self.workdir / "change").exists():
            return
        os.close(self.log)
        self.unix.close()
        self.opened = os.open(self.workdir / "opened", os.O_RDWR | os.O_CREAT)
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        for page in range(7):
            self.pages[page * PAGE + 100 : page * PAGE + 107] = b"changed"
        for page in range(PAGES, PAGES + 11):
            self.pages[page * PAGE] = 1
        # The same bytes again: nothing that a diff may count.
        for page in range(20, 25):
            self.pages[page * PAGE : page * PAGE + 8] = b"page %03d" % page
        self.going.close()
        self.shared[: 2 * PAGE] = b"S" * 2 * PAGE
        self.coming = self._mapped("coming", PAGES)
        self.coming[: 3 * PAGE] = b"c" * 3 * PAGE
        self.end_of_thread.set()
        self.leaving.join()
        self.child = fork(_wait)
        waiting = threading.Thread(target=threading.Event().wait, daemon=True)
        waiting.start()
        self.program.facts["came"] = waiting.native_id
        self.changed = True
        self._say()

    def _say(self) -> None:
        facts = self.program.facts
        facts["text"] = _address(self.text) + PAGE - 9
        facts["pages"] = _address(self.pages)
        facts["window"] = _address(self.window) + PAGE
        facts["shared"] = _address(self.shared)
        fds = {"data": self.data, "log": self.log, "gone": self.gone}
        facts["fds"] = fds
        facts["port"] = self.tcp.getsockname()[1]
        if not self.changed:
            facts["going"] = _address(self.going)
            facts["left"] = self.leaving.native_id
            fds |= {"unix": self.unix.fileno(), "tcp": self.tcp.fileno()}
            return
        facts["coming"] = _address(self.coming)
        facts["child"] = self.child
        fds |= {"opened": self.opened, "udp": self.udp.fileno()}


def _address(area: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


def _wait() -> NoReturn:
    while True:
        threading.Event().wait()


program = Program(Path(sys.argv[1]))
program.run(ChangingProgram(program).step)
