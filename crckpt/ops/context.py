"""The context of operations: the store, the CRIU that works here, the progress; and commands that enter namespaces."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from crckpt.errors import StoreUnusable, UsageError
from crckpt.host import proc
from crckpt.host.disk import space
from crckpt.host.disk.path_trust import find_intruder_on
from crckpt.host.process.typed_command import name_store

if TYPE_CHECKING:
    from crckpt.criu.find import Criu
    from crckpt.store import Repository

_CAP_SETGID: Final = 6  # linux/capability.h
_SETGROUPS: Final = Path("/proc/self/setgroups")  # user_namespaces(7)

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


def ignore_progress(_done: int, _total: int) -> None:
    """Report progress to nobody."""


class Context(Struct, frozen=True):
    """The paths that the user named, and settings that several operations share.

    `compress` is a zstd level; None: chosen by the data. `copy_progress` is of CRIU's copy of a tree's memory,
    `progress` of all that crckpt reads or writes itself. `say` shows the user what a command waits for.
    """

    store: Path
    criu_option: Path | None = None
    criu_configured: Path | None = None
    staging: Path | None = None
    compress: int | None = None
    config_digest: str | None = None
    progress: Progress = ignore_progress
    copy_progress: Progress = ignore_progress
    say: Callable[[str], None] = lambda _line: None

    def repository(self, *, create: bool = False) -> Repository:
        """Open the store. Raises StoreUnusable."""
        # Slow to import, and needed by few of the commands that make a context.
        from crckpt.store import Repository

        return Repository.open(self.store, create=create)

    def criu(self) -> Criu:
        """Find a CRIU that works here. Raises HostCannot."""
        # As above.
        from crckpt.criu.find import find

        return find(self.criu_option, self.criu_configured)


def require_writable_store(context: Context) -> None:
    """Check that a checkpoint could be stored. Nothing is made. Raises StoreUnusable."""
    # Slow to import.
    from crckpt.store import is_blank

    if not is_blank(context.store):
        context.repository().require_writable()
        return
    above = space.nearest_existing(context.store)
    if space.is_read_only(above):
        raise StoreUnusable(
            f"the store {context.store} cannot be made: {above} is on a read-only mount", hint=name_store()
        )


def require_staging(context: Context) -> None:
    """Check that the user's directory for images, if any, exists and is safe to use. Raises UsageError."""
    # A user who can replace it could make root write a program's memory anywhere.
    if context.staging is None:
        return
    if not context.staging.is_dir():
        raise UsageError(
            f"--staging: {context.staging} is not a directory", hint="create it, or name another directory"
        )
    if intruder := find_intruder_on(context.staging, frozenset({os.geteuid()})):
        raise UsageError(
            f"--staging: other users can replace {context.staging}, which will contain a program's memory: {intruder}",
            hint="name a directory that belongs to root, as do all directories above it",
        )


def nsenter_words(pid: int, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words before a command that runs it in the namespaces of process `pid`; none for no kinds.

    Only for namespaces that crckpt made and in which no other program has run: the command, and all it loads, comes
    from the mounts there.
    """
    if not kinds:
        return ()
    flags = {"pid": "--pid", "mnt": "--mount", "net": "--net", "ipc": "--ipc", "uts": "--uts"}
    return ("nsenter", "--target", str(pid), *(flags[kind] for kind in kinds))


def pid_namespace_words(pid: int) -> tuple[str, ...]:
    """Return the words before a command that runs it in the PID namespace of process `pid`, with the host's files.

    The command gets its own mount namespace with a /proc of that PID namespace. It sees no mounts of the process.
    """
    return ("nsenter", "--target", str(pid), "--pid", "unshare", "--mount", "--mount-proc")


def setpriv_words(user: tuple[int, int] | None, capabilities: frozenset[int]) -> tuple[str, ...]:
    """Return the words before a command that runs it as (uid, gid) with these capabilities; none for no user."""
    if user is None:
        return ()
    # Ambient ones survive the execution of CRIU as an ordinary user (capabilities(7)); they must be inheritable, too.
    kept = ",".join(("-all", *(f"+cap_{number}" for number in sorted(capabilities))))
    ids = ("--reuid", str(user[0]), "--regid", str(user[1]), "--clear-groups")
    return ("setpriv", *ids, f"--inh-caps={kept}", f"--ambient-caps={kept}")


def words_without_groups() -> tuple[str, ...]:
    """Return the words before a command that runs it without our supplementary groups; none if we have none.

    CRIU sets the groups of a process only if it had any: else the process would keep those of CRIU.
    """
    may_drop = _CAP_SETGID in proc.effective_capabilities() and _SETGROUPS.read_text().strip() == "allow"
    return ("setpriv", "--clear-groups") if os.getgroups() and may_drop else ()
