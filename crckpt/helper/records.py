"""The files by which the helpers of a tree are found again. Light to load: every dump looks there.

Each lies in the directory of its kind, in the private runtime directory, and is named for PID and start time of the
root of its tree: the PID alone may belong to another process by now.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from crckpt.helper.kinds import HelperKind
from crckpt.host import proc
from crckpt.host.disk.own_files import runtime_directory


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
