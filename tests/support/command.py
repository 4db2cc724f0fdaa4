"""The installed command, as tests run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from documents.json_documents import check

WITHIN_S = 120
PROGRAM = Path(sys.executable).with_name("crckpt")
AS_NOBODY = ("unshare", "--user", "--map-user=65534", "--map-group=65534")
"""Words before a command that is to run without any rights."""
WITHOUT_CRIU = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    'for d in /usr/local/lib/crckpt /var/cache/crckpt; do [ ! -d $d ] || mount -t tmpfs none $d; done; exec "$@"',
    *("sh", "/usr/bin/env", "PATH=/nonexistent"),
)
"""Words before a command that is to find no CRIU."""


@dataclass(frozen=True)
class Said:
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

    def run(self, *words: str, status: int = 0, **environment: str) -> Said:
        """Run it to its end, which must be `status`."""
        with self._start([*self.before, str(PROGRAM), *words], environment) as process:
            try:
                out, err = process.communicate(timeout=WITHIN_S)
            except BaseException:
                process.kill()
                raise
        assert process.returncode == status, f"crckpt {words} ended with {process.returncode}:\n{out}{err}"
        return Said(process.returncode, out, err)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start it in a session of its own; the test waits for it."""
        return self._start([str(PROGRAM), *words], environment, start_new_session=True)

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


def network_locks() -> frozenset[str]:
    """Names of CRIU's tables in this network namespace."""
    shown = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    return frozenset(line.split()[-1] for line in shown.splitlines() if "CRIU-" in line)
