"""Probe what this host can do: each fact is tried out, never guessed from a version.

By topic: `tasks` (seizing, PIDs, clocks, memory), `network` (TCP, locks), `setup` (capabilities, security modules, the
store and other directories, programs). `trial` runs each probe in a child, and has what a probe returns.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from crckpt.host.probes import network, setup, tasks
from crckpt.host.probes.trial import Fact, ok, probe_in_child
from crckpt.host.syscalls import memory_trials


def probe_host(
    store: Path, staging: Path | None = None, criu: Path | None = None, locks_by_nftables: bool | None = None
) -> Iterator[Fact]:
    """Run all probes, one after the other. They leave nothing behind, and also run without root.

    `locks_by_nftables` is what `criu check` reports; None if it was not asked.
    """
    probes: dict[str, Callable[[], Fact]] = {
        "criu_plugins": lambda: setup.criu_plugins(criu),
        # The other facts say what it can do.
        "kernel": lambda: ok(f"{platform.release()} on {platform.machine()}"),
        "checkpoint_restore": tasks.checkpoint_restore,
        "pid_selection": tasks.pid_selection,
        "ptrace_scope": tasks.ptrace_scope,
        "seccomp_suspension": tasks.seccomp_suspension,
        "time_namespaces": tasks.time_namespaces,
        "memory": tasks.memory,
        "soft_dirty": tasks.soft_dirty,
        "write_protection": lambda: tasks.try_memory(
            memory_trials.tracks_by_write_protection,
            "this kernel reports written pages by write protection",
            "incremental dumps need soft_dirty",
            "use Linux 6.7 or later",
        ),
        "pagemap_scan": lambda: tasks.try_memory(
            memory_trials.can_scan,
            "dumps find the pages of large programs quickly (PAGEMAP_SCAN)",
            "dumps freeze programs with much memory for longer",
            "use Linux 6.7 or later",
        ),
        "lazy_pages": tasks.lazy_pages,
        "tcp_repair": network.tcp_repair,
        "lock_nftables": lambda: network.lock_by_nftables(locks_by_nftables),
        "lock_iptables": network.lock_by_iptables,
        "lock_skip": lambda: ok("CRIU alone can dump without blocking connections; their peers may then reset them"),
        "move_ip": network.move_ip,
        "socket_diagnostics": network.socket_diagnostics,
        "tun": network.tun,
        "capabilities": setup.capabilities,
        "rootless": lambda: setup.rootless(criu),
        "security_modules": setup.security_modules,
        "cgroups": setup.cgroups,
        "run_directory": setup.run_directory,
        "store": lambda: setup.store(store),
        "staging": lambda: setup.staging(staging, store),
        "util_linux": setup.util_linux,
        "systemd": setup.systemd,
        "ssh": setup.ssh,
    }
    # One at a time: some would disturb each other, for example by taking the PID that another has freed.
    for key, trial in probes.items():
        yield replace(probe_in_child(trial), key=key)
