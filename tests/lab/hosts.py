"""Operations of tests on two hosts and a client, of any kind. Only the standard library is needed."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from processes import KILLED

PROJECT: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final = PROJECT / "tests/programs"
HOSTS: Final = ("source", "destination", "client")
ENVIRONMENT: Final = ("env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8")
PYTHON: Final = "/usr/bin/python3"
WITHIN_S: Final = 240.0
_POLL_S: Final = 0.01
_START: Final = 'setsid "$@" </dev/null >/dev/null 2>&1 & echo $!'


class CannotMakeLab(Exception):
    """This machine cannot have the requested lab; the text says why."""


class Result(NamedTuple):
    """The exit status of a command, and its output."""

    status: int
    out: str
    err: str


class Process(NamedTuple):
    """A process of a host: its PID there, its start in ticks since the boot, its state as processes.py says it."""

    host: str
    pid: int
    start: int
    state: str
    command: tuple[str, ...]

    @property
    def is_live(self) -> bool:
        """Whether the process has not ended."""
        return self.state not in ("Z", "X")

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, was not killed, and neither a tracer nor a signal holds it."""
        return self.is_live and self.state not in ("t", "T", KILLED)

    def is_same(self, other: Process) -> bool:
        """Whether both are the same process, perhaps in another state."""
        return (self.host, self.pid, self.start) == (other.host, other.pid, other.start)

    def is_of(self, program: str) -> bool:
        """Whether a word of the process's command is `program`, or a path to it."""
        return any(program in (word, word.rpartition("/")[2]) for word in self.command)


@dataclass
class Watch:
    """What a thread has seen: `doubled` are the processes of the first moment at which two copies ran."""

    doubled: tuple[Process, ...] = ()
    looks: int = 0


class TwoHosts(ABC):
    """The hosts `source` and `destination`, and a `client`.

    `services` are the service addresses with their lengths, by IP version. They are on the source at first, and on
    `device` wherever they are.
    """

    services: dict[int, str]
    device: str
    ends_with_parent: tuple[str, ...] = ()
    """Words before a command that end it with its parent on the host, if it has one there."""

    @abstractmethod
    def command(self, host: str, words: tuple[str, ...]) -> list[str]:
        """Return the command, to be run here, that runs these words on a host."""

    @abstractmethod
    def list_processes(self, host: str) -> list[Process]:
        """Return all processes of a host."""

    @abstractmethod
    def send_signal(self, process: Process, number: int) -> bool:
        """Send a signal; return whether the process was still there. It never reaches another with the same PID."""

    @abstractmethod
    def cut(self, one: str = "source", other: str = "destination") -> None:
        """Drop all packets between two hosts."""

    @abstractmethod
    def cut_one_way(self, origin: str, target: str) -> None:
        """Drop all packets that go from `origin` to `target`."""

    @abstractmethod
    def slow(self, rate: str, delay: str = "") -> None:
        """Limit the rate between source and destination, and delay packets (tc's words). Raises CannotMakeLab."""

    @abstractmethod
    def heal(self) -> None:
        """Undo all cuts and limits."""

    def run(self, host: str, *words: str | Path, status: int | None = 0, stdin: str = "") -> Result:
        """Run a command on a host to its end, which must be `status`, if that is given."""
        command = self.command(host, tuple(map(str, words)))
        result = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=WITHIN_S, check=False)
        if status is not None:
            output = result.stdout + result.stderr
            assert result.returncode == status, f"{host}: {words} ended with {result.returncode}:\n{output}"
        return Result(result.returncode, result.stdout, result.stderr)

    def open(self, host: str, *words: str | Path) -> subprocess.Popen[str]:
        """Start a command on a host, with pipes to it; the caller waits for it.

        To kill it here ends it there, once it runs.
        """
        pipe = subprocess.PIPE
        command = self.command(host, (*self.ends_with_parent, *map(str, words)))
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)

    def start(self, host: str, *words: str | Path) -> int:
        """Start a program on a host in a session of its own, without any of our descriptors; return its PID there."""
        return int(self.run(host, "sh", "-c", _START, "sh", *words).out)

    def find(self, program: str, *hosts: str) -> list[Process]:
        """Return the live processes of a program (`Process.is_of`) on these hosts, or on source and destination."""
        among = (process for host in hosts or HOSTS[:2] for process in self.list_processes(host))
        return [process for process in among if process.is_live and process.is_of(program)]

    def find_doubled(self, program: str) -> tuple[Process, ...]:
        """Return the running copies of a program that moves between source and destination if there are two, else ().

        The hosts are looked at one after the other: on one of them the same copy is there before and after the other
        host has one. A host where a CRIU runs has none: what CRIU has built waits, untraced.
        """
        return self._find_doubled(program, *HOSTS[1::-1]) or self._find_doubled(program, *HOSTS[:2])

    def _find_doubled(self, program: str, one: str, other: str) -> tuple[Process, ...]:
        before = self._find_free(program, one)
        meanwhile = self._find_free(program, other) if before else []
        after = self.find(program, one) if meanwhile else []
        both = [process for process in before if any(process.is_same(live) for live in after)]
        return tuple(sorted((*meanwhile, *both), key=lambda process: HOSTS.index(process.host))) if both else ()

    def _find_free(self, program: str, host: str) -> list[Process]:
        """Return the running copies of a program on a host; none as long as a CRIU runs there."""
        processes = self.list_processes(host)
        if any(process.is_live and "criu" in process.command[0] for process in processes if process.command):
            return []
        return [process for process in processes if process.is_running and process.is_of(program)]

    @contextmanager
    def watched(self, program: str) -> Iterator[Watch]:
        """Look again and again during the block whether two copies of a program run."""
        watch = Watch()
        looking = threading.Event()

        def look() -> None:
            while not looking.is_set():
                watch.doubled = watch.doubled or self.find_doubled(program)
                watch.looks += 1
                looking.wait(_POLL_S)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield watch
        finally:
            looking.set()
            thread.join()

    def end(self, program: str, *hosts: str) -> None:
        """Kill all processes of a program on these hosts, or on all, and wait until they have ended."""
        hosts = hosts or HOSTS
        for process in self.find(program, *hosts):
            self.send_signal(process, signal.SIGKILL)
        wait_for(lambda: not self.find(program, *hosts), f"{program} to end")

    def is_at(self, host: str, version: int) -> bool:
        """Return whether a host has the service address of this IP version."""
        return bool(json.loads(self.run(host, "ip", "-j", "addr", "show", "to", self.service(version)).out))

    def service(self, version: int) -> str:
        """Return the service address of this IP version, without its length."""
        return self.services[version].partition("/")[0]

    def bring_service_back(self, version: int) -> None:
        """Give the service address back to the source."""
        net, nodad = self.services[version], (("nodad", "preferred_lft", "0") if version == 6 else ())
        if self.is_at("destination", version):
            self.run("destination", "ip", "addr", "del", net, "dev", self.device)
        self.run("source", "ip", "addr", "replace", net, "dev", self.device, *nodad)
        self.run("source", PYTHON, PROGRAMS / "announce.py", self.device, self.service(version))


