"""Start `crckpt receive` on another host by ssh, exchange Hellos, and say why it has ended."""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from crckpt import __version__
from crckpt.errors import CrckptError, HostCannot, Interrupted, RemoteError, UsageError
from crckpt.host import machine, proc
from crckpt.host.disk import space
from crckpt.host.process.run import Child, Pipes, quote, run, start_with_pipes
from crckpt.host.process.signals import interrupts_deferred, start_thread
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.connection_errors import ALLOW_COMMANDS
from crckpt.migrate.wire.writer import Bandwidth
from crckpt.ops.context import Context
from crckpt.store import Repository

# The user's configuration, keys and agent are used as they are. Without a terminal on the host; options of the
# configuration that would use the connection otherwise do not apply, as in scp(1): with our agent or display, root over
# there could act for us.
_SSH: Final = (
    *("ssh", "-T", "-x", "-o", "RemoteCommand=none", "-o", "ClearAllForwardings=yes", "-o", "ForwardAgent=no"),
    *("-o", "PermitLocalCommand=no", "-o", "Tunnel=no", "-o", "GSSAPIDelegateCredentials=no"),
)

# Seconds. TCP alone tries for minutes.
_CONNECT_S: Final = 10
# What `ssh -G` says of the user's configuration, and the option against it. An older ssh does not know all of these.
_AGAINST: Final = {
    "connecttimeout none": f"ConnectTimeout={_CONNECT_S}",
    "forkafterauthentication yes": "ForkAfterAuthentication=no",
    "sessiontype none": "SessionType=default",
    "sessiontype subsystem": "SessionType=default",
    "stdinnull yes": "StdinNull=no",
}

# What ssh, its agents and its proxies use.
_VARIABLES: Final = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL"),
        *("SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "SSH_SK_PROVIDER"),
        *("DISPLAY", "XAUTHORITY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "KRB5CCNAME"),
    )
)

# ssh gives the host and the user to commands of the configuration (ProxyCommand), which a shell runs.
_FORBIDDEN: Final = re.compile(r"[\s\x00-\x1f\x7f'\"`$;&|<>(){}]")

# With one colon: with more it is an IPv6 address.
_PORT: Final = re.compile(r"[^:\[\]]+:[0-9]*")

# ssh takes neither these brackets, nor an IPv6 address in a URI.
_IN_BRACKETS: Final = re.compile(r"(?:ssh://)?(?P<user>.+@)?\[(?P<address>[^\[\]@]+)\](?::(?P<port>[0-9]+))?/?")

# All but tabs and line ends; and the marks that change the direction of text.
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")

_CANNOT_CONNECT: Final = 255  # ssh(1)
_NOT_FOUND: Final = 127  # of every shell (POSIX)
_NOT_EXECUTABLE: Final = 126
_UNKNOWN_COMMAND: Final = 2  # of crckpt
_OF_SIGNAL: Final = 128  # a shell adds the number
_OF_SUDO: Final = 1  # sudo(8): it could not run the command

# What sudo says when it runs nothing.
_SUDO: Final = (
    (
        re.compile(r"must have a tty"),
        "let sudo there run without a terminal, by visudo on {host}: Defaults:USER !requiretty",
    ),
    (
        re.compile(r"command not found"),
        "name the path of crckpt there: --remote-crckpt 'sudo /PATH/TO/crckpt'; or add its directory to secure_path, "
        "by visudo on {host}",
    ),
    (
        # -T: there is no terminal at which it could ask.
        re.compile(r"password|not allowed to|not in the sudoers|may not run"),
        "allow it without a password, by visudo on {host}: USER ALL=(root) NOPASSWD: /PATH/TO/crckpt",
    ),
)

_MOST_OUTPUT: Final = 4 << 10
_LINES_SHOWN: Final = 5
# What ssh prints just before it ends becomes part of our error: this long its output is held back from the user.
_SHOWN_AFTER_MS: Final = 1000
# The time that the other side has to end after the connection was closed.
_END_S: Final = 5.0
_TERM_S: Final = 2.0
# And ssh after its output has ended: a frozen tree may wait meanwhile.
_EXPLAIN_S: Final = 2.0


