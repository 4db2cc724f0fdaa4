"""Objects that a restore creates for a program of a user belong to that user: the kernel records the creator."""

from __future__ import annotations

import errno
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from stopped_trees import JOB
from trees import NOBODY, PYTHON, Case, Tree, started, wait_for

from crckpt.host.attributes.signal_owners import read_owner
from crckpt.host.proc import effective_capabilities
from crckpt.host.proc.task_states import FileOwner
from crckpt.host.process.pidfd import borrow, borrow_each

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

CAP_SYS_RESOURCE: Final = 24
REFUSED: Final = 24
AS_NOBODY: Final = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
PROGRAM_WITH_SOCKETS: Final = """
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


def test_restored_sockets_belong_to_the_programs_user(crckpt: Crckpt) -> None:
    """Firewall rules by user apply to the sockets. A socket of root cannot share their port (SO_REUSEPORT)."""
    words = ("env", "PYTHONPATH={workdir}/programs", PYTHON, "-c", PROGRAM_WITH_SOCKETS, "{workdir}")
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


PROGRAM_WITH_PENDING_CONNECTIONS: Final = """
import os, socket, struct, sys
from selfcheck import Program
from pathlib import Path
def listening(name):
    made = socket.socket(socket.AF_UNIX)
    made.bind(name)
    made.listen(100)
    return made
def peer(held):
    return struct.unpack("3i", held.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1:]
entrance = listening("\\0crckpt-entrance-%d" % os.getpid())
removed = sys.argv[1] + "/removed"
listeners = [listening(name) for name in ("\\0crckpt-test-%d" % os.getpid(), removed)]
clients = [socket.socket(socket.AF_UNIX) for _ in listeners]
for client, listener in zip(clients, listeners):
    client.connect(listener.getsockname())
os.unlink(removed)
program = Program(Path(sys.argv[1]))
def step():
    if not os.path.exists(sys.argv[1] + "/accept") or "peers" in program.facts:
        return
    program.facts["peers"] = [peer(listener.accept()[0]) for listener in listeners]
program.run(step)
"""


def test_connection_that_waits_to_be_accepted_belongs_to_the_programs_user(crckpt: Crckpt) -> None:
    """Otherwise a server would take its client for root, and each client would take the server for root."""
    words = ("env", "PYTHONPATH={workdir}/programs", PYTHON, "-c", PROGRAM_WITH_PENDING_CONNECTIONS, "{workdir}")
    with started(Case("accepts", (*AS_NOBODY, *words), user=NOBODY)) as tree:
        before = tree.counters()
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        with _servers(f"\0crckpt-entrance-{tree.pid}") as servers:
            crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        assert servers == {(NOBODY, NOBODY)}
        (tree.workdir / "accept").touch()
        tree.wait_growth(tree.counters())
        assert tree.facts()[""]["peers"] == [[NOBODY, NOBODY]] * 2


@contextmanager
def _servers(name: str) -> Iterator[set[tuple[int, int]]]:
    """Connect to `name` all the time, and return the users and groups of the servers that listened there."""
    found: set[tuple[int, int]] = set()
    is_over = threading.Event()

    def connect() -> None:
        while not is_over.wait(0.001):
            with socket.socket(socket.AF_UNIX) as client, suppress(ConnectionError, BlockingIOError):
                client.setblocking(False)
                client.connect(name)
                _, *server = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                found.add((server[0], server[1]))

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


PROGRAM_THAT_REOPENS_ITS_PIPE: Final = """
import os, sys
from selfcheck import Program
from pathlib import Path
ends = os.pipe()
both = os.open("/proc/self/fd/%d" % ends[0], os.O_RDWR)
program = Program(Path(sys.argv[1]))
def step():
    for end in (*ends, both):
        os.close(os.open("/proc/self/fd/%d" % end, os.O_WRONLY))
program.run(step)
"""


def test_user_can_open_its_restored_pipe_again_through_proc(crckpt: Crckpt) -> None:
    """Only the owner of a pipe can open it again, as /dev/stdout does.

    crckpt creates an end for reading and writing.
    """
    words = ("env", "PYTHONPATH={workdir}/programs", PYTHON, "-c", PROGRAM_THAT_REOPENS_ITS_PIPE, "{workdir}")
    with started(Case("opens", (*AS_NOBODY, *words), user=NOBODY)) as tree:
        before = tree.counters()
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


# A program of a user makes sockets, which its child keeps, and then executes a program of root, like su.
PROGRAM_THAT_SHARES_SOCKETS_WITH_ROOT: Final = """
import os, socket, sys
python = sys.argv.pop()
sockets = [socket.socket(family, socket.SOCK_DGRAM) for family in (socket.AF_INET, socket.AF_UNIX)]
if os.fork() == 0:
    from counter import main
    main()
