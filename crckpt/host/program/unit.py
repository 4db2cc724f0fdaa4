"""Find the systemd service whose main process a process is, by its control group."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from crckpt.host.proc.cgroup import find_directory, find_roots, read_cgroups

# systemd's own hierarchy: version 2 alone, or the named one of version 1.
_OF_SYSTEMD: Final = ("", "name=systemd")
_UNITS: Final = (".service", ".scope")
# systemd-run makes these names, which mean nothing to anybody.
_TRANSIENT: Final = re.compile(r"run-(u[0-9]+|r[0-9a-f]+|p[0-9]+-i[0-9]+)\.service")


def find_service(pid: int) -> str:
    """The control group of the service whose processes all descend from this one; empty if there is none.

    A job of cron, or a shell of a login, is in the control group of a service, too, but does not have it alone.
    """
    with suppress(OSError):
        group = find_unit(pid)
        directory = find_directory(group) if group else None
        if directory is not None and find_roots(directory) == [pid]:
            return group
    return ""


def find_unit(pid: int) -> str:
    """The control group of the service in which a process is; empty if there is none."""
    # Such a group may vanish, and in a container it may be out of sight.
    with suppress(OSError):
        groups = (_find_unit(path) for controllers, path in read_cgroups(pid) if controllers in _OF_SYSTEMD)
        return next(filter(None, groups), "")
    return ""


def _find_unit(path: str) -> str:
    """The group of the innermost unit on a path, if it is a service."""
    groups = (group for group in (PurePosixPath(path), *PurePosixPath(path).parents) if group.name.endswith(_UNITS))
    unit = next(groups, None)
    if unit is None or not unit.name.endswith(".service") or _TRANSIENT.fullmatch(unit.name) or ".." in unit.parts:
        return ""
    return str(unit)
