"""Real programs move between two hosts while their users work with them."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from hosts import PROGRAMS, PYTHON, CannotMakeLab, Client, Process, wait_for
from migrations import JOB
from namespaces import Namespaces
from tmux import Tmux
from two_hosts import in_namespaces

SHARED: Final = "/srv/shared"
KEYS: Final = 100_000
REDIS: Final = ("redis-server", "--bind", "0.0.0.0", "--port", "6390", "--protected-mode", "no", "--save", "")  # noqa: S104 of a lab
# Under a name of Debian's package it is not on PATH.
POSTGRES: Final = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), Path("/usr/bin"))
CONFIGURATION: Final = """
listen_addresses = '*'
unix_socket_directories = ''
dynamic_shared_memory_type = sysv
fsync = off
# Nothing is written while nobody asks: /srv/shared is no network file system, so the files are compared.
autovacuum = off
wal_level = minimal
max_wal_senders = 0
bgwriter_lru_maxpages = 0
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Namespaces]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with in_namespaces() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def cleared(lab: Namespaces) -> Iterator[None]:
    """Check that the programs of a test have ended in the test, and leave nothing else of it."""
    yield
    lab.bring_service_back(4)
    for host in ("source", "destination"):
        lab.run(host, "find", "/var/lib/crckpt", SHARED, "-mindepth", "1", "-delete", status=None)


def move(lab: Namespaces, pid: int, *options: str) -> dict[str, Any]:
    """Migrate; return the result."""
    completed = lab.run("source", "crckpt", "migrate", str(pid), "destination", JOB, "--json", *options)
    result: dict[str, Any] = json.loads(completed.out)["result"]
    return result


def with_connections(lab: Namespaces) -> tuple[str, ...]:
    """The options of a move that keeps the clients' connections."""
    return ("--tcp", "keep", "--move-ip", f"{lab.services[4]}@{lab.device}")


def find(lab: Namespaces, program: str) -> list[Process]:
    """The live processes of a program on source and destination. Some give themselves titles: `redis-server *:6379`."""
    among = (process for host in ("source", "destination") for process in lab.list_processes(host))
    named = re.compile(rf"(.*/)?{program}\b")
    return [process for process in among if process.is_live and process.command and named.match(process.command[0])]


def end(lab: Namespaces, program: str) -> None:
    """Kill all processes of a program, and wait until they have ended."""
    for process in find(lab, program):
        lab.send_signal(process, signal.SIGKILL)
    wait_for(lambda: not find(lab, program), f"{program} to end")


def test_redis_loses_no_reply_and_no_key(lab: Namespaces, record_property: Callable[[str, object], None]) -> None:
    """Four connections write and read all the time; the test reports the longest pause."""
    pid = lab.start("source", *REDIS)
    try:
        client = Client(lab, "client", "redis_client.py", lab.service(4), "6390", str(KEYS), "4")
        try:
            client.wait_for_replies(1000)
            result = move(lab, pid, *with_connections(lab))
            report = client.wait_for_replies(1000)
            assert (report["wrong"], report["ended"]) == (None, None)
            record_property("longest_pause_ms", report["longest_gap_ms"])
            print(f"longest pause: {report['longest_gap_ms']} ms; downtime by crckpt: {result['downtime_ms']:.1f} ms")
            report = client.check()
            assert (report["wrong"], report["ended"], report["keys"]) == (None, None, KEYS)
        finally:
            client.close()
        assert [process.host for process in find(lab, "redis-server")] == ["destination"]
        size = lab.run("destination", "redis-cli", "-p", "6390", "dbsize").out
        assert int(size.rpartition(" ")[2]) == KEYS
    finally:
        end(lab, "redis-server")


