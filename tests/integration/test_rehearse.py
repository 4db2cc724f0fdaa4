"""A rehearsal really restores, next to the original, and does not affect the host."""

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from command import Crckpt, network_locks
from stopped_trees import BY_NAME, JOB, ObstructedCriu, program, staging
from trees import PYTHON, Case, Tree, runs, started, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

FAILED: Final = 25
REFUSED: Final = 24
INTERRUPTED: Final = 130
WITHIN_S: Final = 60
SHORT_REHEARSAL: Final = ("--seconds", "0.4")
ADDRESS: Final = "10.77.1.2"

PROBE: Final = "sleep 61.5"

GREETING_PROBE: Final = """
import socket, sys
from pathlib import Path
for host, port in zip(("127.0.0.1", "::1"), Path(sys.argv[1], "ports").read_text().split()):
    assert socket.create_connection((host, int(port)), timeout=60).recv(100).startswith(b"hello ")
"""
"""Only for who is in the same network: asked by the probe, the tree of the rehearsal answers."""


@pytest.mark.parametrize(
    "name",
    ["family", "growing-log", "unix-sockets", "tcp-pair", "events", "maps", "sysv-ipc", "locks", "tmux", "redis"],
)
def test_rehearsal_runs_while_the_original_runs(crckpt: Crckpt, name: str) -> None:
    """The PIDs, ports, locks and sockets of the original are in use, and the original continues."""
    case = BY_NAME[name]
    if case.missing():
        pytest.skip(f"not installed: {', '.join(case.missing())}")
    with dumped(crckpt, case) as tree:
        before = tree.counters()
        with traceless(crckpt):
            result = rehearsed(crckpt)
        assert result["passed"]
        assert result["ended"] == []
        assert result["ran_s"] >= 0.4
        assert result["closed_connections"] == (4 if name == "tcp-pair" else 0)
        tree.wait_growth(before)
        tree.case.probe(tree.workdir)


def test_writes_of_the_rehearsal_are_discarded(crckpt: Crckpt) -> None:
    """On the host no file is changed, created or removed; the rehearsed tree sees its own changes."""
    with dumped(crckpt, elsewhere("write")) as tree:
        shared = Path("/dev/shm", tree.workdir.name)
        assert not shared.exists()
        before = files(tree.workdir)
        # The rehearsed program writes held.txt and new.txt and removes kept.txt (tests/programs/elsewhere.py).
        look = f"sh -c 'cat {tree.workdir}/held.txt {tree.workdir}/new.txt {shared}; ls {tree.workdir}'"
        with traceless(crckpt):
            probe = rehearsed(crckpt, "--probe", look)["probe"]
        assert probe["status"] == 0
        assert probe["output"].startswith("changed\n")
        assert "kept.txt" not in probe["output"]
        assert files(tree.workdir) == before
        assert not shared.exists()


def test_rehearsal_has_its_own_ports(crckpt: Crckpt) -> None:
    """The ports of the original keep answering. The probe reaches those of the rehearsal."""
    with dumped(crckpt, BY_NAME["tcp-listen"]) as tree:
        script = tree.workdir / "greeted.py"
        script.write_text(GREETING_PROBE)
        words = ("--probe", f"{PYTHON} {script} {tree.workdir}", "--json", "--seconds", "1")
        with crckpt.start("rehearse", JOB, *words) as rehearsal:
            while rehearsal.poll() is None:
                tree.case.probe(tree.workdir)
            assert rehearsal.returncode == 0
        # The original is stopped, so the answer comes from the rehearsal.
        os.kill(tree.pid, signal.SIGSTOP)
        try:
            assert rehearsed(crckpt, *words[:2])["probe"]["status"] == 0
        finally:
            os.kill(tree.pid, signal.SIGCONT)


def test_rehearsal_has_its_own_addresses(crckpt: Crckpt) -> None:
    """The rehearsal has the addresses that the tree's sockets use. No link leads outside."""
    subprocess.run(["ip", "address", "add", f"{ADDRESS}/24", "dev", "lo"], check=True)
    try:
        with dumped(crckpt, elsewhere("stay", host=ADDRESS)):
            probe = rehearsed(crckpt, "--probe", "ip -o address")["probe"]
    finally:
        subprocess.run(["ip", "address", "del", f"{ADDRESS}/24", "dev", "lo"], check=True)
    assert f"inet {ADDRESS}/32" in probe["output"]
    assert {line.split()[1] for line in probe["output"].splitlines()} == {"lo"}


