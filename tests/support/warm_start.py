"""Start crckpt with its modules loaded, by `warm_server.py`: it ends as if it had been executed, in half the time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

import msgspec
from checkout import SUPPORT

LARGEST_REQUEST: Final = 1 << 18
_STATUS: Final = ("Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp", "Sig", "Shd", "Cpus_allowed", "NS")
_VOLATILE: Final = ("SigQ", "SigPnd", "ShdPnd", "SigCgt")
_NAMESPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
_PASSED: Final = frozenset({"CRCKPT_STORE"})
"""Variables that crckpt reads when it runs. Others may count when its modules are loaded."""


class Request(msgspec.Struct, frozen=True):
    """A command line to run in a directory."""

    words: list[str]
    directory: str
    environment: dict[str, str]


class StartedAnswer(msgspec.Struct, frozen=True):
    """The answer once the command runs."""

    pid: int


class EndedAnswer(msgspec.Struct, frozen=True):
    """The answer once it has ended; `status` is minus its signal's number if one ended it."""

    status: int


class Command:
    """A running command."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self.pid = msgspec.json.decode(answers.recv(100), type=StartedAnswer).pid

    def wait(self) -> int:
        """Wait until the command has ended, and return its exit status."""
        with self._answers:
            return msgspec.json.decode(self._answers.recv(100), type=EndedAnswer).status


class WarmStart:
    """The server, and what its commands inherit from it."""

    _started: ClassVar[list[Self]] = []

    @classmethod
    def get(cls) -> Self:
        """The server of this process, which ends with it."""
        if not cls._started:
            cls._started.append(cls())
        return cls._started[0]

    @classmethod
    def pids(cls) -> tuple[int, ...]:
        """The server's PID, if there is one."""
        return tuple(server.process.pid for server in cls._started)

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._inherited = inherited()
        self._environment = dict(os.environ)
        server = (sys.executable, str(SUPPORT / "warm_server.py"), str(theirs.fileno()))
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(server, stdin=null, stdout=null, pass_fds=(theirs.fileno(),))
        theirs.close()

    def is_alike(self, environment: Mapping[str, str]) -> bool:
        """Return whether a command would inherit the same from us as from the server, but for `_PASSED`."""
        return self._inherited == inherited() and _unpassed(environment) == _unpassed(self._environment)

    def start(self, words: list[str], environment: Mapping[str, str], output: tuple[int, int]) -> Command:
        """Start a command with these descriptors, which are closed here, as its stdout and stderr."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = msgspec.json.encode(Request(words, str(Path.cwd()), dict(environment)))
        with theirs, Path(os.devnull).open("rb") as null:
            socket.send_fds(self._requests, [request], [null.fileno(), *output, theirs.fileno()])
        for descriptor in output:
            os.close(descriptor)
        return Command(ours)


def _unpassed(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _PASSED | {"PYTEST_CURRENT_TEST"}}


def inherited() -> object:
    """What a child inherits from this thread."""
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    namespaces = [Path(f"/proc/thread-self/ns/{name}").readlink() for name in _NAMESPACES]
    return (
        tuple(line for line in lines if line.startswith(_STATUS) and not line.startswith(_VOLATILE)),
        *(Path(f"/proc/thread-self/{name}").read_text() for name in ("limits", "cgroup", "oom_score_adj")),
        *namespaces,
        os.getpriority(os.PRIO_PROCESS, 0),
    )
