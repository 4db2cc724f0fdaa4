"""An asyncio program in the middle of its tasks: a conversation with `cat`, a long subprocess, a queue, a timeout."""

import asyncio
import sys
from pathlib import Path

from selfcheck import TICK_S, Program

ENDS_WITH = 7
LONG_TASK = """
import pathlib, sys, time
verify = pathlib.Path(sys.argv[1], "verify")
while not verify.exists() and verify.parent.exists():
    time.sleep(0.02)
print("done", flush=True)
raise SystemExit(7)
"""


class Tasks:
    """The tasks' common state."""

    def __init__(self, program: Program) -> None:
        """Start nothing yet."""
        self.program = program
        self.sent = 0
        self.consumed = 0
        self.queue: asyncio.Queue[int] = asyncio.Queue(3)
        self.ended: list[object] = []

    async def converse(self) -> None:
        """Say a number to `cat` and hear it back, for ever."""
        cat = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        assert cat.stdin is not None
        assert cat.stdout is not None
        while True:
            cat.stdin.write(f"{self.sent}\n".encode())
            echo = int(await cat.stdout.readline())
            self.program.expect(echo == self.sent, f"sent {self.sent}, heard {echo}")
            self.sent += 1
            await asyncio.sleep(0.01)

    async def wait_for_long_task(self) -> None:
        """Wait for a subprocess that ends after the restore, and see its output and status."""
        program = str(self.program.workdir)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", LONG_TASK, program, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), 3600)
        self.ended = [output.decode(), process.returncode]

    async def produce(self) -> None:
        """Put numbers into a queue that is mostly full."""
        for number in range(1 << 40):
            await self.queue.put(number)

    async def consume(self) -> None:
        """Take the numbers out, in order."""
        while True:
            number = await self.queue.get()
            self.program.expect(number == self.consumed, f"took {number} where {self.consumed} was due")
            self.consumed += 1
            await asyncio.sleep(0.01)

    async def watch(self) -> None:
        """Tick; when asked, wait until all tasks have gone on and the long one has ended well."""
        before: list[int] = []

        def verify() -> bool:
            before[:] = before or [self.sent, self.consumed]
            self.program.expect(self.ended in ([], ["done\n", ENDS_WITH]), f"the long task ended with {self.ended}")
            return self.sent > before[0] + 2 and self.consumed > before[1] + 2 and bool(self.ended)

        def step() -> None:
            self.program.ready = min(self.sent, self.consumed) > 1

        while True:
            self.program.tick(step, verify)
            await asyncio.sleep(TICK_S)


async def main() -> None:
    """Run all tasks for ever; any that fails ends the program."""
    tasks = Tasks(Program(Path(sys.argv[1])))
    await asyncio.gather(tasks.converse(), tasks.wait_for_long_task(), tasks.produce(), tasks.consume(), tasks.watch())


if __name__ == "__main__":
    asyncio.run(main())
