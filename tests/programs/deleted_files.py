"""Files that are open but have no name: a small one, one of 8 MB, a mapped one, and one with another link.

And a directory with a file, a named pipe and a socket in it, another directory to work in, all removed.
"""

import mmap
import os
import socket
import struct
import sys
from pathlib import Path

from selfcheck import PAGE, Program, digest, pattern

SIZES = {"small": 1000, "large": 8 << 20, "linked": 50_000, "mapped": 16 * PAGE}
AT = 123


def main() -> None:
    """Count in the small file; on request compare all of them from beginning to end."""
    workdir = Path(sys.argv[1])
    files = {name: _without_name(workdir, name) for name in SIZES}
    mapped = mmap.mmap(files["mapped"], SIZES["mapped"])
    directory = _Directory(workdir / "scratch")
    program = Program(workdir)

    def step() -> None:
        os.pwrite(files["small"], struct.pack("<Q", program.counter), 0)
        mapped[:8] = struct.pack("<Q", program.counter)
        program.facts["links"] = [os.fstat(fd).st_nlink for fd in files.values()]
        program.facts["directory"] = directory.facts()
        program.facts["offsets"] = [os.lseek(fd, 0, os.SEEK_CUR) for fd in files.values()]
        for name in ("small", "mapped"):
            (found,) = struct.unpack("<Q", os.pread(files[name], 8, 0))
            program.expect(found == program.counter, f"{name} holds {found}, not {program.counter}")

    def verify() -> bool:
        for name, fd in files.items():
            found = os.pread(fd, SIZES[name] + 1, 8)
            program.expect(digest(found) == digest(pattern(name, SIZES[name])[8:]), f"{name} has other content")
        directory.verify(program)
        return True

    program.run(step, verify)


class _Directory:
    """A removed directory, and the file and the pipe that were in it."""

    def __init__(self, path: Path) -> None:
        (path / "inner").mkdir(parents=True)
        self._numbers = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2)]
        self._path = path
        os.chdir(path)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind("socket")
        self._socket.listen()
        os.chdir(path / "inner")
        os.mkfifo(path / "pipe")
        self._pipe = os.open(path / "pipe", os.O_RDWR)
        (path / "file").write_bytes(b"content")
        self._file = os.open(path / "file", os.O_RDONLY)
        path.chmod(0o2750)
        for name in ("socket", "pipe", "file"):
            (path / name).unlink()
        (path / "inner").rmdir()
        path.rmdir()

    def facts(self) -> list[object]:
        """Facts about the directories, of the kernel."""
        one, other = (os.fstat(number) for number in self._numbers)
        current = os.stat(".")  # noqa: PTH116
        return [
            *(oct(one.st_mode), one.st_nlink, one.st_ino == other.st_ino, oct(current.st_mode), current.st_nlink),
            *(self._path.exists(), self._socket.getsockname()),
        ]

    def verify(self, program: Program) -> None:
        """Check the contents of the file and the pipe."""
        os.write(self._pipe, b"through")
        program.expect(os.read(self._pipe, 99) == b"through", "the pipe is no pipe")
        program.expect(os.pread(self._file, 99, 0) == b"content", "the file has other content")


def _without_name(workdir: Path, name: str) -> int:
    path = workdir / f"{name}.bin"
    path.write_bytes(pattern(name, SIZES[name]))
    fd = os.open(path, os.O_RDWR)
    os.lseek(fd, AT, os.SEEK_SET)
    if name == "linked":
        (workdir / "other-name.bin").hardlink_to(path)
    path.unlink()
    return fd


if __name__ == "__main__":
    main()
