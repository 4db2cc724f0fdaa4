"""Missing requirements of a restore are reported with numbers before CRIU starts; with them the restore works.

Packages, CPUs, control groups, file systems and addresses are real, in namespaces and groups of the tests' own.
"""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from command import PROGRAM, CommandResult, Crckpt
from control_groups import make_group
from incremental import wrapper
from remote import remote
from stopped_trees import BY_NAME, JOB, program, stopped
from trees import PYTHON, Case, open_workdir

from crckpt.host.network import packet_filter
from crckpt.host.syscalls.userfaultfd import has_guard_pages
from crckpt.store import Repository

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

REFUSED: Final = 24
MEBIBYTE: Final = 1 << 20
ADDRESS: Final = "192.0.2.7"
# CRIU makes the end that sends first: it has the lower descriptor.
FULL_CONNECTION: Final = """
import socket
listener = socket.create_server((%r, 0), family=socket.AF_INET6 if ":" in %r else socket.AF_INET)
sending = socket.create_connection(listener.getsockname()[:2])
reading, _ = listener.accept()
sending.setblocking(False)
answer = sending.send(bytes(range(256)) * (1 << 14))
"""
READ_STATEMENTS: Final = """
reading.settimeout(30)
got = b""
while len(got) < %d:
    got += reading.recv(1 << 20)
answer = got == (bytes(range(256)) * (1 << 14))[:len(got)]
"""
IN_PRIVATE_MOUNTS: Final = ("unshare", "--mount", "--propagation", "private", "sh", "-ec")
GROUPS: Final = Path("/sys/fs/cgroup")
PACKAGE_CONTROL_FILE: Final = """Package: crckpt-held
Version: {version}
Architecture: all
Maintainer: nobody <nobody@example.invalid>
Description: a library
"""


def test_host_name_that_cannot_be_set_is_refused(crckpt: Crckpt) -> None:
    """CRIU sets the host name of a UTS namespace in /proc/sys, which is read-only in a container."""
    case = Case("uts", ("unshare", "--uts", PYTHON, "{programs}/counter.py", "{workdir}"))
    inside = Crckpt(crckpt.store, (*IN_PRIVATE_MOUNTS, 'mount -o bind,ro /proc/sys /proc/sys; exec "$@"', "sh"))
    with stopped(crckpt, case) as tree:
        before = tree.counters()
        dry, done = (
            inside.run("restore", JOB, words, "--json", status=REFUSED).document["error"]
            for words in ("--dry-run", "--detach")
        )
        assert dry == done
        assert dry["message"].startswith("/proc/sys is read-only here, and CRIU sets kernel/hostname there")
        assert "remount,rw /proc/sys" in dry["hint"]
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


