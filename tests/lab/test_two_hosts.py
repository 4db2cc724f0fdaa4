"""The lab that migrations are tested in: its hosts, its links, the programs that talk; a program that moves by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from hosts import HOSTS, PROGRAMS, PROJECT, PYTHON, CannotMakeLab, TwoHosts, talking, wait_for
from namespaces import SCRIPT, Namespaces
from two_hosts import is_here, two_hosts

SERVER = "numbered_server.py"
STORE = "/var/lib/crckpt"
PORT = 5000

needs_namespaces = pytest.mark.skipif(is_here(), reason="about labs in namespaces; the hosts are real machines")


@pytest.fixture(scope="module")
def lab() -> Iterator[TwoHosts]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(two_hosts())
        except CannotMakeLab as error:
            pytest.skip(str(error))
        yield found


@pytest.mark.parametrize(
    ("origin", "target"), [("source", "destination"), ("destination", "source"), ("client", "source")]
)
def test_ssh_works_between_lab_hosts(lab: TwoHosts, origin: str, target: str) -> None:
    """ssh uses a key and asks nothing; crckpt has the same path on each host."""
    paths = {lab.run(host, "realpath", "/usr/local/bin/crckpt").out for host in (origin, target)}
    assert len(paths) == 1
    version = lab.run(origin, "crckpt", "--version").out
    assert lab.run(origin, "ssh", target, "hostname; crckpt --version").out == f"{target}\n{version}"


@needs_namespaces
def test_files_written_on_a_lab_host_are_not_on_the_other_hosts(lab: TwoHosts) -> None:
    """Files below /tmp, /etc, /root and in the store stay on their host, and are not on the machine of the lab."""
    written = [f"{directory}/of-the-source" for directory in ("/tmp", "/etc", "/root", "/var/tmp", STORE)]
    lab.run("source", "touch", *written)
    assert lab.run("source", "ls", *written).out.split() == sorted(written)
    assert lab.run("destination", "ls", *written, status=2).out == ""
    assert not any(Path(path).exists() for path in written)
    lab.run("source", "rm", *written)


@pytest.mark.parametrize("version", [4, 6])
def test_connection_survives_a_manual_move(lab: TwoHosts, version: int) -> None:
    """The tree is dumped, its store copied, its address moved behind a fence.

    The client sees a gap and nothing else.
    """
    with server(lab, version, "--memory", "8", "--rewrite", "0.05") as pid, talking(lab, version) as client:
        client.wait_for_replies()
        with lab.watched(SERVER) as watch:
            move_by_hand(lab, version, pid)
            report = client.wait_for_replies()
        assert (report["wrong"], report["ended"], report["hosts"]) == (None, None, ["source", "destination"])
        assert client.check()["memory"] == "intact"
        assert watch.looks > 0
        assert watch.doubled == ()
        (process,) = lab.find(SERVER)
        assert (process.host, process.pid) == ("destination", pid)
        assert [lab.is_at(host, version) for host in HOSTS] == [False, True, False]
        assert [lab.run(host, "nft", "list", "tables").out for host in HOSTS] == ["", "", ""]


def test_lab_client_reports_the_end_of_its_connection(lab: TwoHosts) -> None:
    """The client reports the end of the connection, whatever the reason."""
    with server(lab, 4) as pid, talking(lab, 4) as client:
        client.wait_for_replies()
        lab.end(SERVER)
        wait_for(lambda: client.report()["ended"], "the client to notice")
        assert client.report()["ended"] in ("EOF", "ECONNRESET", "EPIPE")
        assert client.report()["hosts"] == ["source"]
        # A zombie, until the host's init has reaped it.
        wait_for(lambda: not [each for each in lab.list_processes("source") if each.pid == pid], "nothing of it")


def test_lab_client_reports_a_gap_as_long_as_the_server_was_stopped(lab: TwoHosts) -> None:
    """A report that is requested during the gap includes it."""
    with server(lab, 4), talking(lab, 4) as client:
        before = client.wait_for_replies()
        (process,) = lab.find(SERVER)
        lab.send_signal(process, signal.SIGSTOP)
        wait_for(lambda: client.report()["longest_gap_ms"] > 10 * before["longest_gap_ms"], "a gap")
        lab.send_signal(process, signal.SIGCONT)
        after = client.wait_for_replies()
        assert after["longest_gap_ms"] > 10 * before["longest_gap_ms"]
        assert (after["wrong"], after["ended"]) == (None, None)


def test_lab_finds_a_program_that_runs_on_two_hosts_at_once(lab: TwoHosts) -> None:
    """A stopped copy does not count as running, and two copies on one host are not reported."""
    try:
        pids = [lab.start(host, "sleep", "1001") for host in HOSTS[:2]]
        wait_for(lambda: len(lab.find("1001")) == 2, "both to start")
        assert pids[0] != pids[1], "a program that moves must find its PID free"
        doubled = lab.find_doubled("1001")
        assert [(process.host, process.pid) for process in doubled] == list(zip(HOSTS, pids, strict=False))
        lab.send_signal(doubled[1], signal.SIGSTOP)
        wait_for(lambda: not lab.find_doubled("1001"), "one to be stopped")
        assert len(lab.find("1001")) == 2
        assert not lab.send_signal(doubled[0]._replace(start=doubled[0].start + 1), signal.SIGKILL)
        lab.send_signal(doubled[1], signal.SIGCONT)
        lab.end("1001", "destination")
        assert [process.pid for process in lab.find("1001")] == pids[:1]
        assert lab.find_doubled("1001") == ()
    finally:
        lab.end("1001")


def test_cut_lab_link_drops_packets_in_both_directions(lab: TwoHosts) -> None:
    """The link works again after it is healed. Other links are not affected."""
    with receivers(lab) as (source, destination):
        lab.cut()
        try:
            send(lab, "source", "destination", "lost")
            send(lab, "destination", "source", "lost")
            send(lab, "client", "destination", "from the client")
            assert read_line(destination) == "from the client\n"
        finally:
            lab.heal()
        send(lab, "source", "destination", "end")
        send(lab, "destination", "source", "end")
        assert (source.communicate()[0], destination.communicate()[0]) == ("", "")


def test_lab_link_cut_in_one_direction_drops_only_packets_in_that_direction(lab: TwoHosts) -> None:
    """The other direction stays open."""
    with receivers(lab) as (source, destination):
        lab.cut_one_way("source", "destination")
        try:
            send(lab, "source", "destination", "lost")
            send(lab, "destination", "source", "came")
            assert read_line(source) == "came\n"
        finally:
            lab.heal()
        send(lab, "source", "destination", "end")
        send(lab, "destination", "source", "end")
        assert (source.communicate()[0], destination.communicate()[0]) == ("", "")


@needs_namespaces
def test_slow_lab_link_is_slow_only_between_source_and_destination(lab: TwoHosts) -> None:
    """Data that takes minutes to the destination reaches the client at once. A healed link is as before."""
    copy = 'head -c 2000000 /dev/zero | ssh "$0" cat'
    lab.slow("100kbit")
    try:
        with lab.open("source", "sh", "-c", copy, "destination") as slow:
            lab.run("source", "sh", "-c", copy, "client")
            assert slow.poll() is None
            lab.slow("200kbit")  # a second limit replaces the first
            lab.heal()
            assert len(slow.communicate()[0]) == 2_000_000
    finally:
        lab.heal()


@needs_namespaces
def test_lab_link_has_the_requested_delay_or_refuses_it(lab: TwoHosts) -> None:
    """An answer takes at least as long as the delays of both directions. A kernel without delays is reported."""
    try:
        lab.slow("1gbit", "150ms")
    except CannotMakeLab as error:
        pytest.skip(str(error))
    try:
        with server(lab, 4), talking(lab, 4, host="destination") as client:
            assert client.wait_for_replies(3)["longest_gap_ms"] >= 300
    finally:
        lab.heal()


@needs_namespaces
def test_lab_tests_can_run_on_real_machines(lab: TwoHosts) -> None:
    """The tests run on the source host of a lab, and reach the other hosts by ssh as real machines."""
    options = ("-c", PROJECT / "pyproject.toml", "--rootdir", PROJECT, "-p", "no:cacheprovider", "-q", "-rA")
    wanted = ("-k", "manual_move and 4 or one_direction", PROJECT / "tests/lab/test_two_hosts.py")
    here = ("env", "CRCKPT_TWO_HOSTS_HERE=1", "CRCKPT_TESTS_ON_HOST=1", sys.executable, "-m", "pytest")
    output = lab.run("source", *here, *options, *wanted).out
    assert "SKIPPED" not in output
    assert output.count("PASSED") == 2, output


@needs_namespaces
def test_lab_script_runs_commands_on_hosts(lab: TwoHosts) -> None:
    """Arguments, input and status are passed on. A running lab is not created again."""
    assert isinstance(lab, Namespaces)
    result = run_script(lab.directory, "sh", "client", "sh", "-c", 'hostname; cat; echo "$1"; exit 7', "_", "a 'b'")
    assert (result.returncode, result.stdout) == (7, "client\nxa 'b'\n")
    assert "two-hosts down" in run_script(lab.directory, "up").stderr
    assert run_script(lab.directory, "sh", "client", "hostname").stdout == "client\n"
    for words in (("link", "cut", "source"), ("link", "cut", "source", "elsewhere"), ("sh", "key", "true"), ("sh",)):
        assert run_script(lab.directory, *words).returncode == 2
    assert "two-hosts up" in run_script(lab.directory / "missing", "sh", "client", "hostname").stderr


@needs_namespaces
def test_lab_script_down_leaves_nothing(tmp_path: Path) -> None:
    """No namespace, process, mount, cgroup or file is left, whatever runs inside and whatever rules exist."""
    lab = Namespaces(tmp_path / "lab")
    lab.up()
    try:
        for host in HOSTS:
            lab.start(host, "sleep", "1002")
            lab.run(host, "nft", "add table inet left_over")
        lab.start("source", "unshare", "--pid", "--fork", "--net", "--mount", "sleep", "1003")
        wait_for(lambda: len(lab.find("1003")) == 2, "a namespace below the host's")
        here = lab.find_pids_here("source")
        pids = [here[process.pid] for process in lab.find("1003")]
        assert len(set(pids)) == 2
        lab.cut()
        namespaces, cgroup = lab.namespaces(), read_cgroup(lab.directory)
        namespaces |= {str(Path(f"/proc/{pids[1]}/ns/{kind}").readlink()) for kind in ("pid", "net", "mnt")}
        processes = list_processes_in(namespaces)
        assert processes > {(pid, read_start(pid)) for pid in pids}
    finally:
        lab.down()
    # The kernel gives numbers of namespaces again: those of others that are made meanwhile must not count. A process
    # that was killed may take a moment to end.
    wait_for(lambda: not processes & list_processes_in(namespaces), "the end of all processes")
    assert_nothing_is_left(tmp_path, cgroup)
    lab.down()  # of a lab that is not there


@needs_namespaces
def test_lab_command_killed_on_the_driver_ends_on_the_host(lab: TwoHosts) -> None:
    """The lab ends even if its driver adopts orphans and does not reap them, as a benchmark does."""
    with lab.open("source", "sleep", "1004") as sleep:
        wait_for(lambda: [found for found in lab.find("1004") if found.command[0] == "sleep"], "a program to start")
        sleep.kill()
    wait_for(lambda: not lab.find("1004"), "it to end")


@needs_namespaces
@pytest.mark.parametrize("reached", ["key", "log", "keeper", "cgroup", "switch", "source", "client"])
def test_lab_script_down_removes_the_remains_of_a_killed_up(tmp_path: Path, reached: str) -> None:
    """`up` is killed at any step. Afterwards a new lab can be made."""
    directory = tmp_path / "lab"
    environment = os.environ | {"CRCKPT_TWO_HOSTS": str(directory)}
    with subprocess.Popen([SCRIPT, "up"], env=environment, start_new_session=True) as up:
        wait_for(lambda: (directory / reached).exists() or up.poll() is not None, f"{reached} to be made")
        up.kill()
    cgroup = read_cgroup(directory)
    result = run_script(directory, "down")
    assert result.returncode == 0, result.stderr
    assert_nothing_is_left(tmp_path, cgroup)


@needs_namespaces
def test_lab_ends_with_its_standard_input(tmp_path: Path) -> None:
    """The standard input ends if the driver of the lab is killed. Nothing is left behind."""
    directory = tmp_path / "lab"
    environment = os.environ | {"CRCKPT_TWO_HOSTS": str(directory)}
    with subprocess.Popen([SCRIPT, "up", "--until-eof"], env=environment, stdin=subprocess.PIPE) as up:
        assert up.wait() == 0
        cgroup = read_cgroup(directory)
        assert run_script(directory, "sh", "source", "hostname").stdout == "source\n"
    wait_for(lambda: not directory.exists(), "the lab to end")
    assert_nothing_is_left(tmp_path, cgroup)
    assert run_script(directory, "down").returncode == 0


@needs_namespaces
def test_interrupted_lab_script_up_removes_its_remains(tmp_path: Path) -> None:
    """SIGTERM has the same effect as ^C."""
    directory = tmp_path / "lab"
    environment = os.environ | {"CRCKPT_TWO_HOSTS": str(directory)}
    with subprocess.Popen([SCRIPT, "up"], env=environment, start_new_session=True) as up:
        wait_for(lambda: (directory / "keeper").exists() or up.poll() is not None, "a lab to be begun")
        cgroup = read_cgroup(directory)
        up.terminate()
        assert up.wait() == 130
    assert_nothing_is_left(tmp_path, cgroup)


@contextmanager
def server(lab: TwoHosts, version: int, *options: str) -> Iterator[int]:
    """numbered_server.py on the source, at the service address: its PID. Afterwards all is as before."""
    try:
        yield lab.start("source", PYTHON, PROGRAMS / SERVER, lab.service(version), "9000", *options)
    finally:
        lab.end(SERVER)
        lab.bring_service_back(version)
        for host in HOSTS[:2]:
            lab.run(host, "find", STORE, "-mindepth", "1", "-delete", status=None)


def move_by_hand(lab: TwoHosts, version: int, pid: int) -> None:
    """Move the program to the destination, by dump and restore of crckpt and a copy of the store."""
    lab.run(
        *("source", PROGRAMS / "move_by_hand.sh", "destination", lab.services[version], lab.device, STORE),
        *(f"crckpt dump {pid} job --stop --tcp keep --quiet", "crckpt restore job --detach --quiet"),
    )


@contextmanager
def receivers(lab: TwoHosts) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """Receivers of datagrams on source and destination, until `end` arrives.

    Each knows the hardware address of the other.
    """
    with ExitStack() as stack:
        for host, other in (HOSTS[:2], HOSTS[1::-1]):
            (link,) = json.loads(lab.run(other, "ip", "-j", "link", "show", lab.device).out)
            neighbour = (find_address(other), "dev", lab.device)
            # A datagram that waits for an answer would be sent when the link is healed.
            lab.run(host, "ip", "neigh", "replace", *neighbour, "lladdr", link["address"], "nud", "permanent")
            stack.callback(lab.run, host, "ip", "neigh", "del", *neighbour)
        found = []
        for host in HOSTS[:2]:
            receiver = lab.open(host, PYTHON, PROGRAMS / "datagrams.py", "receive", find_address(host), str(PORT))
            stack.callback(receiver.communicate)
            stack.callback(receiver.kill)
            assert read_line(receiver) == "ready\n"
            found.append(receiver)
        yield found[0], found[1]


def send(lab: TwoHosts, origin: str, target: str, text: str) -> None:
    """Send a datagram to the receiver on a host."""
    lab.run(origin, PYTHON, PROGRAMS / "datagrams.py", "send", find_address(target), str(PORT), text)


def read_line(process: subprocess.Popen[str]) -> str:
    """Wait for the next line of the command's output."""
    assert process.stdout is not None
    return process.stdout.readline()


