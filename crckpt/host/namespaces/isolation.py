"""Isolate new namespaces from inside: overlay the file systems, and put needed addresses on the loopback interface.

Each writable file system gets an overlay that keeps changes in memory: files of the host are read and never written.
The kernel discards all of it with the last process of the namespaces.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
from contextlib import suppress
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.host.opened import opened
from crckpt.host.proc.mountinfo import Mount, mount_points
from crckpt.host.syscalls.own_process import become_root, bind, bind_read_only, mount

_SIOCSIFFLAGS: Final = 0x8914
_SIOCSIFADDR: Final = 0x8916
_SIOCSIFNETMASK: Final = 0x891C
# linux/sockios.h, linux/if.h
_IFF_UP: Final = 1


class SeclusionPlan(Struct, frozen=True):
    """The measures that isolate the namespaces.

    `work` is a private directory that stays shared with the host, `sockets` are paths of sockets of the host that stay
    reachable. `addresses` go on the loopback interface, `cut` are (path, size in bytes) of files to truncate, `links`
    (path, name) of links to make to files in their directories. `room` is how many bytes may be written.
    """

    work: str
    sockets: tuple[str, ...]
    addresses: tuple[str, ...]
    cut: tuple[tuple[str, int], ...]
    room: int
    links: tuple[tuple[str, str], ...] = ()


def seclude(wanted: SeclusionPlan) -> tuple[str, ...]:
    """Carry out a plan; return the mount points that could get no overlay: they are read-only or missing.

    Raises OSError.
    """
    # Requests of netdevice(7): a new network namespace has its loopback interface down, and no address.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
        for number, address in enumerate(map(ip_address, wanted.addresses)):
            if isinstance(address, IPv4Address):
                # Each address gets its own label: on `lo` itself it would replace the previous one.
                label = f"lo:{number}".encode()
                for request, value in ((_SIOCSIFADDR, address.packed), (_SIOCSIFNETMASK, b"\xff" * 4)):
                    fcntl.ioctl(control, request, struct.pack("16sHH4s8x", label, socket.AF_INET, 0, value))
            else:
                with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as control6:
                    # struct in6_ifreq: address, prefix length, interface
                    words = struct.pack("16sIi", address.packed, 128, socket.if_nametoindex("lo"))
                    fcntl.ioctl(control6, _SIOCSIFADDR, words)
    unwritable = _renew_root(wanted)
    # Only now are these copies in the overlays: before, they were the host's files.
    for path, size in wanted.cut:
        os.truncate(path, size)
    for path, name in wanted.links:
        os.link(Path(path).with_name(name), path, follow_symlinks=False)
    return unwritable


def _renew_root(wanted: SeclusionPlan) -> tuple[str, ...]:
    """Mount everything anew below a directory and make it the root."""
    memory = Path(wanted.work) / "overlays"
    memory.mkdir(mode=0o700)
    mount("tmpfs", str(memory), "tmpfs", data=f"size={wanted.room},mode=0700")
    root = memory / "root"
    root.mkdir()
    root.chmod(0o755)  # whatever the umask: programs of other users must get through "/"
    unwritable = []
    for number, found in enumerate(mount_points()):
        # Skip what is mounted below the directory, or below a mount that hides it.
        if found.path == str(memory) or not os.path.lexists(found.path):
            continue
        try:
            _mount_anew(found, f"{root}{found.path}", memory / str(number))
        except OSError:
            unwritable.append(found.path)
            with suppress(OSError):
                bind_read_only(found.path, f"{root}{found.path}", found.flags)
    # These need no overlay: what is written in `work` must reach crckpt.
    for path in (wanted.work, *wanted.sockets):
        bind(path, f"{root}{path}")
    become_root(str(root))
    return tuple(unwritable)


def _mount_anew(found: Mount, target: str, layer: Path) -> None:
    """Mount one file system again at `target`. Raises OSError."""
    # Access below autofs would mount something on the host. What is mounted below /proc (binfmt_misc) is the host's.
    if found.kind == "autofs" or found.path.startswith("/proc/"):
        return
    if found.path == "/proc":
        mount("proc", target, "proc", found.flags)
        for writable in ("sys", "sysrq-trigger"):  # the kernel's own settings, which have no namespace
            if Path(target, writable).exists():
                bind_read_only(f"{target}/{writable}", f"{target}/{writable}", found.flags)
    # New instances: programs must not reach the host's terminals and queues.
    elif found.kind == "devpts":
        mount("devpts", target, "devpts", found.flags, "newinstance,ptmxmode=0666,mode=0620")
    elif found.kind == "mqueue":
        mount("mqueue", target, "mqueue", found.flags)
    elif found.is_read_only or not Path(found.path).is_dir() or f"{found.path}/".startswith("/sys/"):
        bind_read_only(found.path, target, found.flags)
    else:
        upper, work = layer / "upper", layer / "work"
        for directory in (layer, upper, work):
            directory.mkdir(mode=0o700)
        # The root of an overlay has owner and mode of its upper directory.
        shutil.copystat(found.path, upper)
        status = Path(found.path).stat()
        os.chown(upper, status.st_uid, status.st_gid)
        with (
            opened(os.open(found.path, os.O_PATH | os.O_DIRECTORY)) as lower,
            opened(os.open(layer, os.O_PATH | os.O_DIRECTORY)) as beside,
        ):
            # By descriptors: commas and colons in the paths would be options.
            below, above = (f"/proc/self/fd/{descriptor}" for descriptor in (lower, beside))
            data = f"lowerdir={below},upperdir={above}/upper,workdir={above}/work"
            mount("overlay", target, "overlay", found.flags, data)
