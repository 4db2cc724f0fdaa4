"""Checks of this host agree with the kernel's configuration, CRIU and other programs."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from own_process import children, descriptors

from crckpt.criu.candidates import candidates
from crckpt.host.namespaces import memory_limit
from crckpt.host.probes import probe_host
from crckpt.host.probes.trial import Fact, fork, wait_for_status
from crckpt.host.process import run
from crckpt.host.syscalls import own_process

IS_ROOT = os.geteuid() == 0
NO_FIX = {"systemd"}

KERNEL_OPTIONS = {
    "checkpoint_restore": "CONFIG_CHECKPOINT_RESTORE",
    "soft_dirty": "CONFIG_MEM_SOFT_DIRTY",
    "time_namespaces": "CONFIG_TIME_NS",
    "write_protection": "CONFIG_PTE_MARKER_UFFD_WP",
    "lazy_pages": "CONFIG_USERFAULTFD",
    "lock_nftables": "CONFIG_NF_TABLES_INET",
    "tun": "CONFIG_TUN",
}

CRIU_FEATURES = {
    "soft_dirty": "mem_dirty_track",
    "time_namespaces": "timens",
    "lazy_pages": "uffd-noncoop",
    "pagemap_scan": "pagemap_scan",
    "pid_selection": "clone3_set_tid",
    "seccomp_suspension": "seccomp_suspend",
    "lock_nftables": "network_lock_nftables",
}

AS_ROOT = pytest.mark.skipif(not IS_ROOT, reason="needs root")


def checks_by_key(store: Path, criu: Path | None = None) -> dict[str, Fact]:
    return {fact.key: fact for fact in probe_host(store, criu=criu)}


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fact]:
    """What is checks of this host."""
    criu = next((found.path for found in candidates(None, None) if os.access(found.path, os.X_OK)), None)
    return checks_by_key(tmp_path_factory.mktemp("store"), criu)


def namespaces() -> frozenset[str]:
    return frozenset(str(link.readlink()) for link in Path("/proc/self/ns").iterdir())


def inside(words: list[str], script: str) -> list[str]:
    """Lines that a script prints about `checks`, started by other words."""
    program = (
        "import sys; from pathlib import Path; from crckpt.host.probes import probe_host\n"
        "checks = {fact.key: fact for fact in probe_host(Path('/'))}\n" + script
    )
    result = subprocess.run([*words, sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_every_check_of_the_host_has_consequence_and_fix(facts: dict[str, Fact]) -> None:
    for key, fact in facts.items():
        assert fact.state in ("ok", "limited", "missing")
        assert fact.found, key
        if fact.state != "ok":
            assert fact.consequence, key
            assert "the trial" not in fact.found, f"{key} was not found out: {fact.found}"
            assert bool(fact.fix) == (key not in NO_FIX), key


@AS_ROOT
@pytest.mark.parametrize(("key", "option"), KERNEL_OPTIONS.items())
def test_checks_of_the_host_agree_with_the_kernel_configuration(facts: dict[str, Fact], key: str, option: str) -> None:
    packed = Path("/proc/config.gz")
    unpacked = Path(f"/boot/config-{os.uname().release}")
    if not packed.exists() and not unpacked.exists():
        pytest.skip("this kernel does not tell its configuration")
    configuration = gzip.decompress(packed.read_bytes()).decode() if packed.exists() else unpacked.read_text()
    built_in = f"\n{option}=y\n" in configuration
    if f"\n{option}=m\n" in configuration:
        pytest.skip(f"{option} is a module, which may be loaded or not")
    assert (facts[key].state == "ok") == built_in, facts[key]


@AS_ROOT
@pytest.mark.parametrize(("key", "feature"), CRIU_FEATURES.items())
def test_checks_of_the_host_agree_with_criu_check(facts: dict[str, Fact], key: str, feature: str) -> None:
    criu = next((found.path for found in candidates(None, None) if os.access(found.path, os.X_OK)), None)
    if criu is None:
        pytest.skip("there is no CRIU")
    result = run.run([criu, "check", "--feature", feature])
    if "Unknown feature" in result.output:
        pytest.skip(f"this CRIU does not know the feature {feature}")
    assert (facts[key].state == "ok") == result.ok, (facts[key], result.output)


def test_checks_of_the_host_leave_no_process_namespace_or_firewall_table(tmp_path: Path) -> None:
    before = children(), descriptors(), namespaces()
    checks_by_key(tmp_path)
    assert (children(), descriptors(), namespaces()) == before
    # There may be tables of other programs, such as CRIU in another test.
    assert shutil.which("nft") is None or "inet crckpt\n" not in run.run(["nft", "list", "tables"]).output
    assert list(tmp_path.iterdir()) == []


def test_child_in_strict_seccomp_is_killed_at_its_exit() -> None:
    def forbid_itself_to_end() -> int:
        own_process.prctl(own_process.SET_SECCOMP, own_process.SECCOMP_MODE_STRICT)
        return 0

    assert wait_for_status(fork(forbid_itself_to_end)) == -signal.SIGKILL


@AS_ROOT
def test_module_counts_as_loadable_only_if_it_exists(tmp_path: Path) -> None:
    """The test replaces modprobe by a program of its own, and hides /dev."""
    modprobe = tmp_path / "modprobe"
    modprobe.write_text('#!/bin/sh\n[ "$*" = "-n -q -a tun" ]\n')
    modprobe.chmod(0o755)
    hide = 'mount -t tmpfs none /dev && mknod /dev/null c 1 3 && exec "$@"'
    hidden = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hide, "sh"]
    script = (
        "from crckpt.host.process import run; from crckpt.host.probes import network\n"
        f"for place in ('/nonexistent', {str(tmp_path)!r}):\n"
        "    run.ENVIRONMENT['PATH'] = place\n"
        "    print(network.tun().fix, network.tun().safe)"
    )
    assert inside(hidden, script) == ["modprobe tun False", "modprobe tun True"]


def test_checks_without_root_start_no_trial_that_needs_root(facts: dict[str, Fact]) -> None:
    """The checks run in a user namespace, where the owner can still read the checkout in /root."""
    nobody = ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
    lines = inside(nobody, "for fact in checks.values(): print(fact.state, fact.key, fact.found)")
    states = {line.split()[1]: line.split()[0] for line in lines}
    assert states.keys() == facts.keys()
    assert not [line for line in lines if "the trial" in line]
    assert states["capabilities"] == "missing"
    assert states["checkpoint_restore"] == facts["checkpoint_restore"].state
    assert states["soft_dirty"] == facts["soft_dirty"].state
    assert states["write_protection"] == facts["write_protection"].state
    assert {states[key] for key in ("tcp_repair", "seccomp_suspension")} == {"missing"}
    assert "ok" not in {states[key] for key in ("pid_selection", "lazy_pages", "lock_nftables")}


def test_root_of_a_user_namespace_is_not_root() -> None:
    assert inside(["unshare", "--user", "--map-root-user"], "print(checks['capabilities'].found)") == [
        "root of a user namespace only"
    ]


@AS_ROOT
@pytest.mark.parametrize(
    ("capability", "lost"),
    [("sys_ptrace", {"capabilities"}), ("net_admin", {"capabilities", "tcp_repair", "lock_nftables"})],
)
def test_root_without_a_capability_is_told_which_one(capability: str, lost: set[str]) -> None:
    without = ["setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}"]
    lines = inside(without, f"for key in {sorted(lost)}: print(key, checks[key].state, checks[key].fix)")
    name = capability.upper()
    fix = f"run crckpt with CAP_{name} (in a container: docker run --cap-add {name} ...)"
    assert lines == [f"{key} missing {fix}" for key in sorted(lost)]


@AS_ROOT
def test_missing_tun_and_cgroups_are_reported() -> None:
    """The test hides /dev/net/tun or unmounts the cgroups in a mount namespace."""
    hide = (
        "mount -t tmpfs none /run && umount -R /sys/fs/cgroup && mount -t tmpfs none /dev && "
        'mknod /dev/null c 1 3 && exec "$@"'
    )
    hidden = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hide, "sh"]
    lines = inside(hidden, "for key in ('run_directory', 'tun', 'cgroups'): print(key, checks[key].state)")
    assert lines == ["run_directory ok", "tun missing", "cgroups missing"]


def test_socket_listing_agrees_with_ss(facts: dict[str, Fact]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        if shutil.which("ss") is None:
            pytest.skip("there is no ss")
        listed = run.run(["ss", "-ltnH"]).output
        assert (f":{server.getsockname()[1]} " in listed) == (facts["socket_diagnostics"].state == "ok")


def test_memory_check_counts_the_limit_of_our_cgroup(facts: dict[str, Fact]) -> None:
    assert re.match(r"[\d.]+ [GM]iB free of [\d.]+", facts["memory"].found)
    probe = "from crckpt.host.probes.tasks import memory; outcome = memory(); print(outcome.state, outcome.found)"
    with memory_limit.limited(64 << 20) as group:
        if group is None:
            pytest.skip("this host lets us make no control group")
        result = subprocess.run(
            [*group.joining, sys.executable, "-c", probe], capture_output=True, text=True, check=True
        )
    assert result.stdout.startswith("limited 0.")
    assert "the limit of crckpt's control group" in result.stdout
