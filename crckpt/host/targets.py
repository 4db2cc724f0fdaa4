"""A target, as a user names it -> the PID of the tree's root."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from crckpt.errors import UsageError
from crckpt.host import proc, run

_CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/systemd"))

_FORMS = "give a PID, pidfile:PATH, unit:NAME or cgroup:PATH"
_PROPERTIES = "Id,LoadState,ActiveState,SubState,MainPID,ControlGroup"


def resolve(target: str) -> int:
    """The PID of the root that `target` names: a PID, `pidfile:PATH`, `unit:NAME` or `cgroup:PATH`.

    Raises UsageError when it names no process, or more than one tree.
    """
    kind, colon, name = target.partition(":")
    if not colon:
        return _number(target, target, _FORMS)
    resolver = {"pidfile": _of_pidfile, "unit": _of_unit, "cgroup": _of_cgroup}.get(kind)
    if resolver is None or not name:
        raise UsageError(f"{target} is no target", hint=_FORMS)
    return resolver(name)


def _number(text: str, target: str, hint: str) -> int:
    if text.strip().isascii() and text.strip().isdigit() and 0 < int(text) < 2**22 + 1:
        return int(text)
    named = f"{target} is no target: " if target else ""
    raise UsageError(f"{named}{text.strip()[:40]!r} is not a PID", hint=hint)


def _of_pidfile(name: str) -> int:
    try:
        text = Path(name).read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read the pidfile {name}: {error.strerror}", hint="is the program running?") from error
    return _number(text, f"pidfile:{name}", f"look into it: cat {name}")


def _of_unit(name: str) -> int:
    shown = run.run(["systemctl", "show", f"--property={_PROPERTIES}", "--", name])
    if not shown.ok:
        said = shown.output.strip().partition("\n")[0]
        raise UsageError(
            f"systemd does not tell of unit {name!r}: {said}", hint="give a PID, pidfile:PATH or cgroup:PATH"
        )
    # One block of lines a unit: a name may be a pattern that matches several.
    units = [_properties(block) for block in shown.output.split("\n\n") if "Id=" in block]
    if len(units) != 1:
        ids = ", ".join(sorted(unit["Id"] for unit in units)[:8]) or "none"
        raise UsageError(f"unit:{name} must name one unit, and it names {ids}", hint="look: systemctl list-units")
    pid = int(units[0].get("MainPID", "0"))
    if pid == 0:
        raise _no_main_process(units[0])
    return pid


def _properties(block: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in block.splitlines() if "=" in line)


def _no_main_process(unit: dict[str, str]) -> UsageError:
    name, cgroup = unit["Id"], unit.get("ControlGroup")
    hint = f"give its cgroup: cgroup:{cgroup}" if cgroup else "name a service, or give a PID"
    if unit["LoadState"] == "not-found":
        return UsageError(f"there is no unit {name}", hint="look for it: systemctl list-units --all")
    if "MainPID" not in unit:
        return UsageError(f"unit {name} is no service: it has no main process", hint=hint)
    if cgroup:
        return UsageError(f"systemd knows no main process of unit {name}", hint=hint)
    return UsageError(
        f"unit {name} has no process now: it is {unit['ActiveState']} ({unit['SubState']})",
        hint=f"systemctl start {run.spelled([name])}",
    )


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
