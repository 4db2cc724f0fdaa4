"""A file, a directory or a socket in `places`, held open; its holder writes to the file and examines the others."""

import os
import socket
import struct
import sys
from pathlib import Path

from selfcheck import Program


def main() -> None:
    """Count, in the opened object if it is a file."""
    workdir, kind = Path(sys.argv[1]), sys.argv[2]
    places = workdir / "places"
    places.mkdir()
    held = _held(places, kind)
    program = Program(workdir)

    def step() -> None:
        if kind == "file":
            os.pwrite(held, struct.pack("<Q", program.counter), 0)
        elif kind == "directory":
            program.expect(os.fstat(held).st_uid == os.getuid(), "another directory")
        elif kind == "working-directory":
            program.expect(Path.cwd().stat().st_uid == os.getuid(), "another working directory")

    program.run(step)


def _held(places: Path, kind: str) -> int:
    if kind == "file":
        return os.open(places / "thing", os.O_RDWR | os.O_CREAT, 0o600)
    if kind == "socket":
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(str(places / "thing"))
        bound.listen()
        return bound.detach()
    (places / "thing").mkdir()
    if kind == "working-directory":
        os.chdir(places / "thing")
        return -1
    return os.open(places / "thing", os.O_RDONLY | os.O_DIRECTORY)


if __name__ == "__main__":
    main()
