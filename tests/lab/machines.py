"""Two hosts and a client that are real machines. This one is the source; root can ssh from each to each."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from hosts import ENVIRONMENT, HOSTS, PROGRAMS, PYTHON, CannotMakeLab, Process, TwoHosts

_TABLE = "two_hosts"
_MOST_STARTS = 100
_STORE = "/var/lib/crckpt"


class Machines(TwoHosts):
    """The machines. They get IPv6 addresses and the service addresses, and lose them in the end."""

    def up(self) -> None:
        """Add the addresses. Raises CannotMakeLab."""
        for host in HOSTS[:2]:
            if self.run(host, "find", f"{_STORE}/checkpoints", "-type", "f", status=None).out:
                raise CannotMakeLab(f"{_STORE} on {host} has checkpoints, which these tests would remove")
        found = self._read("source", "route", "get", self._find_address("destination"))
        self.device = found["dev"]
        # VirtualBox has a DHCP server on .100, whose addresses begin with .101.
        self.services = {4: f"{found['prefsrc'].rpartition('.')[0]}.50/24", 6: "fd77::100/64"}
        self._added = {host: net for host in HOSTS if not self._has_address(host, net := _find_net(host))}
        for host, net in self._added.items():
            self.run(host, "ip", "addr", "add", net, "dev", self.device, "nodad")
        for version in self.services:
            self.bring_service_back(version)

    def down(self) -> None:
        """Remove the addresses and the cuts."""
        self.heal()
        for host in HOSTS:
            nets = (*self.services.values(), *([self._added[host]] if host in self._added else []))
            for net in nets:
                self.run(host, "ip", "addr", "del", net, "dev", self.device, status=None)

    def command(self, host: str, words: tuple[str, ...]) -> list[str]:
        """See TwoHosts. By way of the client, to which no link is cut between source and destination."""
        here = [*ENVIRONMENT, *words]
        jump = ("-J", "client") if host == "destination" else ()
        return here if host == "source" else ["ssh", *jump, host, shlex.join(here)]

    def start(self, host: str, *words: str | Path) -> int:
        """See TwoHosts. The PID is free on the other machine, too: the program may move there."""
        other = next(each for each in HOSTS[:2] if each != host)
        for _ in range(_MOST_STARTS):
            pid = super().start(host, *words)
            if self.run(other, "test", "-e", f"/proc/{pid}", status=None).status != 0:
                return pid
            self.run(host, "kill", "-KILL", str(pid), status=None)
        raise CannotMakeLab(f"{other} has no PID free that {host} assigns")

    def list_processes(self, host: str) -> list[Process]:
        """See TwoHosts."""
        found = json.loads(self.run(host, PYTHON, PROGRAMS / "processes.py", "list").out)
        return [Process(host, pid, start, state, tuple(words)) for pid, start, state, words in found]

    def send_signal(self, process: Process, number: int) -> bool:
        """See TwoHosts."""
        words = ("signal", str(process.pid), str(process.start), str(int(number)))
        return self.run(process.host, PYTHON, PROGRAMS / "processes.py", *words, status=None).status == 0

    def cut(self, one: str = "source", other: str = "destination") -> None:
        """See TwoHosts."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def cut_one_way(self, origin: str, target: str) -> None:
        """See TwoHosts."""
        chain = f"add chain inet {_TABLE} incoming {{ type filter hook input priority -400; }}"
        rules = [
            f"add rule inet {_TABLE} incoming ip saddr {self._find_address(origin)} drop",
            f"add rule inet {_TABLE} incoming ip6 saddr {_find_net(origin).partition('/')[0]} drop",
        ]
        self.run(target, "nft", f"add table inet {_TABLE}; {chain}; {'; '.join(rules)}")

    def slow(self, rate: str, delay: str = "") -> None:
        """See TwoHosts."""
        raise CannotMakeLab(f"links of real machines cannot be slowed down to {rate} {delay}")

    def heal(self) -> None:
        """See TwoHosts."""
        for host in HOSTS:
            self.run(host, "nft", f"add table inet {_TABLE}; delete table inet {_TABLE}")

    def _find_address(self, host: str) -> str:
        """Return the IPv4 address of a host, as /etc/hosts of the source has it."""
        found = self.run("source", "getent", "ahostsv4", host, status=None).out.split()
        if not found:
            raise CannotMakeLab(f"this machine knows no host {host}")
        return found[0]

    def _has_address(self, host: str, net: str) -> bool:
        return bool(json.loads(self.run(host, "ip", "-j", "addr", "show", "to", net.partition("/")[0]).out))

    def _read(self, host: str, *words: str) -> dict[str, str]:
        (found,) = json.loads(self.run(host, "ip", "-j", *words).out)
        return dict(found)


def _find_net(host: str) -> str:
    """Return the IPv6 address of a host, with its length."""
    return f"fd77::{HOSTS.index(host) + 1}/64"