def find_address(host: str) -> str:
    """The IPv6 address of a host."""
    return f"fd77::{HOSTS.index(host) + 1}"


def run_script(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/lab/two-hosts for the lab in a directory; its input is `x`."""
    environment = os.environ | {"CRCKPT_TWO_HOSTS": str(directory)}
    return subprocess.run([SCRIPT, *words], input="x", capture_output=True, text=True, check=False, env=environment)


def read_cgroup(directory: Path) -> Path | None:
    """The control group of the lab in a directory, if it has one."""
    file = directory / "cgroup"
    return Path(file.read_text().strip()) if file.exists() and file.read_text() else None


def list_processes_in(namespaces: frozenset[str]) -> set[tuple[int, int]]:
    """PID and start of each process of this machine that is in one of these namespaces."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/*"):
        with suppress(OSError):
            if str(link.readlink()) in namespaces:
                pid = int(link.parts[2])
                found.add((pid, read_start(pid)))
    return found


def read_start(pid: int) -> int:
    """When a process has started, in ticks since the boot."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])


def find_commands_with(text: str) -> list[str]:
    """Commands of other processes of this machine that contain a text."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = file.read_text(errors="replace")
            if text in command and file.parent.name != str(os.getpid()):
                found.append(command)
    return found


def assert_nothing_is_left(directory: Path, cgroup: Path | None) -> None:
    """Assert that a lab below a directory has left nothing."""
    assert list(directory.iterdir()) == []
    assert cgroup is None or not cgroup.exists()
    assert str(directory) not in Path("/proc/self/mountinfo").read_text()
    # A program that a killed script had started, as ssh-keygen, may still be about to end.
    wait_for(lambda: not find_commands_with(str(directory)), "processes to end")
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    assert "left_over" not in tables
    assert "bridge lab" not in tables
