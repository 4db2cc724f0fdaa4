"""Hosts in network namespaces of their own, on one Ethernet. All that is made ends with its descriptors."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from trees import wait_for

from crckpt.host.syscalls import own_process

WITHIN_S: Final = 60
DEVICE: Final = "eth0"


@contextmanager
def inside(namespace: int) -> Iterator[None]:
    """Put this thread, and what it starts, into a network namespace."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        own_process.setns(namespace)
        yield
    finally:
        own_process.setns(before)
        os.close(before)


def new_namespace() -> int:
    """Make a network namespace; return its descriptor."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        own_process.unshare(own_process.CLONE_NEWNET)
        made = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        own_process.setns(before)
    finally:
        os.close(before)
    return made


@dataclass(frozen=True)
class Machine:
    """A host with one device, which has the name DEVICE."""

    namespace: int
    mac: str

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be there in this thread."""
        with inside(self.namespace):
            yield

    def run(self, *words: str) -> str:
        """Run a command on the machine and return its output."""
        with self.entered():
            result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=WITHIN_S)
        assert result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"
        return result.stdout

    def addresses(self) -> set[str]:
        """The addresses of its device, without those of the link."""
        lines = self.run("ip", "-oneline", "address", "show", "dev", DEVICE, "scope", "global").splitlines()
        return {line.split()[3] for line in lines}

    def tables(self) -> str:
        """The tables of its packet filter."""
        return self.run("nft", "list", "tables")

    def neighbour(self, ip: str) -> str:
        """The MAC address that the machine has for `ip`; empty if it knows none."""
        words = self.run("ip", "neigh", "show", ip, "dev", DEVICE).split()
        return words[words.index("lladdr") + 1] if "lladdr" in words else ""


@dataclass(frozen=True)
class Lan:
    """Three hosts. `source` has the address that moves."""

    source: Machine
    destination: Machine
    client: Machine


@contextmanager
def lan() -> Iterator[Lan]:
    """Make three hosts with IPv4 and IPv6 addresses: .1 and ::1 is the source, then destination and client."""
    with ExitStack() as stack:
        switch = new_namespace()
        stack.callback(os.close, switch)
        with inside(switch):
            _ip("link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
            _ip("link", "set", "br0", "up")
        machines = []
        for number in (1, 2, 3):
            namespace = new_namespace()
            stack.callback(os.close, namespace)
            mac = f"02:00:00:00:00:0{number}"
            with inside(namespace):
                _ip("link", "set", "lo", "up")
                # Without duplicate address detection they can be used at once.
                for name in ("default", "all"):
                    _write(f"/proc/sys/net/ipv6/conf/{name}/accept_dad", "0")
                _ip("link", "add", DEVICE, "address", mac, "type", "veth", "peer", "name", "port")
                _ip("link", "set", "port", "netns", f"/proc/{os.getpid()}/fd/{switch}")
            with inside(switch):
                _ip("link", "set", "port", "name", f"port{number}")
                _ip("link", "set", f"port{number}", "master", "br0", "up")
            with inside(namespace):
                _ip("link", "set", DEVICE, "up")
                _ip("address", "add", f"10.77.0.{number}/24", "dev", DEVICE)
                _ip("address", "add", f"fd77::{number}/64", "dev", DEVICE, "nodad")
            machines.append(Machine(namespace, mac))
        yield Lan(*machines)


def _ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, timeout=WITHIN_S)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


