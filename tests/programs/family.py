"""Five processes with two threads each, own sessions and process groups, that keep logs if `--logs` is given.

root ─┬─ leader (own session) ─┬─ elder (own process group)
      │                        └─ younger (the elder's process group)
      └─ other (own process group)
"""

import argparse
import os
import threading
import time
from pathlib import Path
from typing import NoReturn

from selfcheck import Program, fork

PARTS = ("leader", "elder", "younger", "other")


class Member:
    """One process of the family: its ids at birth, and its children."""

    def __init__(self, workdir: Path, part: str, logs: bool) -> None:
        """Become `part`; children are given later by `run`."""
        self.program = Program(workdir, part, () if part else PARTS)
        self._beats = [0, 0]
        self._log = _open_log(workdir, part) if logs else None

    def run(self, children: tuple[int, ...]) -> NoReturn:
        """Beat with two threads and check sessions, groups, parent and children until the end."""
        kin = _kin()
        for index in range(2):
            threading.Thread(target=self._beat, args=(index,), daemon=True).start()

        def step() -> None:
            self.program.facts["kin"] = kin
            self.program.ready = min(self._beats) > 1
            self.program.expect(_kin() == kin, f"kin were {kin}, are {_kin()}")
            self.program.expect(all(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in children), "a child is gone")
            if self._log is not None:
                os.write(self._log, f"line {self.program.counter}\n".encode())

        before: list[int] = []

        def verify() -> bool:
            before[:] = before or self._beats
            return all(now > then for now, then in zip(self._beats, before, strict=True))

        self.program.run(step, verify)

    def _beat(self, index: int) -> None:
        while True:
            self._beats[index] += 1
            time.sleep(0.02)


def main() -> None:
    """Start the family; this process is its root."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--logs", action="store_true", help="each process writes a log that it keeps open")
    given = parser.parse_args()

    def grandchild(part: str, group: int) -> NoReturn:
        os.setpgid(0, group)
        Member(given.workdir, part, given.logs).run(())

    def leader() -> NoReturn:
        os.setsid()
        elder = fork(lambda: grandchild("elder", 0))
        os.setpgid(elder, elder)
        younger = fork(lambda: grandchild("younger", elder))
        Member(given.workdir, "leader", given.logs).run((elder, younger))

    def other() -> NoReturn:
        os.setpgid(0, 0)
        Member(given.workdir, "other", given.logs).run(())

    children = (fork(leader), fork(other))
    Member(given.workdir, "", given.logs).run(children)


def _open_log(workdir: Path, part: str) -> int:
    """Open half of the logs append-only: CRIU does not check their size."""
    append = os.O_APPEND if part in ("", "elder") else 0
    return os.open(workdir / f"{part or 'root'}.log", os.O_WRONLY | os.O_CREAT | append, 0o600)


def _kin() -> tuple[int, int, int]:
    return os.getpid(), os.getsid(0), os.getpgid(0)


if __name__ == "__main__":
    main()
