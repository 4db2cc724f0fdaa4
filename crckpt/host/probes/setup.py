"""Check how this host is set up: rights and security modules, the store and other directories, and programs."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

from crckpt.host import proc
from crckpt.host.disk import space
from crckpt.host.machine import has_security_module
from crckpt.host.probes.trial import GIBIBYTE, Fact, free_of, limited, missing, ok, run_with_capabilities
from crckpt.host.proc.mountinfo import mount_points
from crckpt.host.process import run

# Numbers of linux/capability.h, and what fails without them.
_NEEDED = {21: "SYS_ADMIN", 19: "SYS_PTRACE", 12: "NET_ADMIN"}
_HELPFUL = {24: "SYS_RESOURCE", 40: "CHECKPOINT_RESTORE"}

# Capabilities that CRIU needs to dump processes of the user who runs it; the second also to restore them.
_OF_FILES = {40: "checkpoint_restore", 8: "setpcap"}

_SELINUX = Path("/sys/fs/selinux/enforce")

_RUN = Path("/run")
_ANOTHER = "use another store: --store DIR, or CRCKPT_STORE=DIR"
# flock: in the hold's shell script. setpriv: before CRIU. unshare, nsenter: for new PID namespaces, and trees that have
# their own.
_TOOLS = ("flock", "setpriv", "unshare", "nsenter")
_PROGRAM_S = 3
_GPUS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
# CRIU's help has the directory that it was built with.
_PLUGINS = re.compile(r"--libdir\s.*?by default (\S+?)\)", re.DOTALL)


def capabilities() -> Fact:
    """Compare our capabilities with those that a checkpoint needs."""
    if os.geteuid() != 0:
        return missing(
            f"crckpt does not run as root, but as uid {os.geteuid()}",
            "nothing can be checkpointed or restored",
            "sudo crckpt doctor",
        )
    held = proc.effective_capabilities()
    lacking = [name for number, name in _NEEDED.items() if number not in held]
    if lacking:
        return missing(
            f"root without CAP_{', CAP_'.join(lacking)}", "nothing can be checkpointed", run_with_capabilities(*lacking)
        )
    # Root of a user namespace has all capabilities, but few of them count outside. Following such a link needs one in
    # the first user namespace, and CRIU follows one for each mapped file (fs/proc/base.c, proc_map_files_get_link).
    try:
        next(Path("/proc/self/map_files").iterdir()).stat()
    except PermissionError:
        lost = "nothing can be checkpointed: the kernel hides which files are mapped"
        return missing("root of a user namespace only", lost, "sudo crckpt doctor, outside the container")
    lacking = [name for number, name in _HELPFUL.items() if number not in held]
    if lacking:
        lost = "trees with processes of several users cannot be checkpointed or restored"
        return limited(f"root without CAP_{', CAP_'.join(lacking)}", lost, run_with_capabilities(*lacking))
    return ok("root with all capabilities that CRIU needs")


def rootless(criu: Path | None) -> Fact:
    """Check the capabilities that CRIU's file gives an ordinary user who runs it."""
    lost = "none on crckpt, which runs as root; other users cannot use criu --unprivileged"
    if criu is None:
        return limited("CRIU is not installed", lost, "crckpt install-criu")
    program = criu.resolve()
    with program.open("rb") as file:
        is_script = file.read(2) == b"#!"
    if is_script:
        kept = ",".join(f"+{name}" for name in _OF_FILES.values())
        words = ("--reuid", "USER", "--regid", "GROUP", "--init-groups", f"--inh-caps={kept}", f"--ambient-caps={kept}")
        fix = run.quote(["sudo", "setpriv", *words, str(program), "dump", "--unprivileged"]) + " ..."
        return limited(f"{program} is a script, and the kernel ignores the capabilities of scripts", lost, fix)
    # Magic with flags (bit 0: effective), then permitted and inheritable, low halves first (struct vfs_cap_data).
    of_file: tuple[int, ...] = (0,) * 5
    with suppress(OSError):
        of_file = struct.unpack_from("<IIIII", os.getxattr(program, "security.capability"))
    permitted = of_file[1] | of_file[3] << 32 if of_file[0] & 1 else 0
    held = frozenset(bit for bit in range(64) if permitted >> bit & 1)
    lacking = [name for number, name in _OF_FILES.items() if number not in held]
    if lacking:
        give = f"sudo setcap cap_{',cap_'.join(_OF_FILES.values())}+eip {run.quote([str(program)])}"
        return limited(f"{program} lacks {', '.join(f'cap_{name}' for name in lacking)}", lost, give)
    return ok(
        f"all users can dump and restore their own processes with {program} --unprivileged", "crckpt itself needs root"
    )


def security_modules() -> Fact:
    """Check whether AppArmor or SELinux confine us."""
    label = ""
    try:
        label = Path("/proc/self/attr/current").read_text().strip("\0\n ")
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):  # no module gives labels
            raise
    if _SELINUX.exists() and _SELINUX.read_text().strip() == "1":
        return limited(
            f"SELinux is enforcing, and the label of crckpt is {label or 'none'}",
            "its policy may forbid a dump or restore",
            "if one fails: ausearch -m avc -c criu shows what was denied; setenforce 0 turns SELinux off to try again",
        )
    if has_security_module("apparmor"):
        if label.startswith("unconfined"):
            return ok("AppArmor does not confine crckpt")
        lost = "a dump or restore fails if it needs what this profile forbids"
        fix = "run crckpt unconfined (in a container: docker run --security-opt apparmor=unconfined ...)"
        return limited(f"AppArmor confines crckpt: {label}", lost, fix)
    return ok("neither AppArmor nor SELinux is active")