class Client:
    """A program of tests/programs that talks to a server, and answers each line with a report as JSON."""

    def __init__(self, lab: TwoHosts, host: str, program: str, *words: str) -> None:
        """Start the client, which connects as soon as a server listens."""
        self._process = lab.open(host, PYTHON, PROGRAMS / program, *words)

    def report(self, request: str = "report") -> dict[str, Any]:
        """Return the report of the program."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request + "\n")
        line = self._process.stdout.readline()
        assert line, f"the client ended: {self._process.communicate()[1]}"
        report: dict[str, Any] = json.loads(line)
        return report

    def check(self) -> dict[str, Any]:
        """Return the report after a check of all that the server should have."""
        return self.report("check")

    def wait_for_replies(self, more: int = 20) -> dict[str, Any]:
        """Wait until so many more requests were answered, or the connection has ended; return the report."""
        report = before = self.report()
        longest = before["recent_gap_ms"]

        def has_come() -> bool:
            nonlocal report, longest
            report = self.report()
            longest = max(longest, report["recent_gap_ms"])
            return bool(report["ended"] or report["replies"] >= before["replies"] + more)

        wait_for(has_come, f"{more} more replies than {before['replies']}")
        return report | {"recent_gap_ms": longest}

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.communicate()


class NumberedClient(Client):
    """tests/programs/numbered_client.py, talking to numbered_server.py."""

    def __init__(self, lab: TwoHosts, address: str, port: int, host: str = "client") -> None:
        super().__init__(lab, host, "numbered_client.py", address, str(port))


@contextmanager
def talking(lab: TwoHosts, version: int, *, port: int = 9000, host: str = "client") -> Iterator[NumberedClient]:
    """Talk to the service address during the block, from the client or another host."""
    client = NumberedClient(lab, lab.service(version), port, host)
    try:
        yield client
    finally:
        client.close()


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition is true; raise AssertionError with `what` after four minutes."""
    deadline = time.monotonic() + WITHIN_S
    while (began := time.monotonic()) and not condition():
        assert began < deadline, f"waited {WITHIN_S:.0f} s for {what}"
        # Each check may start a program: sleep longer, to leave the CPU to the programs that the test waits for.
        time.sleep(max(_POLL_S, 2 * (time.monotonic() - began)))
