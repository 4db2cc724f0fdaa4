"""A target, as a user names it -> the PID of the tree's root."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from crckpt.errors import UsageError
from crckpt.host import proc, run

_CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/systemd"))


def resolve(target: str) -> int:
    """The PID of the root that `target` names: a PID, `pidfile:PATH`, `unit:NAME` or `cgroup:PATH`.

    Raises UsageError when it names no process, or more than one tree.
    """
    kind, colon, name = target.partition(":")
    if not colon:
        return _number(target, target, "give a PID, pidfile:PATH, unit:NAME or cgroup:PATH")
    try:
        resolver = {"pidfile": _of_pidfile, "unit": _of_unit, "cgroup": _of_cgroup}[kind]
    except KeyError:
        raise UsageError(f"{target} is no target", hint="give a PID, pidfile:PATH, unit:NAME or cgroup:PATH") from None
    return resolver(name)


def _number(text: str, target: str, hint: str) -> int:
    if text.strip().isascii() and text.strip().isdigit() and 0 < int(text) < 2**22 + 1:
        return int(text)
    raise UsageError(f"{target} is no target: {text.strip()[:40]!r} is not a PID", hint=hint)


def _of_pidfile(name: str) -> int:
    try:
        text = Path(name).read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read the pidfile {name}: {error.strerror}", hint="is the program running?") from error
    return _number(text, f"pidfile:{name}", f"look into it: cat {name}")


def _of_unit(name: str) -> int:
    shown = run.run(["systemctl", "show", "--property=MainPID", "--value", "--", name])
    if not shown.ok:
        raise UsageError(
            f"systemd does not tell of unit {name}: {shown.output.strip()}", hint=f"systemctl status {name}"
        )
    pids = {line for line in shown.output.split() if line.isdecimal() and line != "0"}
    if not pids:
        raise UsageError(f"unit {name} has no main process now", hint=f"systemctl start {name}")
    if len(pids) > 1:  # a pattern
        raise UsageError(f"unit {name} names {len(pids)} units", hint="name one of them: systemctl list-units")
    return int(pids.pop())


def _of_cgroup(name: str) -> int:
    directory = _cgroup_directory(name)
    members: set[int] = set()
    for place, _, _ in os.walk(directory):
        with suppress(OSError):  # a cgroup may vanish while we look
            members.update(int(line) for line in Path(place, "cgroup.procs").read_text().split())
    roots: list[int] = [
        pid for pid in sorted(members) if (found := proc.read_process(pid)) and found.ppid not in members
    ]
    if not roots:
        raise UsageError(f"no process lives in cgroup {name}", hint=f"look: cat {directory}/cgroup.procs")
    if len(roots) > 1:
        shown = ", ".join(str(pid) for pid in roots[:8])
        raise UsageError(
            f"{len(roots)} separate trees live in cgroup {name}: {shown}", hint="give the PID of one of them"
        )
    return roots[0]


def _cgroup_directory(name: str) -> Path:
    for directory in (Path(name), *(base / name.lstrip("/") for base in _CGROUPS)):
        if (directory / "cgroup.procs").is_file():
            return directory
    raise UsageError(f"there is no cgroup {name}", hint="find it: cat /proc/PID/cgroup")
