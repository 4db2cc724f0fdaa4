"""Probe what this host can do: each fact is tried out, never guessed from a version.

By topic: `tasks` (seizing, PIDs, clocks), `memory` (what is free, written pages, lazy pages), `network` (TCP, locks),
`rights` (capabilities, security modules), `directories` (the store, /run, control groups), `tools` (programs). `child`
runs each probe in a child, `outcome` has what a probe returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from crckpt.host.probes import directories, memory, network, rights, tasks, tools
from crckpt.host.probes.child import probe_in_child
from crckpt.host.probes.outcome import Fact, Outcome, fact


class ProbeRequest(Struct, frozen=True):
    """The things to probe besides the kernel. `locks_by_nftables` is what `criu check` reports; None if it was not
    asked.
    """

    store: Path
    staging: Path | None = None
    criu: Path | None = None
    locks_by_nftables: bool | None = None


def probe_host(subject: ProbeRequest) -> Iterator[Fact]:
    """Run all probes, one after the other. They leave nothing behind, and also run without root."""
    # Run one at a time: some would disturb each other, for example by taking the PID that another has freed.
    for key, trial in _probes(subject).items():
        yield fact(key, probe_in_child(trial))


def _probes(subject: ProbeRequest) -> dict[str, Callable[[], Outcome]]:
    return {
        "criu_plugins": lambda: tools.criu_plugins(subject.criu),
        "kernel": tools.kernel,
        "checkpoint_restore": tasks.checkpoint_restore,
        "pid_selection": tasks.pid_selection,
        "ptrace_scope": tasks.ptrace_scope,
        "seccomp_suspension": tasks.seccomp_suspension,
        "time_namespaces": tasks.time_namespaces,
        "memory": memory.memory,
        "soft_dirty": memory.soft_dirty,
        "write_protection": memory.write_protection,
        "pagemap_scan": memory.pagemap_scan,
        "lazy_pages": memory.lazy_pages,
        "tcp_repair": network.tcp_repair,
        "lock_nftables": lambda: network.lock_by_nftables(subject.locks_by_nftables),
        "lock_iptables": network.lock_by_iptables,
        "lock_skip": network.no_lock,
        "move_ip": network.move_ip,
        "socket_diagnostics": network.socket_diagnostics,
        "tun": network.tun,
        "capabilities": rights.capabilities,
        "rootless": lambda: rights.rootless(subject.criu),
        "security_modules": rights.security_modules,
        "cgroups": directories.cgroups,
        "run_directory": directories.run_directory,
        "store": lambda: directories.store(subject.store),
        "staging": lambda: directories.staging(subject.staging, subject.store),
        "util_linux": tools.util_linux,
        "systemd": tools.systemd,
        "ssh": tools.ssh,
    }
