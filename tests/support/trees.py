"""The real trees that tests checkpoint: how to start them, their reports, and how to examine them from outside.

The programs lie in tests/programs; `selfcheck.py` there tells how they report.
"""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import psutil
from checkout import TESTS

PROGRAMS: Final = TESTS / "programs"
PYTHON: Final = "/usr/bin/python3"
READY_S: Final = 120.0
NOBODY: Final = 65534


@dataclass(frozen=True)
class Part:
    """The report of one process of a tree about itself; `facts` must never change."""

    pid: int
    counter: int
    ok: bool
    error: str
    ready: bool
    verified: bool
    facts: Mapping[str, object]


@dataclass(frozen=True)
class Case:
    """One kind of tree. `{workdir}`, `{programs}` and `{port}` (a free one) in `argv` are filled in."""

    name: str
    argv: tuple[str, ...]
    tcp: str | None = None
    needs: tuple[str, ...] = ()
    user: int = 0
    observe: Callable[[Path], Mapping[str, Part]] = field(default_factory=lambda: statuses)
    settle: Callable[[Path], None] = lambda _: None
    probe: Callable[[Path], None] = lambda _: None

    def missing(self) -> tuple[str, ...]:
        """Programs that this case needs and the machine lacks."""
        return tuple(program for program in self.needs if shutil.which(program) is None)


class Tree:
    """A running tree: our child at first, somebody else's after a restore."""

    def __init__(self, case: Case, workdir: Path) -> None:
        """Start the case's program in a session of its own, without any of our descriptors."""
        self.case = case
        self.workdir = workdir
        argv = [word.format(workdir=workdir, programs=PROGRAMS, port=_free_port()) for word in case.argv]
        null = subprocess.DEVNULL
        environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(workdir), "SHELL": "/bin/bash"}
        environment |= {"OPENBLAS_NUM_THREADS": "1", "UV_USE_IO_URING": "0"}
        self._process = subprocess.Popen(
            argv, stdin=null, stdout=null, stderr=null, cwd=workdir, env=environment, start_new_session=True
        )
        self.pid = self._process.pid
        self._all: tuple[int, ...] = (self.pid,)
        self._inits = NamespaceInits(self.pid)
        self._is_over = threading.Event()
        threading.Thread(target=self._reap, daemon=True).start()

    def __enter__(self) -> Self:
        """Wait until the whole tree is ready."""
        try:
            self.case.settle(self.workdir)
            wait_for(self._is_ready, READY_S, f"{self.case.name} to be ready")
            self._all = self.pids()
            self._inits = NamespaceInits(self.pid)
        except BaseException:
            self._inits = NamespaceInits(self.pid)
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the tree, whoever its parent is now."""
        self.end()
        self._inits.end()
        self._is_over.set()
        self._process.wait()

    @property
    def all(self) -> tuple[int, ...]:
        """The PIDs that the tree had when it was ready, root first."""
        return self._all

    def parts(self) -> Mapping[str, Part]:
        """The reports of all processes; the root's part is the empty name."""
        return self.case.observe(self.workdir)

    def counters(self) -> dict[str, int]:
        """Each part's counter."""
        return {name: part.counter for name, part in self.parts().items()}

    def facts(self) -> dict[str, Mapping[str, object]]:
        """Each part's facts."""
        return {name: part.facts for name, part in self.parts().items()}

    def wait_gone(self, timeout: float = 10) -> None:
        """Wait until the PIDs that the tree had when it was ready are free again."""
        wait_for(
            lambda: self._has_ended() and not any(Path(f"/proc/{pid}").exists() for pid in self._all),
            timeout,
            f"{self._all} to be gone",
        )

    def wait_growth(self, since: Mapping[str, int], by: int = 3, timeout: float = 10) -> None:
        """Wait until every counter is `by` beyond `since`; AssertionError if one falls back or a part is unsound."""

        def grown() -> bool:
            parts = self.sound_parts()
            for name, part in parts.items():
                assert part.counter >= since[name], f"part {name or 'root'} fell back to {part.counter}"
            return all(part.counter >= since[name] + by for name, part in parts.items())

        wait_for(grown, timeout, f"{self.case.name} to go on from {dict(since)}")

    def wait_verified(self, timeout: float = 20) -> None:
        """Ask for the checks that can be made once, and wait until every part has made them."""
        (self.workdir / "verify").touch()
        wait_for(
            lambda: all(part.verified for part in self.sound_parts().values()), timeout, f"{self.case.name} to verify"
        )

    def sound_parts(self) -> Mapping[str, Part]:
        """Like `parts`, but AssertionError with the words of the first part that found something wrong."""
        parts = self.parts()
        for name, part in parts.items():
            assert part.ok, f"{self.case.name}, part {name or 'root'}: {part.error}"
        return parts

    def pids(self) -> tuple[int, ...]:
        """The root and all its descendants."""
        try:
            root = psutil.Process(self.pid)
            return (self.pid, *(child.pid for child in root.children(recursive=True)))
        except psutil.NoSuchProcess:
            return ()

    def end(self) -> None:
        """SIGKILL every process of the tree and wait until none runs. Whoever is their parent now reaps them later."""
        pids = self.pids()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(runs(pid) for pid in pids), READY_S, f"{pids} to end")

    def _reap(self) -> None:
        """As a shell does: who waits for a PID to be free must not have to wait for us (or for whom we adopted it)."""
        while not self._is_over.wait(0.02):
            for pid in self._all if self._has_ended() else self._all[1:]:
                with suppress(ChildProcessError):
                    # Ends only: a stop is for the test, if that traces the process.
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)

    def _has_ended(self) -> bool:
        return self._process.poll() is not None

    def _is_ready(self) -> bool:
        assert not self._has_ended(), f"{self.case.name} ended with {self._process.returncode}"
        parts = self.sound_parts()
        return bool(parts) and all(part.ready and part.counter > 5 for part in parts.values())


