"""What every operation on live trees works with: the store, the CRIU that works, and the way into namespaces."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from crckpt.errors import HostCannot, UsageError
from crckpt.host.disk.path_trust import find_intruder_on

if TYPE_CHECKING:
    from crckpt.criu.find import Criu
    from crckpt.store import Repository

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


def silent(_done: int, _total: int) -> None:
    """Progress that nobody watches."""


class Context(Struct, frozen=True):
    """Where things are. `criu_option`, `criu_configured` and `staging` are paths that the user named.

    `compress` is a zstd level, None for what suits.
    """

    store: Path
    criu_option: Path | None = None
    criu_configured: Path | None = None
    staging: Path | None = None
    compress: int | None = None
    config_digest: str | None = None
    progress: Progress = silent

    def repository(self, *, create: bool = False) -> Repository:
        """The store. Raises StoreUnusable."""
        from crckpt.store import Repository

        return Repository.open(self.store, create=create)

    def criu(self) -> Criu:
        """The CRIU that works here. Raises HostCannot."""
        from crckpt.criu.find import find

        return find(self.criu_option, self.criu_configured)


def need_root(doing: str) -> None:
    """Raises HostCannot unless we are root."""
    if os.geteuid() != 0:
        raise HostCannot(f"{doing} needs root", hint="run it again with sudo")


def need_staging(context: Context) -> None:
    """Raises UsageError unless the directory for images that the user named, if any, is there, and is safe to use.

    Whoever could exchange it would have root write a program's memory wherever they like.
    """
    if context.staging is None:
        return
    if not context.staging.is_dir():
        raise UsageError(f"--staging: {context.staging} is no directory", hint="make it, or name another")
    if intruder := find_intruder_on(context.staging, frozenset({os.geteuid()})):
        raise UsageError(
            f"--staging: others can replace {context.staging}, which holds a program's memory: {intruder}",
            hint="name a directory that belongs to root, like all directories above it",
        )


def entered(pid: int, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The words before a command that is to run in the namespaces of process `pid`; none for no kinds.

    Only for namespaces that crckpt made and in which nobody else has run yet: the command, and all it loads, is what
    is mounted there.
    """
    if not kinds:
        return ()
    flags = {"pid": "--pid", "mnt": "--mount", "net": "--net", "ipc": "--ipc", "uts": "--uts"}
    return ("nsenter", "--target", str(pid), *(flags[kind] for kind in kinds))


def in_pids_of(pid: int) -> tuple[str, ...]:
    """Return the words before a command that is to run in the PID namespace of process `pid`, with the host's files.

    It sees a /proc of that namespace, in a mount namespace of its own: nothing of the process's own mounts.
    """
    return ("nsenter", "--target", str(pid), "--pid", "unshare", "--mount", "--mount-proc")


def as_user(user: tuple[int, int] | None, capabilities: frozenset[int]) -> tuple[str, ...]:
    """The words before a command that is to run as (uid, gid) with these capabilities; none for no user."""
    if user is None:
        return ()
    kept = ",".join(("-all", *(f"+cap_{number}" for number in sorted(capabilities))))
    ids = ("--reuid", str(user[0]), "--regid", str(user[1]), "--clear-groups")
    return ("setpriv", *ids, f"--inh-caps={kept}", f"--ambient-caps={kept}")