class Psql:
    """A connection to postgres."""

    def __init__(self, lab: Namespaces) -> None:
        words = ("psql", "-h", lab.service(4), "-U", "postgres", "--no-psqlrc", "-At", "-q", "-v", "ON_ERROR_STOP=1")
        self._process = lab.open("client", *words)

    def ask(self, statement: str) -> str:
        """Return the server's answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{statement};\n\\echo END\n")
        self._process.stdin.flush()
        lines = []
        while (line := self._process.stdout.readline()) != "END\n":
            assert line, f"psql ended: {self._process.communicate()[1]}"
            lines.append(line)
        return "".join(lines).strip()

    def close(self) -> None:
        """End the client."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def started_postgres(lab: Namespaces, *, memory: str = "sysv", own_ipc: bool = True) -> Iterator[int]:
    """A postgres with its data in the shared directory: the PID of its first process."""
    directory = f"{SHARED}/postgres"
    as_user = ("setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups")
    lab.run("source", "install", "-d", "-o", "postgres", "-m", "700", directory)
    lab.run("source", *as_user, POSTGRES / "initdb", "-D", directory, "--auth=trust", "--no-sync")
    configuration = CONFIGURATION.replace("sysv", memory)
    lab.run("source", "tee", "-a", f"{directory}/postgresql.conf", stdin=configuration)
    lab.run("source", "tee", "-a", f"{directory}/pg_hba.conf", stdin="host all all 0.0.0.0/0 trust\n")
    own = ("unshare", "--ipc") if own_ipc else ()
    pid = lab.start("source", *own, *as_user, str(POSTGRES / "postgres"), "-D", directory)
    try:
        ready = ("psql", "-h", lab.service(4), "-U", "postgres", "-c", "select 1")
        wait_for(lambda: lab.run("source", *ready, status=None).status == 0, "postgres to answer")
        yield pid
    finally:
        end(lab, "postgres")


@pytest.mark.skipif(not (POSTGRES / "postgres").exists(), reason="postgres is not installed")
class TestPostgres:
    """postgres, with its data on storage that both hosts have."""

    def test_open_transaction_is_committed_on_the_other_host(self, lab: Namespaces) -> None:
        """The connections of the transaction and of an idle client survive."""
        with started_postgres(lab) as pid:
            first, idle = Psql(lab), Psql(lab)
            try:
                first.ask("create table numbers (number int)")
                before = idle.ask("select pg_backend_pid()")
                first.ask("begin")
                first.ask("insert into numbers select generate_series(1, 1000)")
                idle.ask("checkpoint")  # PostgreSQL has now written all files
                move(lab, pid, *with_connections(lab))
                assert idle.ask("select count(*) from numbers") == "0"
                assert first.ask("select count(*) from numbers") == "1000"
                first.ask("commit")
                assert idle.ask("select count(*) from numbers") == "1000"
                assert idle.ask("select pg_backend_pid()") == before
                # The server accepts a new connection and makes a checkpoint.
                other = Psql(lab)
                assert other.ask("checkpoint; select sum(number) from numbers") == "500500"
                other.close()
            finally:
                first.close()
                idle.close()
            assert {process.host for process in find(lab, "postgres")} == {"destination"}

    @pytest.mark.parametrize(
        ("memory", "own_ipc", "remedy"),
        [("posix", True, "dynamic_shared_memory_type = sysv"), ("sysv", False, "unshare --ipc")],
    )
    def test_move_of_postgres_reports_the_settings_that_it_requires(
        self, lab: Namespaces, memory: str, own_ipc: bool, remedy: str
    ) -> None:
        with started_postgres(lab, memory=memory, own_ipc=own_ipc) as pid:
            words = ("crckpt", "migrate", str(pid), "destination", JOB, "--check")
            assert remedy in lab.run("source", *words, status=24).err


