"""Files that are open but have no name: a small one, one of 8 MB, a mapped one, and one with another link."""

import mmap
import os
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
    program = Program(workdir)

    def step() -> None:
        os.pwrite(files["small"], struct.pack("<Q", program.counter), 0)
        mapped[:8] = struct.pack("<Q", program.counter)
        program.facts["links"] = [os.fstat(fd).st_nlink for fd in files.values()]
        program.facts["offsets"] = [os.lseek(fd, 0, os.SEEK_CUR) for fd in files.values()]
        for name in ("small", "mapped"):
            (found,) = struct.unpack("<Q", os.pread(files[name], 8, 0))
            program.expect(found == program.counter, f"{name} holds {found}, not {program.counter}")

    def verify() -> bool:
        for name, fd in files.items():
            found = os.pread(fd, SIZES[name] + 1, 8)
            program.expect(digest(found) == digest(pattern(name, SIZES[name])[8:]), f"{name} has other content")
        return True

    program.run(step, verify)


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