class Capture:
    """All frames that a machine's device gets and sends from now on."""

    def __init__(self, machine: Machine) -> None:
        with machine.entered():
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            # SO_RCVBUFFORCE: none may be dropped.
            self._socket.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
            self._socket.bind((DEVICE, 0x0003))  # ETH_P_ALL
        self._socket.setblocking(False)
        self._frames: list[bytes] = []

    def close(self) -> None:
        """End the capture."""
        self._socket.close()

    def frames(self) -> list[bytes]:
        """All until now."""
        while True:
            try:
                self._frames.append(self._socket.recv(65536))
            except BlockingIOError:
                return self._frames

    def resets(self) -> list[bytes]:
        """TCP segments with the flag RST."""
        return [frame for frame in self.frames() if _flags_of_tcp(frame) & 4]

    def claims(self, ip: str, mac: str) -> list[bytes]:
        """ARP packets and neighbour advertisements that say that `ip` is at `mac`."""
        return [
            frame for frame in self.frames() if _claim_in(frame) == (_packed(ip), bytes.fromhex(mac.replace(":", "")))
        ]

    def sent_by(self, mac: str, ip: str) -> list[bytes]:
        """IP packets from the address `ip` in frames of `mac`."""
        return [
            frame
            for frame in self.frames()
            if frame[6:12] == bytes.fromhex(mac.replace(":", "")) and _source(frame) == _packed(ip)
        ]

    def for_address(self, ip: str) -> list[bytes]:
        """IP packets to the address `ip`."""
        return [frame for frame in self.frames() if _target(frame) == _packed(ip)]


def _packed(ip: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)


def _kind(frame: bytes) -> int:
    return int.from_bytes(frame[12:14], "big")


def _source(frame: bytes) -> bytes:
    return {0x0800: frame[26:30], 0x86DD: frame[22:38]}.get(_kind(frame), b"")


def _target(frame: bytes) -> bytes:
    return {0x0800: frame[30:34], 0x86DD: frame[38:54]}.get(_kind(frame), b"")


def _flags_of_tcp(frame: bytes) -> int:
    if _kind(frame) == 0x0800 and frame[23] == socket.IPPROTO_TCP:
        return frame[14 + 4 * (frame[14] & 15) + 13]
    if _kind(frame) == 0x86DD and frame[20] == socket.IPPROTO_TCP:
        return frame[54 + 13]
    return 0


def _claim_in(frame: bytes) -> tuple[bytes, bytes] | None:
    """The IP address and the MAC address that an ARP packet or a neighbour advertisement names."""
    if _kind(frame) == 0x0806:
        return frame[28:32], frame[22:28]
    if _kind(frame) == 0x86DD and frame[20] == socket.IPPROTO_ICMPV6 and frame[54] == 136:
        return frame[62:78], frame[6:12]
    return None


class Echo:
    """A server on an address of a machine that sends back what it gets."""

    def __init__(self, machine: Machine, ip: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        with machine.entered():
            self._listener = socket.create_server((ip, port), family=family)
        self.accepted = 0
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._serve)

    def close(self) -> None:
        """End the server with its connections."""
        # A thread that is about to read would read from the next socket that gets the number of a closed one: each is
        # ended first, that which accepts before all others.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(WITHIN_S)
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join(WITHIN_S)
        for each in (self._listener, *self._open):
            each.close()

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._open.append(connection)
            self._start(partial(_echo, connection))


def _echo(connection: socket.socket) -> None:
    try:
        while data := connection.recv(65536):
            connection.sendall(data)
    except OSError:
        return


class Talker:
    """A client that talks all the time over one connection, and counts the answers."""

    def __init__(self, machine: Machine, ip: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        with machine.entered():
            self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.settimeout(WITHIN_S)
        self._socket.connect((ip, port))
        self.answers = 0
        self.error: str = ""
        self._is_over = False
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def wait_for_answers(self) -> None:
        """Wait until there are more answers than now."""
        # One answer may already be on its way.
        enough = self.answers + 3
        wait_for(lambda: self.answers >= enough or bool(self.error), WITHIN_S, "answers")
        assert not self.error, self.error

    def close(self) -> None:
        """End the client."""
        self._is_over = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(WITHIN_S)
        self._socket.close()

    def _talk(self) -> None:
        try:
            while not self._is_over:
                word = self.answers.to_bytes(8, "big")
                self._socket.sendall(word)
                answer = self._socket.recv(8, socket.MSG_WAITALL)
                if answer != word:
                    self.error = f"{answer!r} instead of {word!r}"
                    return
                self.answers += 1
        except OSError as error:
            self.error = repr(error)
