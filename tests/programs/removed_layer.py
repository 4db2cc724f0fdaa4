"""A counter with a removed file of a lower layer of overlayfs, WORKDIR/layers/file, open and mapped."""

import mmap
import sys
from pathlib import Path

from selfcheck import Program


def main() -> None:
    """Remove the file, and compare the content that is left."""
    workdir = Path(sys.argv[1])
    path = workdir / "layers/file"
    content = path.read_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        path.unlink()
        program = Program(workdir)

        def step() -> None:
            file.seek(0)
            program.expect(file.read() == mapped[:] == content, "the file has changed")

        program.run(step)


if __name__ == "__main__":
    main()
