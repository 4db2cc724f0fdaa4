"""Sixteen threads, each with a name, a signal mask, a deep stack and thread-local state, that pass a token around."""

import random
import signal
import sys
import threading
import time
from pathlib import Path

from selfcheck import Program

COUNT = 16
DEPTH = 40


class Ring:
    """Threads that wake each other in turn; `turns` counts the wake-ups of each."""

    def __init__(self, program: Program) -> None:
        """Start the threads and hand the token to the first."""
        self.turns = [0] * COUNT
        self.native = [0] * COUNT
        self._program = program
        self._local = threading.local()
        self._gates = [threading.Semaphore(0) for _ in range(COUNT)]
        for index in range(COUNT):
            threading.Thread(target=self._descend, args=(index, DEPTH), daemon=True).start()
        self._gates[0].release()

    def _descend(self, index: int, depth: int) -> None:
        mark = index * 1000 + depth
        if depth:
            self._descend(index, depth - 1)
        else:
            self._live(index)
        self._program.expect(mark == index * 1000 + depth, "a stack frame has changed")

    def _live(self, index: int) -> None:
        self.native[index] = threading.get_native_id()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + index])
        comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        comm.write_text(f"ring-{index}")
        self._local.random = random.Random(index)
        self._local.shadow = random.Random(index)
        while True:
            self._gates[index].acquire()
            self._turn(index)
            time.sleep(0.001)
            self._gates[(index + 1) % COUNT].release()

    def _turn(self, index: int) -> None:
        self.turns[index] += 1
        drawn, expected = self._local.random.random(), self._local.shadow.random()
        self._program.expect(drawn == expected, f"thread {index} lost its local state")
        mine = threading.get_native_id() == self.native[index]
        self._program.expect(mine, f"thread {index} has another id")
        blocked = signal.SIGRTMIN + index in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        self._program.expect(blocked, f"thread {index} lost its signal mask")


def main() -> None:
    """Watch that every thread keeps getting its turn."""
    program = Program(Path(sys.argv[1]))
    ring = Ring(program)
    started_at: list[int] = []

    def step() -> None:
        program.facts["threads"] = ring.native
        program.ready = min(ring.turns) > 1
        program.expect(max(ring.turns) - min(ring.turns) <= 1, "the token was lost or doubled")

    def verify() -> bool:
        if not started_at:
            started_at.extend(ring.turns)
            names = [Path(f"/proc/self/task/{tid}/comm").read_text().strip() for tid in ring.native]
            program.expect(names == [f"ring-{index}" for index in range(COUNT)], f"thread names: {names}")
        return all(now > before + 2 for now, before in zip(ring.turns, started_at, strict=True))

    program.run(step, verify)


if __name__ == "__main__":
    main()
