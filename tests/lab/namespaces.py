"""Two hosts and a client in namespaces of this machine, which scripts/lab/two-hosts makes."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

from hosts import ENVIRONMENT, HOSTS, PROJECT, WITHIN_S, CannotMakeLab, Process, TwoHosts
from processes import list_processes, send_signal

SCRIPT: Final = PROJECT / "scripts/lab/two-hosts"
_CANNOT: Final = 20
_POLL_S: Final = 0.01
_NS_GET_PARENT: Final = 0xB702  # linux/nsfs.h


class Namespaces(TwoHosts):
    """A lab of this machine's, in `directory`, which must not exist."""

    ends_with_parent = ("setpriv", "--pdeathsig", "KILL")

    def __init__(self, directory: Path) -> None:
        self.services = {4: "10.77.0.100/24", 6: "fd77::100/64"}
        self.device = "eth0"
        self.directory = directory
        self._write_end: int | None = None

    def up(self) -> None:
        """Make the lab, which exists until `down` or the end of this process. Raises CannotMakeLab."""
        read_end, self._write_end = os.pipe()
        try:
            self._script("up", "--until-eof", stdin=read_end)
        finally:
            os.close(read_end)
        self._inits = {host: int((self.directory / host).read_text().split()[0]) for host in HOSTS}

    def down(self) -> None:
        """End all processes of the lab."""
        with ThreadPoolExecutor(1) as executor:
            done = executor.submit(self._script, "down")
            while not done.done():
                # A namespace ends when its last zombie is reaped: we may have adopted some.
                _reap_orphans()
                wait([done], _POLL_S)
        done.result()
        if self._write_end is not None:
            os.close(self._write_end)
            self._write_end = None

    def command(self, host: str, words: tuple[str, ...]) -> list[str]:
        """See TwoHosts."""
        command = ["nsenter", "--target", str(self._inits[host]), "--all", *ENVIRONMENT, *words]
        cgroup = self.directory / "cgroup"
        if not cgroup.exists():
            return command
        procs = Path(cgroup.read_text().strip(), host, "cgroup.procs")
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(procs), *command]

    def list_processes(self, host: str) -> list[Process]:
        """See TwoHosts."""
        return [Process(host, *entry) for entry in list_processes(self._proc(host))]

    def send_signal(self, process: Process, number: int) -> bool:
        """See TwoHosts."""
        return send_signal(self._proc(process.host), process.pid, process.start, number)

    def cut(self, one: str = "source", other: str = "destination") -> None:
        """See TwoHosts."""
        self._script("link", "cut", one, other)

    def cut_one_way(self, origin: str, target: str) -> None:
        """See TwoHosts."""
        self._script("link", "cut-one-way", origin, target)

    def slow(self, rate: str, delay: str = "") -> None:
        """See TwoHosts."""
        self._script("link", "slow", rate, *([delay] if delay else []))

    def heal(self) -> None:
        """See TwoHosts."""
        self._script("link", "heal")

    def namespaces(self) -> frozenset[str]:
        """Return the namespaces of the hosts, as links of /proc name them, without those that are the machine's."""
        inits = [*self._inits.values(), int((self.directory / "switch").read_text())]
        links = {str(link.readlink()) for pid in inits for link in Path(f"/proc/{pid}/ns").iterdir()}
        return frozenset(links - {str(link.readlink()) for link in Path("/proc/self/ns").iterdir()})

    def find_pids_here(self, host: str) -> dict[int, int]:
        """Return the PIDs that a host's processes have on this machine, by those on the host."""
        init = self._inits[host]
        namespace = Path(f"/proc/{init}/ns/pid").stat().st_ino
        level = len(_read_pids(init)) - 1
        found = {}
        for directory in Path("/proc").iterdir():
            if directory.name.isdecimal():
                with suppress(FileNotFoundError, ProcessLookupError):
                    pids = _read_pids(int(directory.name))
                    if len(pids) > level and namespace in _find_pid_namespaces(pids[0]):
                        found[pids[level]] = pids[0]
        return found

    def _proc(self, host: str) -> Path:
        """Return the host's own /proc, which lists its processes only."""
        return Path(f"/proc/{self._inits[host]}/root/proc")

    def _script(self, *words: str, stdin: int = subprocess.DEVNULL) -> None:
        environment = os.environ | {"CRCKPT_TWO_HOSTS": str(self.directory)}
        result = subprocess.run(
            [SCRIPT, *words],
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
            env=environment,
        )
        if result.returncode == _CANNOT:
            raise CannotMakeLab(result.stderr.strip())
        assert result.returncode == 0, (
            f"{SCRIPT} {words} ended with {result.returncode}:\n{result.stdout}{result.stderr}"
        )


def _reap_orphans() -> None:
    """Reap our children in PID namespaces below ours: no other process waits for them."""
    children = (path.read_text().split() for path in Path("/proc/self/task").glob("*/children"))
    for pid in map(int, chain.from_iterable(children)):
        with suppress(FileNotFoundError, ProcessLookupError, ChildProcessError):
            if len(_read_pids(pid)) > len(_read_pids(os.getpid())):
                os.waitpid(pid, os.WNOHANG)


def _read_pids(pid: int) -> list[int]:
    """Return a process's PIDs, from that here to that in its own namespace."""
    for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
        if line.startswith("NSpid:"):
            return [int(word) for word in line.split()[1:]]
    return [pid]


def _find_pid_namespaces(pid: int) -> Iterator[int]:
    """Return the inodes of a process's PID namespace and of those above it."""
    namespace = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY)
    try:
        while True:
            yield os.fstat(namespace).st_ino
            above = fcntl.ioctl(namespace, _NS_GET_PARENT)
            os.close(namespace)
            namespace = above
    except PermissionError:  # there is none that we may see
        return
    finally:
        os.close(namespace)