for held in sockets:
    held.set_inheritable(True)
os.execv(python, [python, "-c", "import os, time; os.setresuid(0, 0, 0); time.sleep(1000)"])
"""


def test_socket_that_a_process_of_root_shares_needs_an_option(crckpt: Crckpt) -> None:
    """CRIU creates a shared socket in the process with the lowest PID.

    Rules for packets of root would apply to the user.
    """
    if CAP_SYS_RESOURCE not in effective_capabilities():
        pytest.skip("needs CAP_SYS_RESOURCE, to dump processes of two users")
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        python = Path(place, "python3")
        python.write_bytes(Path(PYTHON).read_bytes())
        python.chmod(0o4755)
        words = (
            "env",
            "PYTHONPATH={workdir}/programs",
            PYTHON,
            "-c",
            PROGRAM_THAT_SHARES_SOCKETS_WITH_ROOT,
            "{workdir}",
            str(python),
        )
        with started(Case("shares", (*AS_NOBODY, *words), user=NOBODY)) as tree:
            wait_for(lambda: Path(f"/proc/{tree.pid}").stat().st_uid == 0, 10, "root's program")
            before = tree.counters()
            refused = crckpt.run("dump", str(tree.pid), JOB, "--stop", status=REFUSED).err
            assert f"is a socket of user {NOBODY}, and is shared with a process of another user" in refused
            crckpt.run("dump", str(tree.pid), JOB, "--stop", "--force")
            tree.wait_gone()
            why = f"is a socket of user {NOBODY}; after a restore, others would take it for one of user 0"
            assert why in crckpt.run("restore", JOB, "--detach", status=REFUSED).err
            assert why in crckpt.run("restore", JOB, "--detach", "--allow-weaker").out
            tree.wait_growth(before)


PROGRAM_WITH_A_NETLINK_SOCKET: Final = """
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


def test_restored_netlink_socket_has_only_the_rights_of_the_programs_user(crckpt: Crckpt) -> None:
    """The kernel checks the rights of the sender and of the creator, which is the program's user."""
    words = ("env", "PYTHONPATH={workdir}/programs", PYTHON, "-c", PROGRAM_WITH_A_NETLINK_SOCKET, "{workdir}")
    with started(Case("netlink", (*AS_NOBODY, *words), user=NOBODY)) as tree:
        assert add_address(tree) == errno.EPERM
        before = tree.counters()
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        assert add_address(tree) == errno.EPERM


PROGRAM_WITH_LEASES: Final = """
import fcntl, os, sys
for number in (50, 51):
    name = sys.argv[1] + "/leased-" + str(number)
    os.close(os.open(name, os.O_CREAT))
    held = os.open(name, os.O_RDONLY)
    os.dup2(held, number)
    os.close(held)
    fcntl.fcntl(number, fcntl.F_SETLEASE, fcntl.F_RDLCK)
fcntl.fcntl(51, fcntl.F_SETOWN, 0)
from counter import main
main()
"""


def test_signals_of_a_lease_are_sent_with_the_rights_of_the_user(crckpt: Crckpt) -> None:
    """A program that root executes later, as sudo(8), would get them, although its user cannot signal it."""
    words = ("env", "PYTHONPATH={workdir}/programs", PYTHON, "-c", PROGRAM_WITH_LEASES, "{workdir}")
    with started(Case("leases", (*AS_NOBODY, *words), user=NOBODY)) as tree:
        expected = {50: FileOwner(1, tree.pid, (NOBODY, NOBODY)), 51: None}
        assert read_lease_owners(tree) == expected
        before = tree.counters()
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        assert read_lease_owners(tree) == expected


def read_lease_owners(tree: Tree) -> dict[int, FileOwner | None]:
    """Read the owners of the signals of its leases, by descriptor."""
    return {fd: read_owner(ours) for fd, ours in borrow_each(tree.pid, (50, 51))}
