"""The installed command, as tests run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on stdout."""
        document: dict[str, Any] = json.loads(self.out)
        return document


@dataclass(frozen=True)
class Crckpt:
    """The installed command with the store `store`; `before` are words before it."""

    store: Path
    before: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """What the command is started with."""
        return os.environ | {"CRCKPT_STORE": str(self.store)}

    def run(self, *words: str, status: int = 0, **environment: str) -> Said:
        """Run it to its end, which must be `status`."""
        done = subprocess.run(
            [*self.before, str(PROGRAM), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment | environment,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, f"crckpt {words} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return Said(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start it in a session of its own; the test waits for it."""
        return subprocess.Popen(
            [str(PROGRAM), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment | environment,
            start_new_session=True,
        )


def network_locks() -> frozenset[str]:
    """Names of CRIU's tables in this network namespace."""
    shown = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    return frozenset(line.split()[-1] for line in shown.splitlines() if "CRIU-" in line)
