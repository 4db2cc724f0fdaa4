"""Features of this kernel, as other interfaces of it report them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from other_user import as_user

from crckpt.host import machine
from crckpt.host.syscalls.userfaultfd import has_guard_pages


def test_address_families_are_detected() -> None:
    assert machine.has_family(socket.AF_INET)
    assert machine.has_family(socket.AF_INET6) == Path("/proc/net/if_inet6").exists()
    assert not machine.has_family(250)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_forbidden_address_family_is_detected() -> None:
    def check() -> None:
        with pytest.raises(PermissionError):
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        assert machine.has_family(socket.AF_PACKET)

    as_user(check)


def test_guard_pages_depend_on_the_kernel_version() -> None:
    major, minor = (int(part) for part in os.uname().release.split(".")[:2])
    assert has_guard_pages() == ((major, minor) >= (6, 13))


def test_seccomp_and_clocks_are_detected() -> None:
    assert machine.has_seccomp_filters() == ("Seccomp_filters:" in Path("/proc/self/status").read_text())
    assert machine.has_clocks() == Path("/proc/self/ns/time_for_children").exists()


def test_security_modules_are_detected() -> None:
    loaded = Path("/sys/kernel/security/lsm")
    names = loaded.read_text().split(",") if loaded.exists() else []
    if not names:
        pytest.skip("the kernel does not list its security modules here")
    assert machine.has_security_module("apparmor") == ("apparmor" in names)


def test_pid_limit_and_machine_are_read() -> None:
    assert os.getpid() < machine.pid_limit()
    assert machine.arch() == os.uname().machine


def test_all_features_of_the_first_cpu_are_read() -> None:
    line = next(
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Features"))
    )
    assert machine.cpu_features() == tuple(sorted(line.partition(":")[2].split()))