def test_client_of_the_original_program_keeps_its_connection_during_a_rehearsal(crckpt: Crckpt) -> None:
    """In the rehearsal the connection is closed, and a message says so."""
    with started(program("echo_server")) as tree, connected(tree) as client:
        assert echoed(client)
        crckpt.run("dump", str(tree.pid), JOB, "--tcp", "keep")
        with traceless(crckpt):
            output = crckpt.run("rehearse", JOB, *SHORT_REHEARSAL).out
        assert "1 TCP connection closed" in output
        assert echoed(client)


def test_rehearsal_reports_a_unix_socket_connected_to_other_programs(crckpt: Crckpt) -> None:
    """A socket of the host, such as that of the system's log, is within reach of the rehearsal, and is named."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.settimeout(WITHIN_S)

        def listen(workdir: Path) -> None:
            log.bind(str(workdir / "log.sock"))
            log.recv(100)

        with dumped(crckpt, dataclasses.replace(elsewhere("stay"), settle=listen)) as tree:
            before = files(tree.workdir)
            home = log.recv(100)
            with crckpt.start("rehearse", JOB, "--json", "--seconds", "1") as rehearsal:
                wait_for(lambda: log.recv(100) != home, WITHIN_S, "the rehearsed tree to speak")
                result = json.loads(rehearsal.communicate(timeout=WITHIN_S)[0])["result"]
            assert result["not_isolated"]["sockets"] == [str(tree.workdir / "log.sock")]
            assert files(tree.workdir) == before


@pytest.mark.parametrize(
    ("what", "argument", "ended", "fails"),
    [
        ("exit", 0, 0, False),
        ("exit", 7, 7, True),
        ("signal", signal.SIGSEGV, -signal.SIGSEGV, True),
        ("child", signal.SIGKILL, -signal.SIGKILL, True),
    ],
)
def test_rehearsal_reports_processes_that_ended_and_their_status(
    crckpt: Crckpt, what: str, argument: int, ended: int, fails: bool
) -> None:
    """The report has the status or signal. A signal fails the rehearsal, and so does a root with a nonzero status."""
    with dumped(crckpt, elsewhere(what, argument)) as tree:
        ended_pid = tree.pids()[1 if what == "child" else 0]
        seconds = "1" if what == "child" else "3600"
        with traceless(crckpt):
            result = rehearsed(crckpt, "--seconds", seconds, status=FAILED if fails else 0)
        assert what == "child" or result["ran_s"] < 3600
        (found,) = [each for each in result["ended"] if each["pid"] == ended_pid]
        assert found["status"] == ended
        assert result["passed"] is not fails
        assert any(f"process {ended_pid} " in failure for failure in result["failures"]) is fails
        assert runs(ended_pid)


def test_memory_of_a_rehearsal_is_limited(crckpt: Crckpt) -> None:
    """A tree that takes more is ended, and not the host's programs."""
    with dumped(crckpt, elsewhere("memory")) as tree:
        with traceless(crckpt):
            if rehearsed(crckpt, "--seconds", "0")["memory_limit"] is None:
                pytest.skip("this host lets us make no control group")
            result = rehearsed(crckpt, "--seconds", "60", status=FAILED)
        assert any("memory" in failure for failure in result["failures"])
        tree.wait_growth(tree.counters())


def test_rehearsal_prints_the_output_of_its_probe(crckpt: Crckpt) -> None:
    with started(BY_NAME["counter"]) as tree:
        crckpt.run("dump", str(tree.pid), JOB)
        output = crckpt.run("rehearse", JOB, "--seconds", "0", "--probe", "sh -c 'echo all; echo well'").out
    assert "the probe printed:\n  | all\n  | well\n" in output
    assert "the probe exited with 0" in output.splitlines()[-1]


@pytest.mark.parametrize(("probe", "status"), [("sh -c 'exit 5'", 5), ("no-such-program", 127)])
def test_failed_probe_fails_the_rehearsal(crckpt: Crckpt, probe: str, status: int) -> None:
    with dumped(crckpt, BY_NAME["counter"]):
        with traceless(crckpt):
            result = rehearsed(crckpt, "--probe", probe, status=FAILED)
        assert result["probe"]["status"] == status
        assert result["failures"] == [f"the probe ended with status {status}"]


