"""The installed command, as tests run it."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from documents.json_documents import check
from firewall import tables
from warm_start import WarmStart

WITHIN_S = 120
IS_COLD = "CRCKPT_COLD_START" in os.environ
"""Each command is a new process, as a user's."""
PROGRAM = Path(sys.executable).with_name("crckpt")
AS_NOBODY = ("unshare", "--user", "--map-user=65534", "--map-group=65534")
"""Words before a command that is to run without any rights."""
WITHOUT_CRIU = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    'for d in /usr/local/lib/crckpt /var/cache/crckpt; do [ ! -d $d ] || mount -t tmpfs none $d; done; exec "$@"',
    *("sh", "/usr/bin/env", "PATH=/nonexistent"),
)
"""Words before a command that is to find no CRIU."""


def find_criu() -> Path:
    """Return the CRIU that crckpt takes, which it may not have tried yet."""
    shown = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"CRIU \S+ \((.+?)(?:, not tried yet)?\)", shown)
    assert found, shown
    return Path(found[1])


@dataclass(frozen=True)
class CommandResult:
    """The end of a command, and its output."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on stdout, of the type that the reference says."""
        check(self.out)
        document: dict[str, Any] = json.loads(self.out)
        return document


@dataclass(frozen=True)
class Crckpt:
    """The installed command with the store `store`; `before` are words before it.

    `pids` are those of all that it has started.
    """

    store: Path
    before: tuple[str, ...] = ()
    pids: set[int] = field(default_factory=set, compare=False)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the command."""
        return os.environ | {"CRCKPT_STORE": str(self.store)}

    def run(self, *words: str, status: int = 0, **environment: str) -> CommandResult:
        """Run it to its end, which must be `status`."""
        ended, out, err = self._run(words, environment)
        assert ended == status, f"crckpt {words} ended with {ended}:\n{out}{err}"
        return CommandResult(ended, out, err)

    def _run(self, words: tuple[str, ...], environment: dict[str, str]) -> tuple[int, str, str]:
        if not self.before and not IS_COLD and WarmStart.get().is_alike(self.environment | environment):
            return self._run_warm(words, environment)
        with self._start([*self.before, str(PROGRAM), *words], environment) as process:
            try:
                out, err = process.communicate(timeout=WITHIN_S)
            except BaseException:
                process.kill()
                raise
        return process.returncode, out, err

    def _run_warm(self, words: tuple[str, ...], environment: dict[str, str]) -> tuple[int, str, str]:
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        command = WarmStart.get().start([str(PROGRAM), *words], self.environment | environment, (out_end, err_end))
        self.pids.add(command.pid)
        try:
            output = _read_to_end((out, err))
        except BaseException:
            os.kill(command.pid, signal.SIGKILL)
            raise
        return command.wait(), *output

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start it in a session of its own; the test waits for it."""
        return self._start([*self.before, str(PROGRAM), *words], environment, start_new_session=True)

    def _start(
        self, command: list[str], environment: dict[str, str], *, start_new_session: bool = False
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment | environment,
            start_new_session=start_new_session,
        )
        self.pids.add(process.pid)
        return process


def _read_to_end(pipes: tuple[int, int]) -> tuple[str, str]:
    """Read both until nobody has their other ends open, and close them; TimeoutError after `WITHIN_S`."""
    deadline, read = time.monotonic() + WITHIN_S, {pipe: bytearray() for pipe in pipes}
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(deadline - time.monotonic())
            if not ready:
                raise TimeoutError(f"crckpt still runs after {WITHIN_S} s; it said: {read}")
            for key, _ in ready:
                if data := os.read(key.fd, 1 << 16):
                    read[key.fd] += data
                else:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    out, err = (bytes(text).decode() for text in read.values())
    return out, err


def network_locks() -> frozenset[str]:
    """Names of CRIU's tables in this network namespace."""
    return frozenset(table.split()[-1] for table in tables() if "CRIU-" in table)