def test_restore_reports_a_package_that_was_upgraded(crckpt: Crckpt) -> None:
    """The message has both versions. With the old version the restore works."""
    for tool in ("dpkg", "dpkg-deb", "gcc"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    with open_workdir() as place:
        library = place / "root/libheld.so"
        old, new = (_package(place, library, version) for version in ("1.0", "2.0"))
        database = Database(place / "database")
        database.install(old)
        with stopped(crckpt, program("held_files", str(library))) as tree:
            before = tree.counters()
            database.forget_the_past()
            database.install(new)
            result = _result_of(database.do(crckpt, str(PROGRAM), "restore", JOB, "--detach"), REFUSED)
            assert f"{library} changed since the checkpoint: package crckpt-held became 2.0 at " in result.err
            assert f"(mapped by python3, PID {tree.pid})" in result.err
            assert "install crckpt-held 1.0 again" in result.err
            assert f"{library} is a different build" in crckpt.run("restore", JOB, "--detach", status=REFUSED).err
            database.install(old)
            crckpt.run("restore", JOB, "--detach")
            tree.wait_growth(before)


def test_restore_reports_a_missing_cpu_instruction(crckpt: Crckpt, tmp_path: Path) -> None:
    """Programs have chosen their code by the CPU that they started on."""
    listed = Path("/proc/cpuinfo").read_text()
    flags = next(line.split(":", 1)[1].split() for line in listed.splitlines() if line.startswith("flags"))
    if "sse4_2" not in flags:
        pytest.skip("this CPU has no sse4_2 to be without")
    lesser = tmp_path / "cpuinfo"
    lesser.write_text(listed.replace(" sse4_2", ""))
    with stopped(crckpt, BY_NAME["counter"]) as tree:
        before = tree.counters()
        script = f'mount --bind {lesser} /proc/cpuinfo; exec "$@"'
        restore = (*IN_PRIVATE_MOUNTS, script, "-", str(PROGRAM), "restore", JOB, "--detach")
        assert "this CPU lacks sse4_2" in _result_of(_run(crckpt, *restore), REFUSED).err
        # A user who knows that the program does not use the instruction can skip the check.
        _result_of(_run(crckpt, *restore, "--no-preflight"), 0)
        tree.wait_growth(before)


def test_criu_older_than_the_checkpoint_is_refused(crckpt: Crckpt, tmp_path: Path) -> None:
    """CRIU is judged by its version: before 4.2 it would restore no page and report success."""
    older = wrapper(tmp_path, '[ "$1" != --version ] || { echo Version: 3.17.1; exit; }')
    with stopped(crckpt, BY_NAME["counter"]) as tree:
        before = tree.counters()
        error = crckpt.run("restore", JOB, "--detach", "--criu", str(older), status=REFUSED).err
        assert " made this checkpoint, and this older one, 3.17.1, may lose parts that it does not know" in error
        assert "crckpt install-criu" in error
        assert "3.17.1" in crckpt.run("rehearse", JOB, "--criu", str(older), status=REFUSED).err
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


def test_too_little_memory_in_the_cgroup_is_reported(crckpt: Crckpt) -> None:
    """The message has both numbers. Without a limit there is no message."""
    with stopped(crckpt, program("counter", "--mib", "100")), _group("memory") as group:
        limit = group / ("memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes")
        if limit.name != "memory.max" and "SwapFree:              0" not in Path("/proc/meminfo").read_text():
            pytest.skip("this host could swap, which version 1 of control groups does not limit")
        limit.write_text(str(96 * MEBIBYTE))
        with suppress(OSError):
            (group / "memory.swap.max").write_text("0")
        result = _result_of(_in_group(crckpt, group, "restore", JOB, "--dry-run"), REFUSED)
        assert " MiB of memory, but only " in result.err
        needed = int(result.err.split("the tree needs ")[1].split()[0])
        assert 100 < needed < 130
        limit.write_text(str(1024 * MEBIBYTE))
        assert "can be restored" in _result_of(_in_group(crckpt, group, "restore", JOB, "--dry-run"), 0).out


def test_too_few_pids_in_the_cgroup_are_reported(crckpt: Crckpt) -> None:
    """Threads count as much as processes."""
    with stopped(crckpt, BY_NAME["threads"]), _group("pids") as group:
        (group / "pids.max").write_text("12")
        result = _result_of(_in_group(crckpt, group, "restore", JOB, "--dry-run"), REFUSED)
        assert f"the tree has 17 processes and threads, but control group {group} allows only " in result.err
        (group / "pids.max").write_text("100")
        assert "can be restored" in _result_of(_in_group(crckpt, group, "restore", JOB, "--dry-run"), 0).out


def test_too_little_space_for_deleted_files_is_reported(crckpt: Crckpt, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files return to their directory: a full file system is reported."""
    with _small_disk(16 * MEBIBYTE) as disk:
        monkeypatch.setenv("TMPDIR", str(disk))
        with stopped(crckpt, BY_NAME["deleted-files"]) as tree:
            before = tree.counters()
            filler = disk / "filler"
            filler.write_bytes(bytes(12 * MEBIBYTE))
            error = crckpt.run("restore", JOB, "--detach", status=REFUSED).err
            assert "a restore writes 8.1 MiB to the file system of " in error
            assert f"{disk}/crckpt-tree-" in error
            filler.unlink()
            crckpt.run("restore", JOB, "--detach")
            tree.wait_growth(before)


def test_restore_reports_a_missing_address_with_the_command_to_add_it(crckpt: Crckpt) -> None:
    """The message has the command that adds the address; then the restore works."""
    with _address(), stopped(crckpt, program("tcp_listen", ADDRESS)) as tree:
        before = tree.counters()
        _ip("del")
        error = crckpt.run("restore", JOB, "--detach", status=REFUSED).err
        assert f"TCP address {ADDRESS}:" in error
        assert f"ip addr add {ADDRESS} dev INTERFACE" in error
        _ip("add")
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


@pytest.mark.parametrize("how", ["bind", "join"])
def test_packet_socket_comes_back_to_the_device_with_its_name(crckpt: Crckpt, how: str) -> None:
    """The numbers of devices change with every boot, and differ on every host."""
    use = "held.bind(('svc', 0x88b5))"
    if how == "join":
        # SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC (linux/if_packet.h)
        use = "held.setsockopt(263, 1, socket.if_nametoindex('svc').to_bytes(4, 'little') + bytes((1, 0)) + bytes(10))"
    promiscuous = int(how == "join")
    with remote() as program:
        with _device("svc", 70):
            program.ask(f"import socket; held = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0); {use}")
            crckpt.run("dump", str(program.pid), JOB, "--stop")
            program.wait_gone()
        with _device("other", 70):
            if how == "bind":
                assert "(svc)" in crckpt.run("restore", JOB, "--detach", status=REFUSED).err
            with _device("svc", 71):
                crckpt.run("restore", JOB, "--detach")
                assert program.ask("answer = held.getsockname()[0]") == ("svc" if how == "bind" else "")
                assert [_promiscuity("other"), _promiscuity("svc")] == [0, promiscuous]


@contextmanager
def _device(name: str, number: int) -> Iterator[None]:
    subprocess.run(["ip", "link", "add", name, "index", str(number), "up", "type", "bridge"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "del", name], check=True)


def _promiscuity(device: str) -> int:
    words = ["ip", "-json", "-details", "link", "show", device]
    (found,) = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    return int(found["promiscuity"])


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_connections_within_the_tree_need_no_lock_of_the_dump(crckpt: Crckpt, address: str) -> None:
    """A reboot or a restore removes the lock. CRIU sends queued bytes before the other end of a connection exists."""
    with remote() as program:
        sent = program.ask(FULL_CONNECTION % (address, address))
        crckpt.run("dump", str(program.pid), JOB, "--stop", "--tcp", "keep")
        program.wait_gone()
        (checkpoint,) = Repository.open(crckpt.store).checkpoints()
        assert checkpoint.run_id is not None
        assert packet_filter.lift_lock(checkpoint.run_id)
        crckpt.run("restore", JOB, "--detach")
        assert packet_filter.find_removal(checkpoint.run_id) is None
        assert program.ask(READ_STATEMENTS % sent) is True


def test_connections_need_a_capability_only_to_be_kept(crckpt: Crckpt) -> None:
    """With `--tcp close` the same checkpoint can be restored without CAP_NET_ADMIN."""
    with stopped(crckpt, BY_NAME["tcp-pair"], "--tcp", "keep") as tree:
        before = tree.counters()
        without_net_admin = (
            "setpriv",
            "--bounding-set=-net_admin",
            "--inh-caps=-net_admin",
            str(PROGRAM),
            "restore",
            JOB,
        )
        result = _result_of(_run(crckpt, *without_net_admin, "--dry-run"), REFUSED)
        assert "this host cannot restore TCP connections" in result.err
        assert "--tcp close" in result.err
        assert "can be restored" in _result_of(_run(crckpt, *without_net_admin, "--dry-run", "--tcp", "close"), 0).out
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


def test_pid_limit_below_the_trees_pids_is_reported(crckpt: Crckpt) -> None:
    """The PIDs of the namespace end below those of the tree."""
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 14):
        pytest.skip("before Linux 6.14 the limit is that of the whole host")
    with stopped(crckpt, BY_NAME["counter"]) as tree:
        before = tree.counters()
        if tree.pid < 400:
            pytest.skip("this host was booted a moment ago")
        in_a_pid_namespace = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec")
        script = 'echo 400 > /proc/sys/kernel/pid_max; "$@"'
        result = _result_of(
            _run(crckpt, *in_a_pid_namespace, script, "-", str(PROGRAM), "restore", JOB, "--dry-run"), REFUSED
        )
        assert f"PID {tree.pid} is above the PID limit of this host" in result.err
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


def test_missing_kernel_features_and_used_ports_are_reported(crckpt: Crckpt) -> None:
    """A kernel with all features gives no report."""
    if not has_guard_pages():
        pytest.skip("this kernel cannot guard pages")
    with stopped(crckpt, program("kernel_needs")) as tree:
        before = tree.counters()
        port = int((tree.workdir / "port").read_text())
        without = 'mount -t tmpfs none /proc/sys/kernel/seccomp; exec "$@"'
        result = _result_of(
            _run(crckpt, *IN_PRIVATE_MOUNTS, without, "-", str(PROGRAM), "restore", JOB, "--detach"), REFUSED
        )
        assert "a seccomp filter of the tree cannot be restored" in result.err
        assert "CONFIG_SECCOMP_FILTER" in result.err
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("127.0.0.1", port))
            result = crckpt.run("restore", JOB, "--detach", status=REFUSED)
        assert f"UDP port 127.0.0.1:{port} is taken" in result.err
        assert f"ss -lunp 'sport = :{port}'" in result.err
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


class Database:
    """dpkg's own records, of nothing but what a test installs. They are seen only by what runs in here."""

    def __init__(self, directory: Path) -> None:
        """Without any package."""
        self._known, self._log = directory / "dpkg", directory / "log"
        for path in (self._known / "info", self._known / "updates", self._log):
            path.mkdir(parents=True)
        (self._known / "status").touch()

    def install(self, package: Path) -> None:
        """Put the files of a package in their directories."""
        done = self.do(None, "dpkg", "--install", str(package))
        assert done.returncode == 0, done.stdout + done.stderr

    def forget_the_past(self) -> None:
        """Empty the log of packages, as if it had been rotated."""
        (self._log / "dpkg.log").unlink()

    def do(self, crckpt: Crckpt | None, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program that takes these records for those of the system."""
        script = f'mount --bind {self._known} /var/lib/dpkg; mount --bind {self._log} /var/log; exec "$@"'
        return _run(crckpt, *IN_PRIVATE_MOUNTS, script, "-", *words)


def _package(place: Path, library: Path, version: str) -> Path:
    tree = place / version
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(PACKAGE_CONTROL_FILE.format(version=version))
    inside = tree / library.relative_to("/")
    inside.parent.mkdir(parents=True)
    source = place / "held.c"
    source.write_text(f"int answer(void) {{ return {version[0]}; }}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,--build-id", "-o", str(inside), str(source)], check=True)
    package = place / f"{version}.deb"
    subprocess.run(["dpkg-deb", "--build", str(tree), str(package)], check=True, capture_output=True)
    return package


def _run(crckpt: Crckpt | None, *words: str) -> subprocess.CompletedProcess[str]:
    environment = crckpt.environment if crckpt else dict(os.environ)
    return subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=120, check=False
    )


def _result_of(done: subprocess.CompletedProcess[str], status: int) -> CommandResult:
    assert done.returncode == status, f"ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return CommandResult(done.returncode, done.stdout, done.stderr)


def _in_group(crckpt: Crckpt, group: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return _run(crckpt, "sh", "-ec", f'echo $$ > {group}/cgroup.procs; exec "$@"', "-", str(PROGRAM), *words)


@contextmanager
def _group(controller: str) -> Iterator[Path]:
    """A control group of the test's own."""
    above = GROUPS / controller if (GROUPS / controller).is_dir() else GROUPS
    group = make_group(above)
    try:
        if not any((group / f"{controller}.{name}").exists() for name in ("max", "limit_in_bytes")):
            pytest.skip(f"control groups do not limit {controller} here")
        yield group
    finally:
        group.rmdir()


@contextmanager
def _small_disk(size: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "crckpt-test", place], check=True)
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", place], check=True)


@contextmanager
def _address() -> Iterator[None]:
    _ip("add")
    try:
        yield
    finally:
        _ip("del")


def _ip(verb: str) -> None:
    subprocess.run(["ip", "address", verb, f"{ADDRESS}/32", "dev", "lo"], check=True)
