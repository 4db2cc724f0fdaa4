"""Programs and checkpoints that many rows begin with."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from provoked.criu import Target, dump, fresh_directory
from provoked.dumps import NOTHING
from provoked.restores import Restore, World
from trees import PYTHON


@dataclass(frozen=True)
class Checkpoint:
    """Images of a program that has ended, and its directory as it was, put aside."""

    pid: int
    threads: tuple[int, ...]
    workdir: Path
    images: Path
    aside: Path

    def world(self, directory: Path) -> World:
        """The unchanged images and files, as copies for tests that change them."""
        shutil.rmtree(self.workdir)
        # As it knows sockets and pipes, which Python's copying does not.
        subprocess.run(["cp", "-a", str(self.aside), str(self.workdir)], check=True)
        shutil.copytree(self.images, directory / "images", symlinks=True)
        return World(self.pid, self.threads, self.workdir, directory / "images")


class Workshop:
    """The programs that no refusal harms, for many tests of the module: programs, and checkpoints of such that have
    ended.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._plain = stack.enter_context(Target(NOTHING, stack.enter_context(fresh_directory())))
        self._checkpoints: dict[tuple[object, ...], Checkpoint] = {}

    def checkpoint(self, row: Restore) -> Checkpoint:
        """The checkpoint that a row begins with."""
        key = (row.kind, row.within, row.dumped, row.beside, row.copied)
        if key not in self._checkpoints:
            self._checkpoints[key] = self._dump(row)
        return self._checkpoints[key]

    def _dump(self, row: Restore) -> Checkpoint:
        workdir, kept = (self._stack.enter_context(fresh_directory()) for _ in range(2))
        with ExitStack() as stack:
            if row.beside:
                stack.enter_context(row.beside(workdir))
            python = Path(shutil.copy2(os.path.realpath(PYTHON), workdir / "python")) if row.copied else Path(PYTHON)
            target = stack.enter_context(Target(row.kind, workdir, row.within, row.depth, python))
            threads = tuple(int(task.name) for task in Path(f"/proc/{target.pid}/task").iterdir())
            namespaces = {f"{name}ns": Path(f"/proc/{target.pid}/ns/{name}").stat().st_ino for name in ("pid", "net")}
            ended = dump(target.pid, kept / "images", [word.format(**namespaces) for word in row.dumped])
            assert ended.status == 0, ended.complaints
            target.wait_ended()
        subprocess.run(["cp", "-a", str(workdir), str(kept / "aside")], check=True)
        others = tuple(thread for thread in threads if thread != target.pid)
        return Checkpoint(target.pid, others, workdir, kept / "images", kept / "aside")

    def plain(self) -> Target:
        """A program against which nothing stands."""
        return self._plain
