"""A counter that uses a file system of its user's: `on_silent_fuse.py WORKDIR KIND`.

The file system is silent_fuse.py on WORKDIR/mount: it stops answering once WORKDIR/silent exists.
"""

import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from selfcheck import Program

PAGE: Final = mmap.PAGESIZE


def main() -> None:
    """Mount the file system, use it and count."""
    workdir, kind = Path(sys.argv[1]), sys.argv[2]
    (workdir / "mount").mkdir()
    outside(workdir)
    held = KINDS[kind](workdir / "mount")
    program = Program(workdir)

    def step() -> None:
        program.facts["held"] = held is not None

    program.run(step)


def outside(workdir: Path) -> None:
    """Start the file system as another process's child, and wait until it is mounted."""
    server = (sys.executable, str(Path(__file__).with_name("silent_fuse.py")), str(workdir / "mount"))
    words = (*server, str(workdir / "silent"), str(workdir / "server"))
    with subprocess.Popen(
        ["setsid", "--fork", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "mounted\n"


def opened(mount: Path) -> int:
    """Open a file."""
    return os.open(mount / "file", os.O_RDONLY)


def mapped(mount: Path) -> mmap.mmap:
    """Map a file privately, without using a page."""
    with (mount / "file").open("rb") as file:
        return mmap.mmap(file.fileno(), 4 * PAGE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)


def directory(mount: Path) -> bool:
    """Change the working directory."""
    os.chdir(mount)
    return True


def executing(mount: Path, user: int = 0) -> int:
    """Start a process of this user that executes a program once the file system is silent, and closes a file then."""
    os.open(mount / "file", os.O_RDONLY | os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.setresuid(user, user, user)
        while not mount.with_name("silent").exists():
            time.sleep(0.01)
        os.execl("/bin/true", "true")  # noqa: S606 a program of its own, without a shell
    return child


def executing_as_nobody(mount: Path) -> int:
    """As `executing`, of another user."""
    return executing(mount, 65534)


def sent(mount: Path) -> tuple[socket.socket, ...]:
    """Let a file wait in a message of a socket."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    file = os.open(mount / "file", os.O_RDONLY)
    socket.send_fds(ends[0], [b"x"], [file])
    os.close(file)
    return ends


_KINDS: Final[tuple[Callable[[Path], object], ...]] = (
    *(opened, mapped, directory, executing, executing_as_nobody, sent),
)
KINDS: Final = {kind.__name__: kind for kind in _KINDS}


if __name__ == "__main__":
    main()
