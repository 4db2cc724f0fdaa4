"""Objects that a restore creates for a program of a user belong to that user: the kernel records the creator."""

from __future__ import annotations

import errno
import socket
import struct
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from stopped_trees import JOB
from trees import NOBODY, PYTHON, Case, Tree, started

from crckpt.host.process.pidfd import borrow

pytestmark = pytest.mark.usefixtures("adopted")

AS_NOBODY: Final = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
HAS: Final = """
import os, select, socket, struct, sys
from selfcheck import Program
from pathlib import Path
tcp, udp = (socket.socket(socket.AF_INET, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM))
tcp.bind(("127.0.0.1", 0))
tcp.listen()
udp.bind(("127.0.0.1", 0))
one, other = socket.socketpair()
poll = select.epoll()
poll.register(tcp)
ends = os.pipe()
program = Program(Path(sys.argv[1]))
def step():
    program.facts["peer"] = struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1:]
    program.facts["sockets"] = [each.fileno() for each in (tcp, udp)]
program.run(step)
"""


def owners(tree: Tree) -> dict[str, int]:
    """The user that the kernel has for each internet socket of the tree, by protocol."""
    found = {}
    links = {str(link.readlink()) for link in Path(f"/proc/{tree.pid}/fd").iterdir()}
    for protocol in ("tcp", "udp"):
        for line in Path(f"/proc/{tree.pid}/net/{protocol}").read_text().splitlines()[1:]:
            fields = line.split()
            if f"socket:[{fields[9]}]" in links:
                found[protocol] = int(fields[7])
    return found


def test_sockets_belong_to_the_programs_user(crckpt: Crckpt) -> None:
    """Firewall rules by user hold for them, and no socket of root's shares their port (SO_REUSEPORT)."""
    words = ("env", "PYTHONPATH={workdir}/programs", PYTHON, "-c", HAS, "{workdir}")
    with started(Case("holders", (*AS_NOBODY, *words), user=NOBODY)) as tree:
        assert owners(tree) == {"tcp": NOBODY, "udp": NOBODY}
        assert tree.facts()[""]["peer"] == [NOBODY, NOBODY]
        before = tree.counters()
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        assert owners(tree) == {"tcp": NOBODY, "udp": NOBODY}
        assert tree.facts()[""]["peer"] == [NOBODY, NOBODY]


NETLINK: Final = """
import os, socket, sys
held = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
held.bind((0, 0))
os.dup2(held.fileno(), 50)
from counter import main
main()
"""


def add_address(tree: Tree) -> int:
    """Add an address to `lo` by the tree's socket, as a set-user-id program could whose output it is; the errno."""
    address = bytes([127, 9, 9, 9])
    # RTM_NEWADDR, NLM_F_REQUEST | ACK | EXCL | CREATE (rtnetlink(7)); IFA_ADDRESS and IFA_LOCAL
    body = struct.pack("=BBBBi", socket.AF_INET, 8, 0, 254, 1) + b"".join(
        struct.pack("=HH4s", 8, kind, address) for kind in (1, 2)
    )
    with socket.socket(fileno=borrow(tree.pid, 50)) as held:
        held.settimeout(10)
        held.send(struct.pack("=IHHII", 16 + len(body), 20, 0x605, 1, 0) + body)
        return -int(struct.unpack_from("=i", held.recv(4096), 16)[0])


def test_netlink_socket_is_judged_by_the_programs_user(crckpt: Crckpt) -> None:
    """The kernel checks the rights of the sender and of the creator, which is the program's user."""
    words = ("env", "PYTHONPATH={workdir}/programs", PYTHON, "-c", NETLINK, "{workdir}")
    with started(Case("netlink", (*AS_NOBODY, *words), user=NOBODY)) as tree:
        assert add_address(tree) == errno.EPERM
        before = tree.counters()
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        assert add_address(tree) == errno.EPERM
