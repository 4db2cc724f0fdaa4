"""What this host supports, each fact probed, never guessed from a version."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.host import network, pagemap, proc, run

_GIBIBYTE = 1 << 30

# Numbers of linux/capability.h, and what goes without them.
_NEEDED = {21: "CAP_SYS_ADMIN", 19: "CAP_SYS_PTRACE", 12: "CAP_NET_ADMIN"}
_HELPFUL = {24: "CAP_SYS_RESOURCE", 40: "CAP_CHECKPOINT_RESTORE"}


class Fact(Struct, frozen=True):
    """One thing that was looked at. `state` is ok, limited (something does without) or missing (nothing works).

    `detail` is what was found and what follows from it, `fix` what to type, where there is something.
    """

    name: str
    state: str
    detail: str
    fix: str = ""


def probe(store: Path) -> Iterator[Fact]:
    """Facts about the kernel, our privileges, the tools and the space that `store` has."""
    yield Fact("kernel", "ok", f"{platform.release()} on {platform.machine()}")
    yield _checkpoint_restore()
    yield _privileges()
    yield _soft_dirty()
    yield _write_protection()
    yield _network_locks()
    yield from _tools()
    yield _space(store)


def _checkpoint_restore() -> Fact:
    if Path("/proc/self/map_files").exists() and Path("/proc/sys/kernel/ns_last_pid").exists():
        return Fact("checkpoint/restore", "ok", "the kernel shows what CRIU needs to see")
    return Fact(
        "checkpoint/restore",
        "missing",
        "the kernel was built without CONFIG_CHECKPOINT_RESTORE",
        "use a distribution kernel",
    )


def _privileges() -> Fact:
    if os.geteuid() != 0:
        return Fact(
            "privileges", "missing", f"user {os.geteuid()}: processes cannot be checkpointed", "sudo crckpt ..."
        )
    held = proc.effective_capabilities()
    missing = [name for number, name in _NEEDED.items() if number not in held]
    if missing:
        return Fact(
            "privileges",
            "missing",
            f"root without {', '.join(missing)}",
            "run outside the container, or add them to it",
        )
    lacking = [name for number, name in _HELPFUL.items() if number not in held]
    if lacking:
        detail = f"root without {', '.join(lacking)}: trees with processes of several users cannot be checkpointed"
        return Fact("privileges", "limited", detail, "in a container: --cap-add SYS_RESOURCE")
    return Fact("privileges", "ok", "root with all that is needed")


def _soft_dirty() -> Fact:
    if pagemap.tracks_by_soft_dirty():
        return Fact("soft-dirty", "ok", "a written page is seen as written")
    return Fact("soft-dirty", "limited", "a written page is not seen: the kernel has no CONFIG_MEM_SOFT_DIRTY")


def _write_protection() -> Fact:
    return _tried(
        "uffd-wp",
        pagemap.tracks_by_write_protection,
        "a written page is seen as written",
        "a written page is not seen as written",
    )


def _tried(name: str, trial: Callable[[], bool], works: str, fails: str) -> Fact:
    try:
        return Fact(name, "ok", works) if trial() else Fact(name, "limited", fails)
    except (HostCannot, OSError) as error:
        return Fact(name, "limited", str(error))


def _network_locks() -> Fact:
    tool = network.nft()
    if tool is None:
        detail = "nft is missing: --tcp keep could not be undone after a failure"
        return Fact("network locks", "limited", detail, "apt-get install nftables")
    if network.can_filter():
        return Fact("network locks", "ok", f"{tool} answers")
    return Fact("network locks", "limited", f"{tool} is refused: --tcp keep cannot work", "modprobe nf_tables")


def _tools() -> Iterator[Fact]:
    for tool, package, why in (
        ("flock", "util-linux", "dump --stop and restore hold a tree with it"),
        ("unshare", "util-linux", "restore --new-pid-namespace"),
        ("nsenter", "util-linux", "dump of a tree in namespaces"),
    ):
        found = shutil.which(tool, path=run.ENVIRONMENT["PATH"])
        if found is None:
            yield Fact(tool, "missing", f"not found; needed for {why}", f"apt-get install {package}")


def _space(store: Path) -> Fact:
    there = next(path for path in (store, *store.parents) if os.access(path, os.F_OK, effective_ids=True))
    usage = shutil.disk_usage(there)
    detail = f"{usage.free / _GIBIBYTE:.1f} GiB free of {usage.total / _GIBIBYTE:.1f} for {store}"
    if os.statvfs(there).f_flag & os.ST_NOEXEC:
        return Fact(
            "store",
            "limited",
            f"{store} lies on a noexec mount: CRIU cannot run the hold's script",
            "crckpt --store DIR",
        )
    if usage.free < _GIBIBYTE:
        return Fact("store", "limited", detail, "crckpt gc, or --store on a larger disk")
    return Fact("store", "ok", detail)
