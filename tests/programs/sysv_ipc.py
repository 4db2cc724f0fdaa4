"""System V shared memory, a semaphore and a message queue; start it in its own IPC namespace."""

import struct
import sys
from pathlib import Path
from typing import NoReturn

import native
from selfcheck import PAGE, Program, digest, fork, pattern

KEY = 0x6372636B
LENGTH = 32 * PAGE
LETTERS = [(index + 1, pattern(str(index), 100 * (index + 1))) for index in range(3)]
SEMAPHORE = 5


def main() -> None:
    """Parent and child attach the same segment and count in it; messages stay unread until requested."""
    workdir = Path(sys.argv[1])
    segment, memory = native.shared_segment(KEY, LENGTH)
    memory[PAGE:] = pattern("segment", LENGTH - PAGE)
    native.semaphore(KEY, SEMAPHORE)
    for kind, text in LETTERS:
        native.send_message(KEY, kind, text)
    fork(lambda: child(workdir))
    program = Program(workdir, parts=("child",))
    before: list[int] = []

    def step() -> None:
        program.facts["segment"] = segment
        program.facts["bytes"] = digest(memory[PAGE:])
        program.facts["semaphore"] = native.semaphore(KEY)
        program.ready = _count(memory) > 1

    def verify() -> bool:
        if not before:
            before.append(_count(memory))
            letters = [native.take_message(KEY) for _ in LETTERS]
            program.expect(letters == LETTERS, f"messages of kinds {[kind for kind, _ in letters]}")
        return _count(memory) > before[0] + 2

    program.run(step, verify)


def child(workdir: Path) -> NoReturn:
    """Count in the first bytes of the segment."""
    _, memory = native.shared_segment(KEY, LENGTH)
    program = Program(workdir, "child")

    def step() -> None:
        memory[:8] = struct.pack("<Q", _count(memory) + 1)

    program.run(step)


def _count(memory: memoryview) -> int:
    (count,) = struct.unpack_from("<Q", memory)
    return int(count)


if __name__ == "__main__":
    main()