@pytest.mark.parametrize(
    ("before", "user", "capabilities"),
    [
        (("setpriv", "--reuid=65534", "--regid=65534", "--groups=4242"), 65534, 0),
        (("setpriv", "--bounding-set=-all,+chown,+kill", "--inh-caps=-all"), 0, 1 << 0 | 1 << 5),
    ],
    ids=["nobody", "root with two capabilities"],
)
def test_probe_has_no_more_rights_than_the_program(
    crckpt: Crckpt, before: tuple[str, ...], user: int, capabilities: int
) -> None:
    """The program may have changed any file that it can write to, and so what the probe executes and loads."""
    case = program("elsewhere", "127.0.0.1", "stay", "0")
    with dumped(crckpt, Case("confined", (*before, *case.argv), user=user)), traceless(crckpt):
        probe = rehearsed(crckpt, "--probe", "cat /proc/self/status")["probe"]
    status_fields = {
        name: value.split() for name, _, value in (line.partition(":") for line in probe["output"].splitlines())
    }
    assert set(status_fields["Uid"]) == {str(user)}
    assert status_fields["Groups"] == (["4242"] if user else status_fields["Groups"])
    assert status_fields["NoNewPrivs"] == ["1"]
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status_fields[name][0], 16) == (0 if name in ("CapInh", "CapAmb") else capabilities)
    assert int(status_fields["CapBnd"][0], 16) & ~capabilities == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("running", [False, True])
def test_interrupted_rehearsal_leaves_nothing(
    crckpt: Crckpt, obstructed: ObstructedCriu, number: signal.Signals, running: bool
) -> None:
    """The rehearsal is interrupted while CRIU restores the tree, and while the tree runs.

    The next rehearsal removes what the kernel does not.
    """

    def wait_for_command(command: str) -> None:
        wait_for(lambda: any(command in words for words in commands()), WITHIN_S, command)

    def stopped_scripts(script: Path) -> list[psutil.Process]:
        found = []
        for pid in inmates():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.status() == psutil.STATUS_STOPPED and str(script) in process.cmdline():
                    found.append(process)
        return found

    def wait_stopped(script: Path) -> None:
        wait_for(lambda: bool(stopped_scripts(script)), WITHIN_S, "the script to stop")

    def go_on(script: Path) -> None:
        for process in stopped_scripts(script):
            with suppress(psutil.Error):  # SIGKILL has ended it
                process.resume()

    with dumped(crckpt, BY_NAME["family"]) as tree:
        before = tree.counters()
        with traceless(crckpt):
            if running:
                cut_short(crckpt, number, lambda: wait_for_command(PROBE), "--probe", PROBE)
            else:
                with obstructed.stops() as script:
                    words = ("--criu", str(obstructed.path), "--seconds", "60")
                    # An interruption waits until CRIU goes on: to crckpt's hold, which is aborted then.
                    cut_short(crckpt, number, lambda: wait_stopped(script), *words, afterwards=lambda: go_on(script))
            assert rehearsed(crckpt)["passed"]
            crckpt.run("gc")
        tree.wait_growth(before)


def test_invalid_rehearsals_are_refused(crckpt: Crckpt, tmp_path: Path) -> None:
    """The message names the problem before anything starts."""
    library = tmp_path / "libanswer.so"
    subprocess.run(
        ["cc", "-shared", "-o", library, "-x", "c", "-"], input=b"int answer(void) { return 42; }", check=True
    )
    crckpt.run("rehearse", "nobody", status=10)
    with dumped(crckpt, program("held_files", str(library))) as tree:
        assert rehearsed(crckpt)["passed"]
        crckpt.run("rehearse", "nobody", status=12)
        crckpt.run("rehearse", JOB, "--probe", "'", status=2)
        for seconds in ("-1", "nan", "inf"):
            crckpt.run("rehearse", JOB, "--seconds", seconds, status=2)
        # A new file: the program has the old one mapped.
        library.rename(tmp_path / "old.so")
        shutil.copy(tmp_path / "old.so", library)
        os.truncate(library, 4096)
        with traceless(crckpt):
            error = crckpt.run("rehearse", JOB, status=REFUSED).err
        assert str(library) in error
        tree.wait_growth(tree.counters())


