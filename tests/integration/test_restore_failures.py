"""A restore that fails or is interrupted leaves nothing behind, and can be tried again with its connections."""

import json
import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

import psutil
import pytest
from command import Crckpt, network_locks
from stopped_trees import BY_NAME, JOB, ObstructedCriu, foreground, program, staging, stopped, taken
from trees import Tree, runs, started, wait_for

from crckpt.store.backend.local import Backend
from crckpt.store.format.pack import open_pack

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

INTEGRITY: Final = 13
KEEP_WRITTEN_FILES: Final = ("--written", "keep")
FAILED: Final = 23
REFUSED: Final = 24
INTERRUPTED: Final = 130
WITHIN_S: Final = 60


@pytest.mark.parametrize(("committed", "detach"), [(False, True), (True, False)])
def test_failed_restore_leaves_nothing(
    crckpt: Crckpt, obstructed: ObstructedCriu, committed: bool, detach: bool
) -> None:
    """CRIU ends the processes that it has created. Connections inside the tree continue after the next restore."""
    with stopped(crckpt, BY_NAME["tcp-pair"], "--tcp", "keep") as tree:
        before, locks = tree.counters(), network_locks()
        words = ("--criu", str(obstructed.path), *(("--detach",) if detach else ()))
        with obstructed.fails(committed=committed):
            result = crckpt.run("restore", JOB, *words, status=FAILED)
        assert "the restore failed" in result.err
        assert "nothing is left behind" in result.err
        _nothing_is_left(crckpt, tree)
        assert network_locks() == locks
        assert len(locks) == 1
        crckpt.run("restore", JOB, "--detach")
        assert network_locks() == frozenset()
        tree.wait_growth(before)
        tree.wait_verified()


def test_connection_to_an_outside_client_survives_a_failed_restore(crckpt: Crckpt, obstructed: ObstructedCriu) -> None:
    """The client notices a pause and loses no byte, at whatever time it sent it."""
    with started(program("echo_server")) as tree, _Client(tree) as client:
        client.talk(1000)
        crckpt.run("dump", str(tree.pid), JOB, "--stop", "--tcp", "keep")
        tree.wait_gone()
        client.send(1000)
        with obstructed.fails(committed=True):
            crckpt.run("restore", JOB, "--criu", str(obstructed.path), status=FAILED)
        with obstructed.waits(committed=False) as obstacle, foreground(crckpt, "--criu", str(obstructed.path)) as front:
            obstacle.wait_reached()
            client.send(1000)
            front.kill()
            front.wait()
        tree.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        client.receive()
        client.talk(1000)
        assert client.numbers == 4000


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, INTERRUPTED), (signal.SIGKILL, -9)])
def test_crckpt_interrupted_while_criu_restores_leaves_nothing(
    crckpt: Crckpt, obstructed: ObstructedCriu, number: signal.Signals, status: int
) -> None:
    """CRIU is not killed: it reaches the hold, gets the answer to abort, and undoes its work."""
    with stopped(crckpt, BY_NAME["family"]) as tree:
        before = tree.counters()
        with obstructed.waits(committed=False) as obstacle, foreground(crckpt, "--criu", str(obstructed.path)) as front:
            obstacle.wait_reached()
            front.send_signal(number)
            if number == signal.SIGKILL:
                front.wait(WITHIN_S)
            obstacle.let_go()
            _, error = front.communicate(timeout=WITHIN_S)
        assert front.returncode == status
        _nothing_is_left(crckpt, tree, staged=number == signal.SIGKILL)
        assert "nothing is left behind" in error or number == signal.SIGKILL
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        crckpt.run("gc")
        assert staging(crckpt) == ()


def test_crckpt_killed_in_the_hold_leaves_nothing(crckpt: Crckpt, obstructed: ObstructedCriu) -> None:
    """CRIU waits in the hold for an answer of a crckpt that has died, and aborts."""
    with stopped(crckpt, BY_NAME["family"]) as tree:
        before = tree.counters()
        with obstructed.waits(committed=False) as obstacle, foreground(crckpt, "--criu", str(obstructed.path)) as front:
            obstacle.wait_reached()
            front.send_signal(signal.SIGSTOP)
            obstacle.let_go()
            wait_for(lambda: _waits_for_the_word(crckpt.store), WITHIN_S, "CRIU to come to the hold")
            front.kill()
            front.wait(WITHIN_S)
        _nothing_is_left(crckpt, tree, staged=True)
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


@pytest.mark.parametrize("where", [(), ("--detach",), ("--new-pid-namespace",)])
def test_killed_criu_leaves_nothing(crckpt: Crckpt, obstructed: ObstructedCriu, where: tuple[str, ...]) -> None:
    """The restored processes would wait forever: crckpt ends them."""
    with stopped(crckpt, BY_NAME["family"]) as tree:
        before = tree.counters()
        with obstructed.is_killed():
            result = crckpt.run("restore", JOB, *where, "--criu", str(obstructed.path), status=FAILED)
        assert "nothing is left behind" in result.err
        _nothing_is_left(crckpt, tree)
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