def run_directory() -> Fact:
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


def store(path: Path) -> Fact:
    """Check the store's owner, mode, file system and free space; or whether a missing store can be made."""
    there, prefix, lost = _nearest(path), "", "nothing can be stored"
    if there != path:
        prefix = f"{path} does not exist yet; the first dump makes it: "
        # Try it: the mode does not show read-only mounts, quotas, or file systems like /proc.
        try:
            Path(tempfile.mkdtemp(prefix=".crckpt-", dir=there)).rmdir()
        except OSError as error:
            found = f"{path} does not exist and cannot be made below {there}: {error.strerror}"
            return missing(found, lost, _ANOTHER)
    else:
        status = path.stat()
        if status.st_uid != os.geteuid():
            return missing(
                f"{path} belongs to uid {status.st_uid}, but crckpt runs as uid {os.geteuid()}", lost, _ANOTHER
            )
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
    # Without a C compiler the hold's program is a shell script in the store.
    if os.statvfs(there).f_flag & os.ST_NOEXEC:
        return limited(
            f"{prefix}{there} is on a noexec mount",
            "dumps and restores fail if crckpt was installed without a C compiler",
            _ANOTHER,
        )
    room = _check_room(there, "free space: crckpt gc; or use --store DIR on a larger disk", prefix)
    if _file_system(there) in ("tmpfs", "ramfs"):
        return limited(room.found, "checkpoints are lost at a reboot", _ANOTHER)
    return room


def staging(path: Path | None, in_store: Path) -> Fact:
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


def cgroups() -> Fact:
    """Check which versions of control groups are mounted."""
    kinds = {found.kind for found in mount_points()} & {"cgroup", "cgroup2"}
    if not kinds:
        lost = "crckpt cannot see memory limits: a dump may exceed them"
        return missing("no control groups are mounted", lost, "mount -t cgroup2 none /sys/fs/cgroup")
    layout = "v1 and v2 (hybrid)" if len(kinds) == 2 else "v2" if "cgroup2" in kinds else "v1"
    return ok(f"control groups {layout} are mounted")


def _check_room(path: Path, more: str, prefix: str = "") -> Fact:
    usage = shutil.disk_usage(path)
    found = f"{prefix}{free_of(usage.free, usage.total)} on {_file_system(path)} ({path})"
    if space.free_disk(path) < GIBIBYTE:
        return limited(found, "a dump of a large tree does not fit", more)
    return ok(found)


def _nearest(path: Path) -> Path:
    """The path, or the nearest directory above it that we can reach."""
    return next(above for above in (path, *path.parents) if os.access(above, os.F_OK, effective_ids=True))


def _file_system(path: Path) -> str:
    """The kind of file system that a path lies on."""
    real = path.resolve()
    # Parents come first, so the last mount above the path is the nearest.
    above = (found.kind for found in reversed(mount_points()) if real.is_relative_to(found.path))
    return next(above, "an unknown file system")


def criu_plugins(criu: Path | None) -> Fact:
    """Find the directory of this CRIU's plugins, and list them."""
    lost = "programs that use a GPU cannot be checkpointed; others do not need plugins"
    if criu is None:
        return missing("CRIU is not installed", lost, "crckpt install-criu")
    found = _PLUGINS.search(run.run([criu, "--help"], timeout=_PROGRAM_S).output)
    if found is None:
        return missing(f"{criu} --help names no directory of plugins", lost)
    directory = Path(found[1])
    names = sorted(path.name for path in directory.glob("*.so"))
    if not names:
        return missing(f"no CRIU plugins in {directory}", lost, f"install the GPU's CRIU plugin into {directory}")
    return ok(f"{', '.join(names)} in {directory}")


def has_gpu() -> bool:
    """Return whether this host has a GPU that a plugin of CRIU is for: NVIDIA's or AMD's."""
    return any(device.exists() for device in _GPUS)


def util_linux() -> Fact:
    """Find the programs of util-linux that crckpt needs."""
    lacking = [tool for tool in _TOOLS if run.find_program(tool) is None]
    if lacking:
        lost = "crckpt cannot restore, or cannot use PID namespaces"
        return missing(f"not installed: {', '.join(lacking)}", lost, "apt-get install util-linux")
    return ok(f"{', '.join(_TOOLS)} are installed")


def systemd() -> Fact:
    """Check whether systemd runs this host. Source: sd_booted(3)."""
    if Path("/run/systemd/system").is_dir():
        return ok("systemd runs this host")
    return missing("systemd does not run here", "unit:NAME does not work; name a process by its PID")


def ssh() -> Fact:
    """Start the program that copies checkpoints to other hosts."""
    tool = run.find_program("ssh")
    lost = "none on crckpt; you cannot copy checkpoints to another host by ssh"
    if tool is None:
        return missing("ssh is not installed", lost, "apt-get install openssh-client")
    said = run.run([tool, "-V"], timeout=_PROGRAM_S)
    if not said.ok:
        return missing(f"{tool} does not start", lost, "apt-get install --reinstall openssh-client")
    return ok(said.output.strip())
