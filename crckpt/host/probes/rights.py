"""Check rights: crckpt's capabilities, those of CRIU without root, and security modules."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

from crckpt.host import proc
from crckpt.host.probes.outcome import Outcome, limited, missing, ok, run_with_capabilities
from crckpt.host.process import run

# Numbers of linux/capability.h, and what fails without them.
_NEEDED = {21: "SYS_ADMIN", 19: "SYS_PTRACE", 12: "NET_ADMIN"}
_HELPFUL = {24: "SYS_RESOURCE", 40: "CHECKPOINT_RESTORE"}

# Capabilities that CRIU needs to dump processes of the user who runs it; the second also to restore them.
_OF_FILES = {40: "checkpoint_restore", 8: "setpcap"}

_SELINUX = Path("/sys/fs/selinux/enforce")
_APPARMOR = Path("/sys/module/apparmor/parameters/enabled")


def capabilities() -> Outcome:
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
        return missing(_without(lacking), "nothing can be checkpointed", run_with_capabilities(*lacking))
    # Root of a user namespace has all capabilities, but few of them count outside.
    if not _reach_the_kernel():
        lost = "nothing can be checkpointed: the kernel hides which files are mapped"
        return missing("root of a user namespace only", lost, "sudo crckpt doctor, outside the container")
    lacking = [name for number, name in _HELPFUL.items() if number not in held]
    if lacking:
        lost = "trees with processes of several users cannot be checkpointed or restored"
        return limited(_without(lacking), lost, run_with_capabilities(*lacking))
    return ok("root with all capabilities that CRIU needs")


def rootless(criu: Path | None) -> Outcome:
    """Check the capabilities that CRIU's file gives an ordinary user who runs it."""
    lost = "none on crckpt, which runs as root; other users cannot use criu --unprivileged"
    if criu is None:
        return limited("CRIU is not installed", lost, "crckpt install-criu")
    program = criu.resolve()
    with program.open("rb") as file:
        is_script = file.read(2) == b"#!"
    if is_script:
        return limited(
            f"{program} is a script, and the kernel ignores the capabilities of scripts",
            lost,
            _make_setpriv_command(program),
        )
    held = _of_file(program)
    lacking = [name for number, name in _OF_FILES.items() if number not in held]
    if lacking:
        give = f"sudo setcap cap_{',cap_'.join(_OF_FILES.values())}+eip {run.quote([str(program)])}"
        return limited(f"{program} lacks {', '.join(f'cap_{name}' for name in lacking)}", lost, give)
    return ok(
        f"all users can dump and restore their own processes with {program} --unprivileged", "crckpt itself needs root"
    )


def _make_setpriv_command(program: Path) -> str:
    """The command that lets an ordinary user run a program with these capabilities."""
    kept = ",".join(f"+{name}" for name in _OF_FILES.values())
    words = ("--reuid", "USER", "--regid", "GROUP", "--init-groups", f"--inh-caps={kept}", f"--ambient-caps={kept}")
    return run.quote(["sudo", "setpriv", *words, str(program), "dump", "--unprivileged"]) + " ..."


def security_modules() -> Outcome:
    """Check whether AppArmor or SELinux confine us."""
    label = _label()
    if _SELINUX.exists() and _SELINUX.read_text().strip() == "1":
        return limited(
            f"SELinux is enforcing, and the label of crckpt is {label or 'none'}",
            "its policy may forbid a dump or restore",
            "if one fails: ausearch -m avc -c criu shows what was denied; setenforce 0 turns SELinux off to try again",
        )
    if _APPARMOR.exists() and _APPARMOR.read_text().strip() == "Y":
        if label.startswith("unconfined"):
            return ok("AppArmor does not confine crckpt")
        lost = "a dump or restore fails if it needs what this profile forbids"
        fix = "run crckpt unconfined (in a container: docker run --security-opt apparmor=unconfined ...)"
        return limited(f"AppArmor confines crckpt: {label}", lost, fix)
    return ok("neither AppArmor nor SELinux is active")


def _reach_the_kernel() -> bool:
    """Return whether our capabilities count in the first user namespace. Source: fs/proc/base.c,
    proc_map_files_get_link.
    """
    # Following such a link needs a capability there, and CRIU follows one for each mapped file.
    try:
        next(Path("/proc/self/map_files").iterdir()).stat()
    except PermissionError:
        return False
    return True


def _label() -> str:
    try:
        return Path("/proc/self/attr/current").read_text().strip("\0\n ")
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):
            raise
        return ""  # no module gives labels


def _without(names: list[str]) -> str:
    return f"root without {', '.join(f'CAP_{name}' for name in names)}"


def _of_file(program: Path) -> frozenset[int]:
    """Capabilities that the file gives as permitted and effective. Source: struct vfs_cap_data."""
    # Magic with flags (bit 0: effective), then permitted and inheritable, low halves first.
    try:
        words = struct.unpack_from("<IIIII", os.getxattr(program, "security.capability"))
    except OSError:
        return frozenset()
    permitted = words[1] | words[3] << 32
    return frozenset(bit for bit in range(64) if permitted >> bit & 1 and words[0] & 1)
