"""All kinds of helpers, and the files by which they are found again. Light to load: every dump looks there.

Each file lies in the directory of its kind, in the private runtime directory, and is named for PID and start time of
the root of its tree: the PID alone may belong to another process by now.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.disk.own_files import runtime_directory


class HelperKind(Struct, frozen=True):
    """A kind of helper.

    - `name`: its name in `crckpt ps`; `module`: what Python runs: by it, it is found in /proc
    - `title`: how messages call it
    - `ends`: what ends it
    - `remedy`: the hint if it does not answer; {kill} is the command that ends it
    - `killed`: the hint if it has ended before its time
    - `directory`: where its sockets or marks lie in the runtime directory; empty if it is not found again
    """

    name: str
    module: str
    title: str
    ends: str
    remedy: str = ""
    killed: str = ""
    directory: str = ""


KEEPER: Final = HelperKind(
    name="tracker",
    module="crckpt.tracking.keeper.server",
    title="its tracker",
    ends="the end of its tree; crckpt ps --end PID",
    remedy="end it: {kill}; this does no harm: the next dump is full",
    directory="keepers",
)
FILLER: Final = HelperKind(
    name="memory filler",
    module="crckpt.ops.lazy.server",
    title="the helper that fills the memory of the tree",
    ends="the memory of its tree is complete, or the tree has ended",
    directory="filling",
)
TERMINAL: Final = HelperKind(
    name="terminal",
    module="crckpt.helper.terminal.server",
    title="the process that holds the new terminal",
    ends="the end of its tree",
    directory="terminals",
)
ADDRESS_GUARD: Final = HelperKind(
    name="address guard",
    module="crckpt.helper.address_guard.server",
    title="the process that guards the moved addresses",
    ends="the end of its move",
    killed="find out what killed it (journalctl -k), then try again",
)
REMOTE_CALLER: Final = HelperKind(
    name="remote caller",
    module="crckpt.helper.calls.remote_caller",
    title="crckpt's helper process",
    ends="itself, within seconds",
)
INIT: Final = HelperKind(
    name="namespace init",
    module="crckpt.helper.pid_namespace.init",
    title="the init of the new namespaces",
    ends="the end of its tree",
)

KINDS: Final = (KEEPER, FILLER, TERMINAL, ADDRESS_GUARD, REMOTE_CALLER, INIT)


class HelperRecord(Struct, frozen=True):
    """A file of a helper, and the root of its tree."""

    path: Path
    root: proc.Identity


def record_directory(kind: HelperKind) -> Path:
    """Return the directory of all records of a kind."""
    return runtime_directory() / kind.directory


def record_path(kind: HelperKind, root: proc.Identity, ending: str = "") -> Path:
    """Return the record of the helper of the tree with this root. It stays behind if the helper is killed."""
    return record_directory(kind) / f"{root.name}{ending}"


def find_records(kind: HelperKind, ending: str = "") -> Iterator[HelperRecord]:
    """Find all records of a kind whose name has this `ending`."""
    with suppress(FileNotFoundError):
        for path in sorted(record_directory(kind).iterdir()):
            root = proc.parse_identity(path.name.removesuffix(ending))
            if root is not None and path.name.endswith(ending):
                yield HelperRecord(path, root)
