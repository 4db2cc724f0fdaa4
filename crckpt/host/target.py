"""Find the root of a tree that a user names, and hold it: no other process with its PID is mistaken for it.

Restored trees are recorded, with the processes of crckpt that stay for them. The records are useless after a boot.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from crckpt.errors import PreflightRefused, TargetNotRunning, UsageError
from crckpt.host import proc
from crckpt.host.disk.files import rename, write_unsynced
from crckpt.host.disk.own_files import make_runtime_directory, runtime_directory
from crckpt.host.disk.path_trust import find_intruder, find_intruder_on, open_path, read_small
from crckpt.host.opened import opened
from crckpt.host.proc import procfs
from crckpt.host.proc.mountinfo import read_mounts
from crckpt.host.process import run
from crckpt.host.process.cgroups import find_directory, find_roots
from crckpt.host.process.pidfd import HeldProcess
from crckpt.model import CheckpointId, JobName, StoreId

_MOST_OF_A_PIDFILE = 4096
# PID_MAX_LIMIT of a 64-bit kernel. Not its setting: a process may be older than that. Source: include/linux/threads.h.
_HIGHEST_PID = 2**22
_PID_MAX = "/proc/sys/kernel/pid_max"
# Python refuses to convert thousands of digits.
_MOST_DIGITS = 1000
_PID_DIGITS = len(str(_HIGHEST_PID))
_PROGRAM = re.compile(r"[A-Za-z][A-Za-z0-9._+-]*")
_FORMS = "name a PID, pidfile:PATH, unit:NAME or cgroup:PATH"
_PROPERTIES = "Id,LoadState,ActiveState,SubState,MainPID,ControlGroup"


@contextmanager
def pinned(target: str) -> Iterator[HeldProcess]:
    """Hold the root that `target` names while the block runs. Raises what `resolve` raises.

    Raises UsageError if the process of a unit, pidfile or control group was started after the look-up: then another
    process may have got the PID before it was held.
    """
    asked = time.clock_gettime(time.CLOCK_BOOTTIME)  # the clock of start times in /proc/PID/stat
    with HeldProcess(resolve(target)) as process:
        started = proc.start_time(process.pid)
        # Allow one more tick, as both are rounded. A bare PID needs no look-up: the user typed it.
        if ":" in target and started is not None and started > asked * os.sysconf("SC_CLK_TCK") + 1:
            raise UsageError(f"the process of {target} has just been started", hint="try again")
        yield process


def resolve(target: str) -> int:
    """The PID of the root that `target` names: a PID, `pidfile:PATH`, `unit:NAME` or `cgroup:PATH`.

    If that is a process of crckpt that stays for a restored tree, it is the root of that tree.

    Raises UsageError if it is no valid target or names more than one tree, TargetNotRunning if it names no process, and
    PreflightRefused if a user who may neither be root nor that process's user could have written which process it
    names.
    """
    kind, colon, name = target.partition(":")
    if not colon:
        advice = f"for a program, give its PID: pgrep -af {target} (package procps); for a service: unit:{target}"
        return find_root_behind(_number(target, "", advice if _PROGRAM.fullmatch(target) else _FORMS))
    resolver = {"pidfile": _of_pidfile, "unit": _of_unit, "cgroup": _of_cgroup}.get(kind)
    if resolver is None or not name:
        raise UsageError(f"{target!r} is not a valid target", hint=_FORMS)
    return find_root_behind(resolver(name))


def _number(text: str, pidfile: str, hint: str) -> int:
    # isdigit() alone accepts the digits of all scripts.
    number = int(text) if text.strip().isascii() and text.strip().isdigit() and len(text) < _MOST_DIGITS else 0
    if 0 < number <= _HIGHEST_PID:
        return number
    said = f"{text.strip()[:40]!r}"
    why = f": it is too large; this kernel's PIDs are below {procfs.text(_PID_MAX).strip()}" if number else ""
    message = f"{pidfile} contains {said}, which is not a PID" if pidfile else f"{said} is not a PID"
    raise UsageError(f"{message}{why}", hint=hint)


def _of_pidfile(name: str) -> int:
    """The PID in the file, if nobody but root and the user of that process can have written it there."""
    # systemd has the same rule for PIDFile=. Source: systemd.service(5).
    try:
        descriptor, entries = open_path(Path(name))
        with opened(descriptor):
            text = read_small(descriptor, _MOST_OF_A_PIDFILE).decode(errors="replace")
            written = os.fstat(descriptor).st_mtime
    except FileNotFoundError:
        # Most programs remove their pidfile when they end.
        raise TargetNotRunning(
            f"there is no pidfile {name}: its program does not run, or the path is wrong",
            hint="check that the program is running",
        ) from None
    except OSError as error:
        raise UsageError(
            f"cannot read the pidfile {name}: {error.strerror}", hint="check that the program is running"
        ) from error
    first, _, more = text.partition("\n")
    advice = f"read it: cat {run.quote([name])}"
    if more and first.isascii() and first.isdigit():  # that of PostgreSQL, for example
        advice = f"a pidfile contains nothing but a PID; name the PID itself: {first[:_PID_DIGITS]}"
    pid = _number(text, f"pidfile:{name}", advice)
    process = proc.read_process(pid)
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)  # by the clock as it is set now
    # A process that is younger than the file has not written it.
    if process is None or booted + process.start / os.sysconf("SC_CLK_TCK") > written:
        # The root of a restored tree may have this PID in a PID namespace of its own.
        found = [root for _, root in find_restored_trees() if len(root.ns_pids) > 1 and root.ns_pids[-1] == pid]
        if len(found) > 1:
            names = ", ".join(f"{root.comm} (PID {root.pid})" for root in found)
            raise UsageError(
                f"several restored programs have PID {pid} in their namespaces, which the pidfile {name} names: "
                f"{names}",
                hint="name one of these PIDs",
            )
        process = found[0] if found else process
    if process is None:
        raise TargetNotRunning(
            f"there is no process {pid}, which the pidfile {name} names", hint="check that the program is running"
        )
    process = proc.read_process(find_root_behind(process.pid)) or process
    # A program with the rights of several users counts as root's.
    users = frozenset(process.uids)
    if intruder := find_intruder(entries, users if len(users) == 1 else frozenset()):
        raise PreflightRefused(
            f"the pidfile {name} names {process.comm} (PID {process.pid}), but other users can change the file: "
            f"{intruder}",
            hint=f"if this is the right process, use its PID: {process.pid}; or keep the file in a directory of root's",
        )
    return process.pid


def _of_unit(name: str) -> int:
    shown = run.run(["systemctl", "show", f"--property={_PROPERTIES}", "--", name])
    if not shown.ok:
        said = shown.output.strip().partition("\n")[0]
        raise UsageError(
            f"cannot ask systemd about unit {name!r}: {said}", hint="name a PID, pidfile:PATH or cgroup:PATH"
        )
    # One block of lines a unit: a name may be a pattern that matches several.
    blocks = [block.splitlines() for block in shown.output.split("\n\n") if "Id=" in block]
    units = [dict(line.split("=", 1) for line in block if "=" in line) for block in blocks]
    if len(units) != 1:
        ids = ", ".join(sorted(unit["Id"] for unit in units)[:8]) or "none"
        raise UsageError(
            f"unit:{name} must name one unit, but names {ids}", hint="list all units: systemctl list-units"
        )
    (unit,) = units
    if pid := int(unit.get("MainPID", "0")):
        return pid
    name, cgroup = unit["Id"], unit.get("ControlGroup")
    hint = f"name its cgroup: cgroup:{cgroup}" if cgroup else "name a service or a PID"
    if unit["LoadState"] == "not-found":
        raise UsageError(f"there is no unit {name}", hint="list all units: systemctl list-units --all")
    if "MainPID" not in unit:
        raise UsageError(f"unit {name} is not a service: it has no main process", hint=hint)
    if cgroup:
        raise UsageError(f"systemd knows no main process of unit {name}", hint=hint)
    raise TargetNotRunning(
        f"unit {name} has no process now: it is {unit['ActiveState']} ({unit['SubState']})",
        hint=f"see why: systemctl status {run.quote([name])}",
    )


def _of_cgroup(name: str) -> int:
    # A whole path, or one in systemd's hierarchy.
    directory = Path(name) if (Path(name) / "cgroup.procs").is_file() else find_directory(name)
    if directory is None:
        # systemd removes the control group of a service that has ended.
        raise TargetNotRunning(
            f"there is no cgroup {name}: its program does not run, or the path is wrong",
            hint="find it: cat /proc/PID/cgroup",
        )
    # Only the kernel or root must be able to write its list of processes.
    device = directory.stat().st_dev
    is_real = any(mount.device == device and mount.kind in ("cgroup", "cgroup2") for mount in read_mounts())
    if not is_real and (intruder := find_intruder_on(directory / "cgroup.procs", frozenset())):
        hint = "find it: cat /proc/PID/cgroup"
        raise PreflightRefused(f"{directory} is not a control group, and {intruder}", hint=hint)
    roots = find_roots(directory)
    if not roots:
        raise TargetNotRunning(
            f"cgroup {name} has no process", hint=f"check: cat {run.quote([f'{directory}/cgroup.procs'])}"
        )
    if len(roots) > 1:
        shown = ", ".join(str(pid) for pid in roots[:8])
        raise UsageError(f"cgroup {name} has {len(roots)} separate trees: {shown}", hint="name one of these PIDs")
    return roots[0]


class RestoredTree(Struct, frozen=True):
    """A restored tree.

    - `root`: its root, as crckpt saw it
    - `store`, `job`, `checkpoint`: the id of the store, and what was restored
    - `helpers`: the processes of crckpt that stay for the tree: the init of its PID namespace and what made that, the
      holder of its terminal, and a restore in the foreground
    """

    root: proc.LiveRoot
    store: StoreId
    job: JobName
    checkpoint: CheckpointId
    helpers: tuple[proc.Identity, ...] = ()


_DECODER: Final = msgspec.json.Decoder(RestoredTree)


def record_restored(tree: RestoredTree) -> None:
    """Record a tree that is about to run. Raises OSError."""
    path = _directory() / tree.root.name
    make_runtime_directory(path)
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    write_unsynced(new, msgspec.json.encode(tree), "restored")
    rename(new, path, "restored")


def find_restored_trees() -> Iterator[tuple[RestoredTree, proc.Process]]:
    """Find the restored trees that run, each with its root. Records of those that have ended are removed."""
    with suppress(FileNotFoundError):
        for path in sorted(_directory().iterdir()):
            with suppress(OSError, msgspec.DecodeError):
                tree = _DECODER.decode(path.read_bytes())
                if (root := tree.root.find()) is not None:
                    yield tree, root
                elif tree.root.has_ended():
                    path.unlink()


def find_root_behind(pid: int) -> int:
    """Return the root of the restored tree for which process `pid` of crckpt stays; or `pid`."""
    helper = proc.identify(pid)
    return next((root.pid for tree, root in find_restored_trees() if helper in tree.helpers), pid)


def _directory() -> Path:
    return runtime_directory() / "restored"