class Remote:
    """A `crckpt receive` on another host. The descriptors are for a `Connection`, which closes them.

    What ssh writes to its stderr before `note_answer` is called is given to `show`: perhaps it waits for the user.
    """

    def __init__(self, child: Child, pipes: Pipes, host: str, crckpt: str, show: Callable[[str], None]) -> None:
        self.incoming, self.outgoing = pipes.stdout, pipes.stdin
        self._child = child
        self._host, self._crckpt = host, crckpt
        self._program = _split(crckpt)[0]
        # To be typed by the user.
        self._ssh = quote(["ssh", *(word for word in make_host_words(host) if word != "--")])
        self._show = show
        self._stderr = pipes.stderr
        self._output = bytearray()
        self._read_bytes = 0
        self._answered_after = -1
        self._has_answered = threading.Event()
        self._is_over = threading.Event()
        self._reader = start_thread(self._read_output)

    def note_answer(self) -> None:
        """Show no more of ssh's output: the other side has answered."""
        self._answered_after = self._read_bytes
        self._has_answered.set()

    def explain_end(self) -> CrckptError | None:
        """Say why it has ended; None if it has not, or has ended well."""
        if not self._child.ends_within(_EXPLAIN_S):
            return None
        status = self._child.wait()
        # Its last words; a connection that ssh shares with others (ControlPersist) may keep the pipe open.
        self._reader.join(_EXPLAIN_S)
        lines = [line.strip() for line in bytes(self._output).decode(errors="replace").splitlines() if line.strip()]
        words = "; ".join(lines[-_LINES_SHOWN:])
        return self._explain(status, words) if status else None

    def _explain(self, status: int, words: str) -> CrckptError:
        said = f": {words}" if words else ""
        is_silent = self._has_answered.is_set() and self._read_bytes == self._answered_after
        if status == _CANNOT_CONNECT and is_silent:
            # ssh says why a connection ends, but nothing of a signal that ends the command there.
            return self._explain_kill("was killed")
        if status == _CANNOT_CONNECT and not words:
            return RemoteError(
                f"ssh to {self._host} ended with status {status} and gave no reason: crckpt there was killed before it "
                "answered, or ssh may not say why (LogLevel)",
                hint=f"see whether the kernel killed it, because memory ran out: {self._find_killed}",
            )
        if status == _CANNOT_CONNECT:
            verb = "lost its connection" if self._has_answered.is_set() else "cannot connect"
            return RemoteError(f"ssh {verb} to {self._host}{said}", hint=f"check that this works: {self._ssh} true")
        if status in (_NOT_FOUND, _NOT_EXECUTABLE):
            hint = f"install crckpt on {self._host}; if it is there, name its path: --remote-crckpt /PATH/TO/crckpt"
            if not self._program.endswith("crckpt"):
                hint = f"check that this works: {self._ssh} {self._crckpt} --version"
            return RemoteError(f"{self._crckpt} cannot be run on {self._host}{said}", hint=hint)
        signal_number = -status if status < 0 else status - _OF_SIGNAL
        if signal_number == signal.SIGKILL:
            return self._explain_kill(f"was ended by signal {signal_number}")
        ended = f"was ended by signal {signal_number}" if signal_number > 0 else f"ended with status {status}"
        return RemoteError(f"crckpt on {self._host} {ended}{said}", hint=self._advise(status, words))

    def _advise(self, status: int, words: str) -> str:
        if status == _OF_SUDO and self._program.endswith("sudo"):
            known = (hint.format(host=self._host) for said, hint in _SUDO if said.search(words))
            return next(known, f"see what this says: {self._ssh} {self._crckpt} --version")
        if not words and 0 < status < _OF_SIGNAL and not self._has_answered.is_set():
            # crckpt says why it ends.
            return ALLOW_COMMANDS
        if status == _UNKNOWN_COMMAND:
            return "install the same version of crckpt on both hosts"
        return f"see what this says: {self._ssh} {self._crckpt} doctor"

    def _explain_kill(self, ended: str) -> CrckptError:
        return RemoteError(
            f"crckpt on {self._host} {ended}, perhaps because its memory ran out",
            hint=f"see whether the kernel did it: {self._find_killed}",
        )

    @property
    def _find_killed(self) -> str:
        return f"{self._ssh} dmesg | grep -i 'killed process'"

    def end(self) -> None:
        """Wait until it has ended, if its connection was closed; end it after some seconds."""
        with interrupts_deferred():
            if not self._child.ends_within(_END_S):
                # ssh restores the terminal that it asks for a password.
                self._child.terminate()
                if not self._child.ends_within(_TERM_S):
                    self._child.kill()
            self._child.wait()
            self._is_over.set()
            self._reader.join()

    def end_unless_answered(self) -> None:
        """End ssh if the other side has not answered yet: it may ask for a password."""
        if not self._has_answered.is_set():
            self._child.terminate()

    def _read_output(self) -> None:
        poll = select.poll()
        poll.register(self._stderr, select.POLLIN)
        try:
            shown = 0
            while True:
                if not poll.poll(_SHOWN_AFTER_MS):
                    if self._is_over.is_set():
                        return
                    if not self._has_answered.is_set() and shown < len(self._output):
                        text = bytes(self._output[shown:]).decode(errors="replace").replace("\r\n", "\n")
                        # The other host may have written what controls a terminal.
                        self._show(_CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text))
                    shown = len(self._output)
                    continue
                content = os.read(self._stderr, _MOST_OUTPUT)
                if not content:
                    return
                self._output += content
                self._read_bytes += len(content)
                surplus = max(0, len(self._output) - _MOST_OUTPUT)
                del self._output[:surplus]
                shown = max(0, shown - surplus)
        finally:
            os.close(self._stderr)


