"""Check whether TCP connections can be saved, and their packets blocked."""

from __future__ import annotations

import errno
import os
import socket
import struct
from pathlib import Path

from crckpt.errors import HostCannot
from crckpt.host.network import packet_filter
from crckpt.host.network.address import HostAddress
from crckpt.host.network.claim import raise_fence
from crckpt.host.observe.sock_diag import ask_for_sockets
from crckpt.host.probes.trial import Fact, limited, missing, ok, run_with_capabilities
from crckpt.host.process import run
from crckpt.host.syscalls import own_process
from crckpt.model import MoveId

# linux/tcp.h
_TCP_REPAIR = 19
_TCP_REPAIR_QUEUE = 20
_TCP_QUEUE_SEQ = 21
_SEND_QUEUE = 2
_SEQUENCE = 12345

# The module that answers -> its request, which asks for sockets in no state: family, protocol, and zeros.
_DIAGNOSTICS = {
    "tcp_diag": struct.pack("=BB54x", socket.AF_INET, socket.IPPROTO_TCP),
    "udp_diag": struct.pack("=BB54x", socket.AF_INET, socket.IPPROTO_UDP),
    "unix_diag": struct.pack("=BB22x", socket.AF_UNIX, 0),
    "af_packet_diag": struct.pack("=BB18x", socket.AF_PACKET, 0),
    "netlink_diag": struct.pack("=BB18x", socket.AF_NETLINK, 0),
}

_PROGRAM_S = 3
# The same lock as CRIU's (criu/netfilter.c, nftables_init_connection_lock), which lets CRIU's own packets pass by this
# mark.
_TABLE = """
add table inet crckpt
add chain inet crckpt output { type filter hook output priority 0; }
add rule inet crckpt output meta mark != 0xC114 drop
"""
_RULE = ("-A", "OUTPUT", "-m", "mark", "!", "--mark", "0xC114", "-j", "DROP")
_FENCED = (HostAddress("192.0.2.1", 24, "eth0"), HostAddress("2001:db8::1", 64, "eth0"))
_MODULES_OF_RULE = "modprobe -a iptable_filter xt_mark"


def tcp_repair() -> Fact:
    """Put a socket into repair mode, and give it a sequence number."""
    lost = "--tcp keep does not work; with --tcp close programs see their connections closed"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        try:
            trial.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
            trial.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR_QUEUE, _SEND_QUEUE)
            trial.setsockopt(socket.IPPROTO_TCP, _TCP_QUEUE_SEQ, _SEQUENCE)
        except PermissionError as error:
            refused = f"TCP connections cannot be saved: {error.strerror} (needs CAP_NET_ADMIN)"
            return missing(refused, lost, _more_rights("NET_ADMIN"))
        except OSError as error:
            return missing(f"TCP connections cannot be saved: {error.strerror}", lost, "use a distribution's kernel")
        if trial.getsockopt(socket.IPPROTO_TCP, _TCP_QUEUE_SEQ) != _SEQUENCE:
            return missing("a TCP sequence number was set, but did not change", lost)
    return ok("TCP connections can be saved and restored")


def lock_by_nftables(of_criu: bool | None) -> Fact:
    """Make CRIU's kind of lock in a new network namespace. `of_criu` is what `criu check` reports; None: not asked."""
    lost = "--tcp keep does not work: it cannot block the connections of a frozen tree"
    tool = packet_filter.find_nft()
    if tool is None:
        left = "after a failed --tcp keep, connections may stay blocked"
        return limited("nft is not installed", left, "apt-get install nftables")
    if not packet_filter.can_filter():
        return missing(f"{tool} cannot read the packet filter", lost, _more_rights("NET_ADMIN"))
    if refused := _try_in_new_network((tool, _TABLE), lost, "modprobe nf_tables"):
        return refused
    if of_criu is False:
        return missing(f"{tool} works, but this CRIU was built without nftables", lost, "crckpt install-criu")
    return ok(f"--tcp keep can block connections ({tool})", "" if of_criu else "not tested with CRIU")


def lock_by_iptables() -> Fact:
    """Make CRIU's kind of rule in a new network namespace."""
    lost = "none on crckpt, which uses nftables"
    tool = run.find_program("iptables")
    if tool is None:
        return missing("iptables is not installed", lost, "apt-get install iptables")
    return _try_in_new_network((tool, *_RULE), lost, _MODULES_OF_RULE) or ok(f"{tool} works; crckpt uses nftables")


def move_ip() -> Fact:
    """Fence an address of each family off, in a new network namespace."""
    lost = "crckpt migrate --move-ip does not work"
    if run.find_program("ip") is None:
        return missing("ip is not installed", lost, "apt-get install iproute2")
    tool = packet_filter.find_nft()
    if tool is None:
        return missing("nft is not installed", lost, "apt-get install nftables")
    if not packet_filter.can_filter():
        return missing(f"{tool} cannot read the packet filter", lost, _more_rights("NET_ADMIN"))
    if refused := _enter_new_network(lost):
        return refused
    try:
        raise_fence(_FENCED, MoveId("0" * 16))
    except HostCannot as error:
        return missing(error.message, lost, "modprobe nf_tables")
    return ok(f"addresses can move to and from this host ({tool})")


def socket_diagnostics() -> Fact:
    """Ask the kernel for sockets of each kind in no state: the answer is empty, or there is none."""
    silent = []
    for module, request in _DIAGNOSTICS.items():
        try:
            next(ask_for_sockets(request), None)
        except OSError as error:
            # ENOENT: no module for this family or protocol. The others: its module cannot list sockets
            # (net/core/sock_diag.c).
            if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL):
                silent.append(module)
    if not silent:
        return ok(f"this kernel lists sockets of all kinds: {', '.join(_DIAGNOSTICS)}")
    command = "modprobe -a " + " ".join(silent)
    lost = "programs with such sockets cannot be checkpointed"
    return missing(f"modules are not loaded: {', '.join(silent)}", lost, command, safe=_can_load(silent))


def tun() -> Fact:
    """Open the device by which programs make network interfaces."""
    lost = "programs with tun or tap interfaces (VPNs, virtual machines) cannot be checkpointed"
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return missing(
            f"/dev/net/tun cannot be opened: {error.strerror}", lost, "modprobe tun", safe=_can_load(["tun"])
        )
    return ok("programs with tun or tap interfaces can be checkpointed")


def _enter_new_network(lost: str) -> Fact | None:
    """Enter a new network namespace, which ends with us, and all that is made in it; the outcome if we may not."""
    try:
        own_process.unshare(own_process.CLONE_NEWNET)
    except PermissionError:
        return limited("not tried: the trial needs root", lost, "sudo crckpt doctor")
    return None


def _try_in_new_network(argv: tuple[str | Path, ...], lost: str, fix: str) -> Fact | None:
    """Run a program in a new network namespace; the outcome if that fails."""
    if refused := _enter_new_network(lost):
        return refused
    done = run.run(argv, timeout=_PROGRAM_S)
    said = next(iter(done.output.strip().splitlines()), "it fails and says nothing")
    return None if done.ok else missing(f"{argv[0]}: {said}", lost, fix)


def _can_load(modules: list[str]) -> bool:
    tool = run.find_program("modprobe")
    if tool is None or os.geteuid() != 0:
        return False
    return run.run([tool, "-n", "-q", "-a", *modules], timeout=_PROGRAM_S).ok  # -n: only look for them


def _more_rights(capability: str) -> str:
    return run_with_capabilities(capability) if os.geteuid() == 0 else "sudo crckpt doctor"
