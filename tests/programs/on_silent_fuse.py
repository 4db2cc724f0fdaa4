"""A counter that uses a file system of its user's: `on_silent_fuse.py WORKDIR KIND`.

The file system is silent_fuse.py on WORKDIR/mount: it stops answering once WORKDIR/silent exists.
"""

import mmap
import os
import subprocess
import sys
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


KINDS: Final[dict[str, Callable[[Path], object]]] = {kind.__name__: kind for kind in (opened, mapped, directory)}


if __name__ == "__main__":
    main()