class TestTerminal:
    """A program that a user has started over ssh, at a terminal."""

    @pytest.fixture
    def user(self, lab: Namespaces, tmp_path: Path) -> Iterator[Tmux]:
        """The terminal of a user on the client."""
        with Tmux(tmp_path, *lab.command("client", ("env", "TERM=screen", "PS1=$ ", "sh"))) as terminal:
            terminal.wait_for(lambda shown: "$" in shown, "a prompt")
            yield terminal

    @pytest.mark.parametrize("start", ["leader", "job of a shell"])
    def test_moved_program_can_be_attached_on_the_other_host(self, lab: Namespaces, user: Tmux, start: str) -> None:
        workdir = f"{SHARED}/talker"
        lab.run("source", "mkdir", workdir)
        program = f"{PYTHON} {PROGRAMS}/talker.py {workdir} --listen"
        if start == "leader":
            user.enter(f"ssh -t source {program}")
        else:
            user.enter("ssh -t source sh")
            user.wait_for(lambda shown: shown.endswith("#"), "a prompt of the source")
            user.enter(program)
        try:
            user.wait_for(lambda shown: "says" in shown, "the program")
            pid = read_status(lab, workdir)["pid"]
            words = ("source", "crckpt", "migrate", str(pid), "destination", JOB)
            refused = lab.run(*words, status=24)
            assert "--tty new" in refused.err
            assert [process.host for process in lab.find("talker.py")] == ["source"]
            output = lab.run(*words, "--tty", "new").out
            if start != "leader":
                user.wait_for(lambda shown: "Killed" in shown, "the shell to have its terminal back")
                user.enter("exit")
            user.wait_for(lambda shown: "Connection to source closed" in shown, "ssh to end")
            wait_for(lambda: not lab.find("receive", "destination"), "the crckpt of the move to end")
            command = re.search(r"connect to its terminal: (ssh -t destination crckpt attach \S+);", output)
            assert command, output
            user.enter(f"clear; {command[1]}")
            user.wait_for(lambda shown: "says" in shown and "closed" not in shown, "its output")
            user.enter("hello there")
            wait_for(lambda: read_status(lab, workdir)["facts"]["heard"] == ["hello", "there"], "the words to arrive")
            user.press("C-c")
            wait_for(lambda: read_status(lab, workdir)["facts"]["interrupts"] == 1, "the interrupt to arrive")
            user.press("C-]")
            user.wait_for(lambda shown: "keeps running as PID" in shown, "to be detached")
            # Until then ssh takes what is typed.
            user.wait_for(lambda shown: "Connection to destination closed" in shown, "ssh to end")
            # The user attaches again. The output in between is in the log.
            user.enter(f"clear; {command[1]}")
            user.wait_for(lambda shown: "says" in shown and "keeps running as" not in shown, "its output again")
            log = re.search(r"its output there: (\S+)", output)
            assert log, output
            assert "says" in lab.run("destination", "cat", log[1]).out
            # When the program moves back, an attached user gets the command to attach there, not only an exit status.
            back = ("destination", "crckpt", "migrate", str(pid), "source", JOB, "--tty", "new")
            assert "ssh -t source crckpt attach" in lab.run(*back).out
            user.wait_for(lambda shown: f"crckpt list {JOB}" in "".join(shown.split("\n")), "where to look for it")
            assert [process.host for process in lab.find("talker.py")] == ["source"]
        finally:
            lab.end("talker.py")
        wait_for(lambda: not lab.find("crckpt.helper.terminal.server"), "the holder of the terminal to end")

    def test_moved_tmux_session_can_be_attached_on_the_other_host(self, lab: Namespaces, user: Tmux) -> None:
        workdir, socket = f"{SHARED}/talker", f"{SHARED}/tmux"
        lab.run("source", "mkdir", workdir)
        program = f"{PYTHON} {PROGRAMS}/talker.py {workdir} --listen"
        lab.run("source", "tmux", "-S", socket, "new-session", "-d", "-s", "work", program)
        try:
            pid = int(lab.run("source", "tmux", "-S", socket, "display", "-p", "#{pid}").out)
            move(lab, pid)
            user.enter(f"ssh -t destination tmux -S {socket} attach")
            user.wait_for(lambda shown: "says" in shown and "[work]" in shown, "the session")
            user.enter("hello")
            wait_for(lambda: read_status(lab, workdir)["facts"]["heard"] == ["hello"], "the word to arrive")
        finally:
            lab.end("talker.py")
            end(lab, "tmux")


def read_status(lab: Namespaces, workdir: str) -> dict[str, Any]:
    """What a program of `selfcheck.Program` says."""
    status: dict[str, Any] = json.loads(lab.run("client", "readlink", f"{workdir}/status.json").out)
    return status