@pytest.mark.parametrize("where", [(), ("--detach",)])
def test_tree_with_a_killed_process_does_not_run(
    crckpt: Crckpt, obstructed: ObstructedCriu, where: tuple[str, ...]
) -> None:
    """The kernel may kill a process when memory is low: CRIU would wait for it forever."""
    with stopped(crckpt, BY_NAME["family"]) as tree:
        before, words = tree.counters(), (*where, "--criu", str(obstructed.path))
        with obstructed.waits(committed=False) as obstacle, foreground(crckpt, *words) as front:
            obstacle.wait_reached()
            os.kill(tree.parts()["younger"].pid, signal.SIGKILL)
            obstacle.let_go()
            _, error = front.communicate(timeout=WITHIN_S)
        assert (front.returncode, "nothing is left behind" in error) == (FAILED, True), error
        _nothing_is_left(crckpt, tree)
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


@pytest.mark.parametrize("where", [(), ("--detach",)])
def test_process_with_a_reused_pid_is_left_alone(
    crckpt: Crckpt, obstructed: ObstructedCriu, where: tuple[str, ...]
) -> None:
    """The PID was free when crckpt checked it, and in use when CRIU needed it."""
    with stopped(crckpt, BY_NAME["family"]) as tree, obstructed.waits_at_first() as obstacle:
        with foreground(crckpt, *where, "--criu", str(obstructed.path)) as front:
            obstacle.wait_reached()
            with taken(tree.pid, "PID") as other:
                obstacle.let_go()
                _, error = front.communicate(timeout=WITHIN_S)
                assert (front.returncode, "nothing is left behind" in error) == (FAILED, True)
                assert runs(other)
        tree.wait_gone()
        _nothing_is_left(crckpt, tree)


@pytest.mark.parametrize("detach", [False, True])
def test_interruption_after_the_commit_does_not_end_the_restored_program(
    crckpt: Crckpt, obstructed: ObstructedCriu, detach: bool
) -> None:
    """Detached, the program runs and a message says so. In the foreground, the program gets the signal."""
    with stopped(crckpt, program("record_signals")) as tree:
        before = tree.counters()
        words = ("--criu", str(obstructed.path), *(("--detach",) if detach else ()))
        with obstructed.waits(committed=True) as obstacle, foreground(crckpt, *words) as front:
            obstacle.wait_reached()
            front.send_signal(signal.SIGTERM)
            obstacle.let_go()
            tree.wait_growth(before)
            if detach:
                out, _ = front.communicate(timeout=WITHIN_S)
                assert (front.returncode, "restored" in out) == (0, True)
            else:
                wait_for(lambda: tree.facts()[""]["signals"] == ["SIGTERM"], WITHIN_S, "the signal to arrive")
                assert front.poll() is None


def test_or_older_restores_an_older_checkpoint(crckpt: Crckpt) -> None:
    """The newest is damaged and the one before conflicts with a file: both are reported, and the third is restored."""
    with _series_of_three(crckpt) as (tree, ids):
        log = tree.workdir / "journal.log"
        os.truncate(log, _size_then(crckpt, ids[0], log))
        _damage(crckpt, ids[2])
        assert "does not match" in crckpt.run("restore", JOB, "--detach", status=INTEGRITY).err
        assert (
            "had" in crckpt.run("restore", f"{JOB}~1", "--detach", "--or-older", *KEEP_WRITTEN_FILES, "--dry-run").out
        )
        planned = crckpt.run("restore", JOB, "--detach", "--or-older", *KEEP_WRITTEN_FILES, "--dry-run").out
        damaged, unfit = (line for line in planned.splitlines() if line.startswith("skipped"))
        assert damaged.startswith(f"skipped: checkpoint {ids[2][:12]} is damaged: ")
        assert unfit.startswith(f"skipped {ids[1][:12]}: {log} has")
        result = crckpt.run("restore", JOB, "--detach", "--or-older", *KEEP_WRITTEN_FILES, "--json").document["result"]
        assert result["checkpoint"]["id"] == ids[0]
        assert [passed["id"] for passed in result["passed_over"]] == [ids[2], ids[1]]
        assert "does not match" in result["passed_over"][0]["reason"]
        assert f"{log} has" in result["passed_over"][1]["reason"]
        wait_for(lambda: bool(tree.parts()), WITHIN_S, "the tree to say something")
        tree.wait_growth(tree.counters())


