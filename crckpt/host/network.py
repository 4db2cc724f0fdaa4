"""TCP connections of a tree, and the network locks that CRIU keeps in the packet filter."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from crckpt.errors import HostCannot
from crckpt.host import run

# A private prefix of CRIU brings its nft along.
_NFT_BESIDE = Path("/usr/local/lib/crckpt/criu/nft")


@dataclass(frozen=True)
class Connection:
    """A TCP socket of a live process that has a peer."""

    pid: int
    fd: int
    local: str
    remote: str
    status: str


def tcp_connections(pids: Iterable[int]) -> tuple[Connection, ...]:
    """Every TCP socket with a peer that these processes hold."""
    import psutil

    found: list[Connection] = []
    for pid in pids:
        try:
            sockets = psutil.Process(pid).net_connections(kind="tcp")
        except psutil.NoSuchProcess:
            continue
        found.extend(
            Connection(pid, entry.fd, _shown(entry.laddr), _shown(entry.raddr), entry.status)
            for entry in sockets
            if entry.raddr
        )
    return tuple(found)


def can_listen(address: str, port: int) -> bool:
    """Whether a TCP listener could be bound there now (with SO_REUSEADDR, as a restore does)."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, port))
            trial.listen(1)
        except OSError:
            return False
    return True


def unix_datagram_sockets(pid: int) -> frozenset[int]:
    """Inodes of the unix datagram sockets in a process's network namespace."""
    try:
        lines = Path(f"/proc/{pid}/net/unix").read_text(errors="replace").splitlines()[1:]
    except OSError:
        return frozenset()
    # Num RefCount Protocol Flags Type St Inode Path: type 0002 is SOCK_DGRAM (net/unix/af_unix.c). A name may hold
    # line feeds: what follows them is no line of its own.
    rows = (fields for line in lines if len(fields := line.split()) >= 7)
    return frozenset(int(fields[6]) for fields in rows if fields[4] == "0002" and fields[6].isdecimal())


def nft() -> Path | None:
    """The packet filter's tool: the system's, or the one that came with CRIU."""
    found = shutil.which("nft", path=run.ENVIRONMENT["PATH"])
    if found:
        return Path(found)
    return _NFT_BESIDE if _NFT_BESIDE.exists() else None


def can_filter() -> bool:
    """Whether the kernel lets us look at its packet filter."""
    tool = nft()
    return tool is not None and run.run([tool, "list", "tables"]).ok


def lock_exists(run_id: str) -> bool:
    """Whether packets of a checkpoint's connections are still dropped by CRIU's table."""
    tool = nft()
    return tool is not None and run.run([tool, "list", "table", "inet", f"CRIU-{run_id}"]).ok


def lift_lock(run_id: str) -> bool:
    """Remove the network lock of that run of CRIU. False if there is none. Raises HostCannot if that fails."""
    if not lock_exists(run_id):
        return False
    argv = [str(nft()), "delete", "table", "inet", f"CRIU-{run_id}"]
    done = run.run(argv)
    if not done.ok:
        raise HostCannot(f"cannot remove the network lock: {done.output.strip()}", hint=run.spelled(argv))
    return True


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