@contextmanager
def started(
    host: str,
    crckpt: str = "crckpt",
    store: str | None = None,
    *,
    show: Callable[[str], None] = lambda _text: None,
    ssh: Sequence[str] = _SSH,
) -> Iterator[Remote]:
    """Start `crckpt receive` on `host`, as ssh(1) knows it; ended at the end of the block.

    `crckpt` is a command there, `store` a path. ssh may ask the user at the terminal; `show` gets what it writes.
    Raises UsageError for what is no host or command, HostCannot if there is no ssh.
    """
    environment = {name: value for name, value in os.environ.items() if name in _VARIABLES}
    with interrupts_deferred():
        child, pipes = start_with_pipes(make_command(host, crckpt, store, ssh), environment)
        remote = Remote(child, pipes, host, crckpt, show)
    try:
        yield remote
    except Interrupted:
        remote.end_unless_answered()
        raise
    finally:
        remote.end()


def adapt_to_configuration(host: str, ssh: tuple[str, ...] = _SSH) -> tuple[str, ...]:
    """Return ssh's words, with options against what the user's configuration has. Raises UsageError, HostCannot."""
    # An option overrides the configuration. Without a command ssh refuses some of it.
    settings = run((*ssh, "-G", *make_host_words(host), "true")).output.splitlines()
    return (*ssh, *(f"-o{option}" for setting, option in _AGAINST.items() if setting in settings))


def make_command(host: str, crckpt: str, store: str | None, ssh: Sequence[str] = _SSH) -> tuple[str, ...]:
    """Build the command. Raises UsageError for what is no host, or no command."""
    words = [*_split(crckpt), "receive", *(["--store", store] if store is not None else [])]
    # ssh joins words with blanks, and a shell there parses them.
    return (*ssh, *make_host_words(host), quote(words))


def _split(crckpt: str) -> list[str]:
    """Split a command as a shell does: `sudo crckpt`. Raises UsageError."""
    with suppress(ValueError):
        if words := shlex.split(crckpt):
            return words
    raise UsageError(
        f"{crckpt!r} is not a command (--remote-crckpt)", hint="for example: --remote-crckpt 'sudo crckpt'"
    )


def make_host_words(host: str) -> tuple[str, ...]:
    """Return the words by which ssh connects to `host`. Raises UsageError for what is no host."""
    found = _IN_BRACKETS.fullmatch(check_host(host))
    if found is None:
        return ("--", host)
    return (*(("-p", found["port"]) if found["port"] else ()), "--", f"{found['user'] or ''}{found['address']}")


def check_host(host: str) -> str:
    """Return `host` if it is [USER@]HOST, [USER@][ADDRESS]:PORT, or a name that ssh knows. Raises UsageError."""
    words = host.removeprefix("ssh://")
    _user, _, name = words.rpartition("@")
    is_odd = _FORBIDDEN.search(host) is not None or not host.isprintable()
    if not name or words.startswith(("-", "@")) or name.startswith("-") or is_odd:
        raise UsageError(
            f"{host!r} is not a host name for ssh",
            hint="type [USER@]HOST, or a name from ~/.ssh/config; options of ssh belong in that file",
        )
    if words == host and _PORT.fullmatch(name):
        # ssh would look for a host of that name.
        raise UsageError(
            f"{host!r} names a port in a form that ssh does not know",
            hint=f"type ssh://{host}; or set Port in ~/.ssh/config",
        )
    return host


class Peer(Struct, frozen=True):
    """The other side as the source reaches it: its host as the user typed it, the connection, and its Hello."""

    host: str
    connection: Connection
    hello: messages.Hello


@contextmanager
def connected(
    host: str,
    crckpt: str,
    store: str | None,
    context: Context,
    repository: Repository,
    *,
    bandwidth: Bandwidth | None = None,
    answer_within_s: float | None = None,
    is_check: bool = False,
) -> Iterator[Peer]:
    """Start the other side, and exchange Hellos."""
    with (
        started(host, crckpt, store, show=_show_ssh_output, ssh=adapt_to_configuration(host)) as remote,
        Connection(
            remote.incoming, remote.outgoing, host, bandwidth=bandwidth, explain_end=remote.explain_end
        ) as connection,
    ):
        connection.send(replace(make_hello(context, repository), is_check=is_check))
        hello = connection.receive(messages.Hello, timeout=answer_within_s)
        remote.note_answer()
        yield Peer(host, connection, hello)


def _show_ssh_output(text: str) -> None:
    """Show what ssh writes while it may ask for a password."""
    sys.stderr.write(text)
    sys.stderr.flush()


def make_hello(context: Context, repository: Repository) -> messages.Hello:
    """Describe this host and its store to the other side."""
    try:
        criu = context.criu().version
    except HostCannot:
        criu = ""
    host = machine.describe_host(criu, "")
    return messages.Hello(
        protocol=messages.PROTOCOL,
        version=__version__,
        hostname=host.hostname,
        boot_id=proc.boot_id(),
        uptime_s=proc.uptime_ticks() / os.sysconf("SC_CLK_TCK"),
        time_s=time.time(),
        arch=host.arch,
        kernel=host.kernel,
        cpu_features=host.cpu_features,
        criu_version=criu,
        highest_sequence=repository.highest_sequence(),
        store=f"{repository.id} {machine.read_machine_id()}",
        free_bytes=min(space.free_memory(swap=True), space.free_disk(space.nearest_existing(context.store))),
    )
