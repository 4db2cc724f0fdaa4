"""Check directories: the store, staging, CRIU's cache in /run, and control groups."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from crckpt.host.disk import space
from crckpt.host.probes.outcome import GIBIBYTE, Outcome, free_of, limited, missing, ok
from crckpt.host.proc.mountinfo import mount_points
from crckpt.host.process import run

_RUN = Path("/run")
_ANOTHER = "use another store: --store DIR, or CRCKPT_STORE=DIR"


def run_directory() -> Outcome:
    """Check /run, where CRIU caches kernel features."""
    # CRIU keeps its cache, criu.kdat, only on a tmpfs, which ends with the boot of this kernel (criu/kerndat.c:1286).
    kind = _file_system(_RUN)
    if kind == "tmpfs":
        return ok("/run is a tmpfs, where CRIU caches the features of the kernel")
    return limited(
        f"/run is on {kind}, not on a tmpfs",
        "each run of CRIU takes 40 ms longer and leaves the file /run/criu.kdat.tmp",
        "in a container: docker run --tmpfs /run ...; else add /run to /etc/fstab",
    )


def store(path: Path) -> Outcome:
    """Check the store's owner, mode, file system and free space; or whether a missing store can be made."""
    there = _nearest(path)
    if there != path:
        prefix = f"{path} does not exist yet; the first dump makes it: "
        refused = _find_obstacle(path, there)
    else:
        prefix, refused = "", _find_refusal(path)
    if refused:
        return refused
    # Without a C compiler the hold's program is a shell script in the store.
    if os.statvfs(there).f_flag & os.ST_NOEXEC:
        return limited(
            f"{prefix}{there} is on a noexec mount",
            "dumps and restores fail if crckpt was installed without a C compiler",
            _ANOTHER,
        )
    if _file_system(there) in ("tmpfs", "ramfs"):
        return limited(f"{prefix}{_room(there)}", "checkpoints are lost at a reboot", _ANOTHER)
    return _check_room(there, "free space: crckpt gc; or use --store DIR on a larger disk", prefix)


def staging(path: Path | None, in_store: Path) -> Outcome:
    """Check the directory for the images of a dump until they are stored."""
    if path is None:
        return _check_room(
            _nearest(in_store),
            "use another directory: crckpt dump --staging DIR",
            "during a dump images are in the store: ",
        )
    if not path.is_dir():
        return missing(f"{path} is not a directory", "no dump can be made", run.quote(["mkdir", str(path)]))
    return _check_room(path, "use another directory: crckpt dump --staging DIR")


def cgroups() -> Outcome:
    """Check which versions of control groups are mounted."""
    kinds = {found.kind for found in mount_points()} & {"cgroup", "cgroup2"}
    if not kinds:
        lost = "crckpt cannot see memory limits: a dump may exceed them"
        return missing("no control groups are mounted", lost, "mount -t cgroup2 none /sys/fs/cgroup")
    layout = "v1 and v2 (hybrid)" if len(kinds) == 2 else "v2" if "cgroup2" in kinds else "v1"
    return ok(f"control groups {layout} are mounted")


def _find_obstacle(path: Path, above: Path) -> Outcome | None:
    """Find why no directory can be made there; None if one can."""
    # Try it: the mode does not show read-only mounts, quotas, or file systems like /proc.
    try:
        Path(tempfile.mkdtemp(prefix=".crckpt-", dir=above)).rmdir()
    except OSError as error:
        found = f"{path} does not exist and cannot be made below {above}: {error.strerror}"
        return missing(found, "nothing can be stored", _ANOTHER)
    return None


def _find_refusal(path: Path) -> Outcome | None:
    """Find why crckpt would refuse this directory as a store; None if it would not."""
    lost = "nothing can be stored"
    status = path.stat()
    if status.st_uid != os.geteuid():
        return missing(f"{path} belongs to uid {status.st_uid}, but crckpt runs as uid {os.geteuid()}", lost, _ANOTHER)
    if not path.is_dir():
        return missing(f"{path} is not a directory", lost, _ANOTHER)
    if not space.is_writable(path):
        why = "is on a read-only mount" if space.is_read_only(path) else "cannot be written (is it immutable?)"
        return missing(f"{path} {why}", f"{lost}; what it has can be restored", _ANOTHER)
    if stat.S_IMODE(status.st_mode) & 0o077 and (path / "store.json").exists():
        # Safe only for a store: other users may need another directory.
        return missing(
            f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):o})",
            lost,
            run.quote(["chmod", "700", str(path)]),
            safe=True,
        )
    return None


def _check_room(path: Path, more: str, prefix: str = "") -> Outcome:
    found = prefix + _room(path)
    if space.free_disk(path) < GIBIBYTE:
        return limited(found, "a dump of a large tree does not fit", more)
    return ok(found)


def _room(path: Path) -> str:
    usage = shutil.disk_usage(path)
    return f"{free_of(usage.free, usage.total)} on {_file_system(path)} ({path})"


def _nearest(path: Path) -> Path:
    """The path, or the nearest directory above it that we can reach."""
    return next(above for above in (path, *path.parents) if os.access(above, os.F_OK, effective_ids=True))


def _file_system(path: Path) -> str:
    """The kind of file system that a path lies on."""
    real = path.resolve()
    # Parents come first, so the last mount above the path is the nearest.
    above = (found.kind for found in reversed(mount_points()) if real.is_relative_to(found.path))
    return next(above, "an unknown file system")
