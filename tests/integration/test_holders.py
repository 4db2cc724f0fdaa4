"""What a restore makes for a program of a user belongs to that user: the kernel remembers who has made a thing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from stopped import JOB
from trees import NOBODY, PYTHON, Case, Tree, started

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