class NamespaceInits:
    """The inits of PID namespaces below a process, held by pidfds: to end one ends all that is in its namespace.

    `unshare --pid --fork` that is killed leaves the namespace behind, with nobody who knows of it.
    """

    def __init__(self, pid: int) -> None:
        """Look for them now."""
        self._pidfds: list[int] = []
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(pid).children(recursive=True):
                # A process that has ended, and whose PID another process has now, is not below us any more.
                with suppress(OSError):
                    pidfd = os.pidfd_open(child.pid)
                    self._pidfds.append(pidfd)
                    if not (child.is_running() and _is_init(child.pid)):
                        os.close(self._pidfds.pop())

    def end(self) -> None:
        """End them, and wait until they have ended. Whoever is their parent reaps them."""
        while self._pidfds:
            pidfd = self._pidfds.pop()
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            ended = select.select([pidfd], [], [], READY_S)[0]
            os.close(pidfd)
            assert ended, "the init of a namespace does not end"


def _is_init(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    numbers = status.partition("\nNSpid:")[2].partition("\n")[0].split()
    return len(numbers) > 1 and numbers[-1] == "1"


def runs(pid: int) -> bool:
    """Return whether there is such a process and it has not ended (a zombie has)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(holds: Callable[[], bool], timeout: float, what: str) -> None:
    """Look every 20 ms until `holds`; AssertionError naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(0.02)


def _living_in(workdir: Path) -> Iterator[int]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(workdir):
                yield process.pid


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def open_workdir() -> Iterator[Path]:
    """A directory that every user can reach; its end is the end of programs that a failed test left behind."""
    # Not tempfile's own default: it reads TMPDIR once, and a test may set it.
    workdir = Path(tempfile.mkdtemp(prefix="crckpt-tree-", dir=os.environ.get("TMPDIR")))
    try:
        workdir.chmod(0o755)
        yield workdir
    finally:
        # A program may write into the directory while it is removed.
        wait_for(lambda: _is_removed(workdir), 60, "the programs to end")


def _is_removed(directory: Path) -> bool:
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


@contextmanager
def started(case: Case) -> Iterator[Tree]:
    """A ready tree of this kind in a fresh working directory; ended afterwards."""
    with open_workdir() as workdir:
        if case.user:
            # The programs may lie where this user cannot go.
            shutil.copytree(PROGRAMS, workdir / "programs")
            os.chown(workdir, case.user, case.user)
        with Tree(case, workdir) as tree:
            yield tree


def statuses(workdir: Path) -> Mapping[str, Part]:
    """All parts that the root names; empty until each has said something."""
    try:
        root = _status(workdir / "status.json")
        names = {"": root, **{name: _status(workdir / f"status-{name}.json") for name in root["parts"]}}
    except FileNotFoundError:
        return {}
    return {name: _part(status) for name, status in names.items()}


def _status(link: Path) -> dict[str, list[str]]:
    status = json.loads(str(link.readlink()))
    assert isinstance(status, dict)
    return status


def _part(status: Mapping[str, object]) -> Part:
    return Part(**{name: value for name, value in status.items() if name != "parts"})  # type: ignore[arg-type]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