def test_damaged_checkpoint_fails_the_rehearsal(crckpt: Crckpt) -> None:
    """Pages are read while CRIU restores. Nothing is left behind."""
    with dumped(crckpt, BY_NAME["counter"]):
        (pack,) = crckpt.store.glob("packs/*/*.pack")
        content = bytearray(pack.read_bytes())
        content[len(content) // 3] ^= 1
        pack.chmod(0o600)
        pack.write_bytes(content)
        with traceless(crckpt):
            crckpt.run("rehearse", JOB, status=13)


def test_failed_criu_fails_the_rehearsal(crckpt: Crckpt, obstructed: ObstructedCriu) -> None:
    """CRIU fails before crckpt has examined the tree, and after it has reported success."""
    with dumped(crckpt, BY_NAME["counter"]):
        for committed in (False, True):
            with obstructed.fails(committed=committed), traceless(crckpt):
                result = crckpt.run("rehearse", JOB, "--criu", str(obstructed.path), "--json", status=FAILED)
            assert "nothing is left behind" in result.document["error"]["message"]


def elsewhere(what: str, argument: int = 0, host: str = "127.0.0.1") -> Case:
    """The program that acts only in a rehearsal."""
    return program("elsewhere", host, what, str(int(argument)))


@contextmanager
def dumped(crckpt: Crckpt, case: Case) -> Iterator[Tree]:
    """A tree that was checkpointed and continues."""
    with started(case) as tree:
        crckpt.run("dump", str(tree.pid), JOB, *(("--tcp", case.tcp) if case.tcp else ()))
        yield tree


def rehearsed(crckpt: Crckpt, *words: str, status: int = 0) -> dict[str, Any]:
    """The result's document."""
    seconds = () if "--seconds" in words else SHORT_REHEARSAL
    result: dict[str, Any] = crckpt.run("rehearse", JOB, "--json", *seconds, *words, status=status).document["result"]
    return result


def cut_short(
    crckpt: Crckpt,
    number: signal.Signals,
    reached: Callable[[], None],
    *words: str,
    afterwards: Callable[[], None] = lambda: None,
) -> None:
    """Send a signal to a rehearsal once something is reached; check that all of it ends."""
    rehearsal = crckpt.start("rehearse", JOB, *words)
    try:
        reached()
        inside = inmates()
        assert len(inside) > 1
        rehearsal.send_signal(number)
        afterwards()
        error = rehearsal.communicate(timeout=WITHIN_S)[1]
        assert rehearsal.returncode == (INTERRUPTED if number == signal.SIGINT else -number), error
    finally:
        rehearsal.kill()
        rehearsal.communicate()
    wait_for(lambda: not any(map(runs, inside)), WITHIN_S, f"{inside} to end")


@contextmanager
def traceless(crckpt: Crckpt) -> Iterator[None]:
    """Check that the host is unchanged: processes, groups, mounts, packet filters, the store."""
    _, *others = traces(crckpt)
    yield
    assert not inmates()
    assert traces(crckpt) == ([], *others)


def traces(crckpt: Crckpt) -> tuple[object, ...]:
    """What a rehearsal of this test's could leave."""
    groups = [path for pid in crckpt.pids for path in Path("/sys/fs/cgroup").rglob(f"crckpt-rehearsal-{pid}-*")]
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(crckpt.store) in line]
    return groups, mounts, network_locks(), staging(crckpt)


def inmates() -> tuple[int, ...]:
    """PIDs of all processes in the namespaces of a rehearsal."""
    own_space = space_of("self")
    spaces: dict[int, str] = {}
    inits: set[str] = set()
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            spaces[process.pid] = space_of(str(process.pid))
            if "crckpt.helper.pid_namespace.init" in process.cmdline():
                inits.add(spaces[process.pid])
    return tuple(pid for pid, space in spaces.items() if space in inits - {own_space})


def space_of(pid: str) -> str:
    """What names the pid namespace of a process."""
    return str(Path(f"/proc/{pid}/ns/pid").readlink())


def commands() -> Iterator[str]:
    """The command lines of all processes of the rehearsal."""
    for pid in inmates():
        with suppress(psutil.Error):
            yield " ".join(psutil.Process(pid).cmdline())


def files(directory: Path) -> dict[str, tuple[object, ...]]:
    """Names, bytes, times and modes of all files except the status that the original writes."""
    found: dict[str, tuple[object, ...]] = {}
    for path in directory.iterdir():
        if not path.name.startswith("status"):
            status = path.stat()
            content = path.read_bytes() if path.is_file() else b""
            found[path.name] = (content, status.st_mtime_ns, status.st_mode, status.st_ino)
    return found


def connected(tree: Tree) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int((tree.workdir / "port").read_text())), timeout=60)


def echoed(client: socket.socket) -> bool:
    client.sendall(b"are you there?")
    return client.recv(100) == b"are you there?"