def test_option_or_older_is_suggested_only_if_the_job_has_an_older_checkpoint(crckpt: Crckpt) -> None:
    """The remedies name the ref that was typed."""
    with _series_of_three(crckpt) as (_, ids):
        _damage(crckpt, ids[2])
        error = crckpt.run("restore", JOB, "--detach", status=INTEGRITY).err
        assert f"; or restore an older checkpoint: crckpt restore {JOB} --or-older\n" in error
        _damage(crckpt, ids[0])
        for words in ((ids[0], "--detach"), (ids[0], "--detach", "--or-older")):
            error = crckpt.run("restore", *words, status=INTEGRITY).err
            assert f"find what can be repaired: crckpt verify --repair; {JOB} has no older checkpoint\n" in error
            assert "REF" not in error


def test_or_older_does_not_apply_to_pids_in_use(crckpt: Crckpt) -> None:
    """The newest checkpoint is intact: PIDs in use are no reason to restore an older one."""
    with _series_of_three(crckpt) as (tree, _):
        crckpt.run("restore", JOB, "--detach", "--grown", "rewind")
        error = crckpt.run("restore", JOB, "--detach", "--or-older", status=REFUSED).err
        assert f"{JOB} is already running, as PID {tree.pid}" in error


def test_or_older_lists_all_reasons_when_none_restores(crckpt: Crckpt) -> None:
    """The error lists each checkpoint with its reason."""
    with _series_of_three(crckpt) as (tree, ids):
        log = tree.workdir / "journal.log"
        log.unlink()
        _damage(crckpt, ids[1])
        error = crckpt.run("restore", JOB, "--detach", "--or-older", status=FAILED).err
        assert f"none of the 3 checkpoints of {JOB} can be restored" in error
        for identity, reason in zip(ids, ("is missing", "does not match", "is missing"), strict=True):
            assert any(identity[:12] in line and reason in line for line in error.splitlines())
        _nothing_is_left(crckpt, tree)


@contextmanager
def _series_of_three(crckpt: Crckpt) -> Iterator[tuple[Tree, tuple[str, ...]]]:
    """A program that writes a file, checkpointed three times while it ran, then killed; and the checkpoints' ids."""
    with started(program("journal", "plain")) as tree:
        ids = []
        for _ in range(3):
            dumped = crckpt.run("dump", str(tree.pid), JOB, "--json").document["result"]
            ids.append(dumped["checkpoint"]["id"])
            tree.wait_growth(tree.counters())
        tree.end()
        tree.wait_gone()
        (tree.workdir / "status.json").unlink()
        yield tree, tuple(ids)


def _size_then(crckpt: Crckpt, identity: str, path: Path) -> int:
    """The size that the file had at the checkpoint."""
    shown = crckpt.run("show", identity, "--json").document["result"]
    (size,) = (file["bytes"] for file in shown["files"] if file["path"] == str(path))
    return int(size)


def _damage(crckpt: Crckpt, identity: str) -> None:
    """Flip a byte of the pack that came with a checkpoint, in the frame that has its index."""
    manifests = {
        path.parent.name: json.loads(path.read_text()) for path in crckpt.store.glob("checkpoints/*/manifest.json")
    }
    created = manifests[identity]["created"]
    older = {use["digest"] for found in manifests.values() if found["created"] < created for use in found["packs"]}
    (own,) = (use["digest"] for use in manifests[identity]["packs"] if use["digest"] not in older)
    pack = crckpt.store / "packs" / own[:2] / f"{own}.pack"
    content = bytearray(pack.read_bytes())
    content[int(open_pack(Backend(crckpt.store), own).table["offset"][-1])] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(content)


class _Client:
    """A client of the echo server, outside the tree. It numbers what it sends and checks what comes back."""

    def __init__(self, tree: Tree) -> None:
        self._socket = socket.create_connection(("127.0.0.1", int((tree.workdir / "port").read_text())), timeout=60)
        self._sent = 0
        self.numbers = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, count: int) -> None:
        """Send the next `count` numbers."""
        self._socket.sendall(b"".join(struct.pack("<Q", number) for number in range(self._sent, self._sent + count)))
        self._sent += count

    def receive(self) -> None:
        """Receive all numbers that were sent, in order."""
        while self.numbers < self._sent:
            content = b""
            while len(content) % 8 or not content:
                more = self._socket.recv(1 << 16)
                assert more, "the server has closed the connection"
                content += more
            for (number,) in struct.iter_unpack("<Q", content):
                assert number == self.numbers
                self.numbers += 1

    def talk(self, count: int) -> None:
        """Send numbers and receive them again."""
        self.send(count)
        self.receive()


def _nothing_is_left(crckpt: Crckpt, tree: Tree, *, staged: bool = False) -> None:
    """Check that no process and no unfinished file is left, unless the process that removes files was killed."""
    tree.wait_gone()
    assert bool(staging(crckpt)) == staged


def _waits_for_the_word(store: Path) -> bool:
    """Return whether the program that CRIU runs in a hold waits for the crckpt that restores from this store."""
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "hold-action":
            with suppress(FileNotFoundError):
                links = [one.readlink() for one in Path(f"/proc/{process.pid}/fd").iterdir()]
                if any(link.name == "alive" and link.is_relative_to(store) for link in links):
                    return True
    return False
