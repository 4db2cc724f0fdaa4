"""The only module that starts programs.

Children get an environment written here, an empty stdin by default, and no descriptor of ours.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.host.opened import opened
from crckpt.host.process.pidfd import HeldProcess
from crckpt.host.process.signals import interrupts_allowed, interrupts_deferred

_PRIVATE: Final = 0o077
_MOST_OUTPUT: Final = 4096
# The user's variables must not change what programs do (LD_PRELOAD, CRIU_CONFIG_FILE) or the language of messages that
# crckpt parses (LANG).
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/",
}


_TERMINAL_SIGNALS: Final = (signal.SIGINT, signal.SIGTSTP, signal.SIGHUP)


class Finished(Struct, frozen=True):
    """The output and end of a short program. `status` is its exit status, or minus the signal that ended it."""

    argv: tuple[str, ...]
    status: int
    output: str

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.status == 0


class Pipes(Struct, frozen=True):
    """Our ends of the pipes of a program: we write to its stdin, and read its stdout and stderr."""

    stdin: int
    stdout: int
    stderr: int


class Child(HeldProcess):
    """A program that we have started, in its own session or in ours, and wait for."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process.pid)
        self._process = process

    def wait(self) -> int:
        """Block until it has ended; return its exit status, or minus the signal that ended it. May be called again."""
        status = self._process.wait()
        self.close()
        return status

    def kill(self) -> None:
        """SIGKILL it, unless it was waited for."""
        self.send(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM it, unless it was waited for."""
        self.send(signal.SIGTERM)

    def abandon(self) -> None:
        """Never reap it ourselves: others wait for it by its PID."""
        self.close()
        self._process.returncode = 0  # Popen's finalizer reaps a child whose status it does not know


def quote(argv: Sequence[str]) -> str:
    """`argv` as a line that can be copied into a shell."""
    return shlex.join(argv)


def find_program(name: str) -> Path | None:
    """Find a program as the programs that we start would; None if it is not installed."""
    found = shutil.which(name, path=ENVIRONMENT["PATH"])
    return Path(found) if found else None


def run(argv: Sequence[str | Path], *, timeout: float = 60.0, cwd: Path | None = None) -> Finished:
    """Run a short program to its end. stdout and stderr come back together.

    Raises HostCannot if it cannot be started, or takes longer than `timeout` seconds (it is then killed).
    """
    words = tuple(str(word) for word in argv)
    try:
        with _errors_named(words[0], f"install {Path(words[0]).name}"):
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=ENVIRONMENT,
                timeout=timeout,
                cwd=cwd,
                check=False,
                start_new_session=True,  # otherwise ^C on our terminal would end it half-way
            )
    except subprocess.TimeoutExpired as error:
        raise HostCannot(f"no answer after {timeout:g} s from: {quote(words)}") from error
    return Finished(words, done.returncode, done.stdout.decode(errors="replace"))


def run_shell(command: str, more: Mapping[str, str], *, timeout: float, can_interrupt: bool = True) -> Finished:
    """Run a command line of the user in a shell: in our directory, in our environment with `more`, without stdin.

    The end of a long output comes back. What it leaves in the background may keep running. Raises HostCannot as `run`
    does; all of its process group is killed then, also if we are interrupted and it is one that we `can_interrupt`.
    """
    words = ("/bin/sh", "-c", command)
    # Not a pipe: what keeps running in the background may keep that open.
    with tempfile.TemporaryFile() as output, interrupts_deferred():
        with _errors_named(words[0]):
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **more},
                start_new_session=True,
            )
        try:
            with interrupts_allowed() if can_interrupt else nullcontext():
                status = process.wait(timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise HostCannot(f"no answer after {timeout:g} s from: {command}") from error
            raise
        output.seek(max(output.seek(0, os.SEEK_END) - _MOST_OUTPUT, 0))
        return Finished(words, status, output.read(_MOST_OUTPUT).decode(errors="replace"))


def spawn(
    argv: Sequence[str],
    descriptors: Mapping[int, int],
    *,
    environment: Mapping[str, str],
    own_session: bool,
) -> int:
    """Start a program for another process, in the working directory of ours; return its PID. The caller reaps it.

    `descriptors` are what it gets: our descriptor for each of its numbers. It leads a process group, or with
    `own_session` a session. Raises OSError.
    """
    # Out of the way of the numbers that they get.
    lowest = max(descriptors) + 1
    moved = {number: fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, lowest) for number, ours in descriptors.items()}
    try:
        return os.posix_spawnp(
            argv[0],
            tuple(argv),
            {**ENVIRONMENT, **environment},
            file_actions=[(os.POSIX_SPAWN_DUP2, ours, number) for number, ours in moved.items()],
            # Python ignores the first two, the caller perhaps the last.
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU),
            **({"setsid": True} if own_session else {"setpgroup": 0}),
        )
    finally:
        for descriptor in moved.values():
            os.close(descriptor)


def start(
    argv: Sequence[str | Path],
    *,
    output: Path,
    own_session: bool = True,
    stdin: int | None = None,
    keep: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    python_path: Path | None = None,
) -> Child:
    """Start a long program; append its stdout and stderr to `output` (0600). Other users cannot read its files.

    In its own session neither ^C nor our death reaches it. `stdin` is a descriptor for its stdin (default: none),
    `keep` are descriptors that it inherits under their numbers, `environment` are more environment variables,
    `python_path` is where a Python program finds its modules.
    """
    words = tuple(str(word) for word in argv)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with opened(descriptor), _errors_named(words[0]):
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=descriptor,
            stderr=descriptor,
            env={**ENVIRONMENT, **(environment or {})} | ({"PYTHONPATH": str(python_path)} if python_path else {}),
            cwd="/",  # it may outlive us, and must not keep our directory's mount busy
            start_new_session=own_session,
            pass_fds=tuple(keep),
            umask=_PRIVATE,
        )
    return Child(process)


def start_with_pipes(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[Child, Pipes]:
    """Start a long program that may use our terminal; return it with our ends of its pipes.

    ^C, ^Z and the end of the terminal reach us and not the program: we end it. Raises HostCannot. Call it in
    the main thread.
    """
    with ExitStack() as ours, ExitStack() as theirs, _errors_named(argv[0], f"install {argv[0]}"):
        ends: list[tuple[int, int]] = []
        for is_read in (False, True, True):
            reads, writes = os.pipe()  # closed on exec
            ends.append((reads, writes) if is_read else (writes, reads))
            ours.callback(os.close, ends[-1][0])
            theirs.callback(os.close, ends[-1][1])
        own, (stdin, stdout, stderr) = zip(*ends, strict=True)
        # Ignored: a shell that the program starts (ProxyCommand of ssh) unblocks signals, but leaves ignored ones
        # ignored. Blocked: else what comes meanwhile would be lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _TERMINAL_SIGNALS)
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _TERMINAL_SIGNALS}
        try:
            process = subprocess.Popen(
                tuple(argv), stdin=stdin, stdout=stdout, stderr=stderr, env={**ENVIRONMENT, **environment}
            )
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        ours.pop_all()
        return Child(process), Pipes(*own)


@contextmanager
def _errors_named(program: str, hint: str = "") -> Iterator[None]:
    """Raise HostCannot, which names the program, if it cannot be started."""
    try:
        yield
    except OSError as error:
        raise HostCannot(f"cannot run {program}: {error.strerror}", hint=hint) from error
