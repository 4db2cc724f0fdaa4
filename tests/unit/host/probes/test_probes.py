"""Facts about this host, held against what others say of it: the kernel's configuration, CRIU, other programs."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crckpt.criu.cache import candidates
from crckpt.host.probes import network, places, rights, tools
from crckpt.host.probes.apart import apart, forked, status_of
from crckpt.host.probes.fact import Fact, Outcome, ok
from crckpt.host.probes.probe import Subject, probe
from crckpt.host.process import run
from crckpt.host.syscalls import prctl

IS_ROOT = os.geteuid() == 0
NO_FIX = {"systemd"}

CONFIGURED = {
    "checkpoint_restore": "CONFIG_CHECKPOINT_RESTORE",
    "soft_dirty": "CONFIG_MEM_SOFT_DIRTY",
    "time_namespaces": "CONFIG_TIME_NS",
    "write_protection": "CONFIG_PTE_MARKER_UFFD_WP",
    "lazy_pages": "CONFIG_USERFAULTFD",
    "lock_nftables": "CONFIG_NF_TABLES_INET",
    "tun": "CONFIG_TUN",
}

CHECKED = {
    "soft_dirty": "mem_dirty_track",
    "time_namespaces": "timens",
    "lazy_pages": "uffd-noncoop",
    "pagemap_scan": "pagemap_scan",
    "pid_selection": "clone3_set_tid",
    "seccomp_suspension": "seccomp_suspend",
    "lock_nftables": "network_lock_nftables",
}

AS_ROOT = pytest.mark.skipif(not IS_ROOT, reason="needs root")


def told(subject: Subject) -> dict[str, Fact]:
    return {fact.key: fact for fact in probe(subject)}


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fact]:
    """What is told of this host."""
    criu = next((found.path for found in candidates(None, None) if os.access(found.path, os.X_OK)), None)
    return told(Subject(tmp_path_factory.mktemp("store"), None, criu))


def children() -> frozenset[str]:
    return frozenset(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def descriptors() -> list[Path]:
    return sorted(Path("/proc/self/fd").iterdir())


def namespaces() -> frozenset[str]:
    return frozenset(str(link.readlink()) for link in Path("/proc/self/ns").iterdir())


def inside(words: list[str], script: str) -> list[str]:
    """Lines that a script prints about `told`, started by other words."""
    program = (
        "import sys; from pathlib import Path; from crckpt.host.probes.probe import Subject, probe\n"
        "told = {fact.key: fact for fact in probe(Subject(Path('/')))}\n" + script
    )
    done = subprocess.run([*words, sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_fact_is_whole_and_what_is_amiss_has_its_consequence_and_its_remedy(facts: dict[str, Fact]) -> None:
    for key, fact in facts.items():
        assert fact.state in ("ok", "limited", "missing")
        assert fact.found, key
        if fact.state != "ok":
            assert fact.consequence, key
            assert "the trial" not in fact.found, f"{key} was not found out: {fact.found}"
            assert bool(fact.fix) == (key not in NO_FIX), key


@AS_ROOT
@pytest.mark.parametrize(("key", "option"), CONFIGURED.items())
def test_the_kernels_configuration_says_the_same(facts: dict[str, Fact], key: str, option: str) -> None:
    packed = Path("/proc/config.gz")
    unpacked = Path(f"/boot/config-{os.uname().release}")
    if not packed.exists() and not unpacked.exists():
        pytest.skip("this kernel does not tell its configuration")
    configuration = gzip.decompress(packed.read_bytes()).decode() if packed.exists() else unpacked.read_text()
    built_in = f"\n{option}=y\n" in configuration
    if f"\n{option}=m\n" in configuration:
        pytest.skip(f"{option} is a module, which may be loaded or not")
    assert (facts[key].state == "ok") == built_in, facts[key]


@AS_ROOT
@pytest.mark.parametrize(("key", "feature"), CHECKED.items())
def test_criu_says_the_same(facts: dict[str, Fact], key: str, feature: str) -> None:
    criu = next((found.path for found in candidates(None, None) if os.access(found.path, os.X_OK)), None)
    if criu is None:
        pytest.skip("there is no CRIU")
    done = run.run([criu, "check", "--feature", feature])
    if "Unknown feature" in done.output:
        pytest.skip(f"this CRIU does not know the feature {feature}")
    assert (facts[key].state == "ok") == done.ok, (facts[key], done.output)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    before = children(), descriptors(), namespaces()
    told(Subject(tmp_path))
    assert (children(), descriptors(), namespaces()) == before
    # Of others there may be some: CRIU's, while another test runs it.
    assert shutil.which("nft") is None or "inet crckpt\n" not in run.run(["nft", "list", "tables"]).output
    assert list(tmp_path.iterdir()) == []


def fails() -> Outcome:
    raise RuntimeError("on purpose")


def dies() -> Outcome:
    os.kill(os.getpid(), signal.SIGKILL)
    return ok("not reached")


def hangs() -> Outcome:
    forked(hang)
    hang()
    return ok("not reached")


def hang() -> int:
    signal.pause()
    return 0


@pytest.mark.parametrize(
    ("trial", "said"),
    [(fails, "the trial failed: RuntimeError: on purpose"), (dies, "ended with -9"), (hangs, "no answer after 1 s")],
)
def test_a_probe_that_breaks_is_a_fact_by_itself(trial: Callable[[], Outcome], said: str) -> None:
    before = children(), descriptors()
    outcome = apart(trial, within=1)
    assert (outcome.state, said in outcome.found) == ("limited", True), outcome
    assert (children(), descriptors()) == before


INTERRUPTED = """
import os, signal, threading
from pathlib import Path
from crckpt.errors import Interrupted
from crckpt.host.probes.apart import apart
from crckpt.host.process.signals import interruptible

def interrupts():
    os.kill(os.getppid(), signal.SIGTERM)
    os.fork()
    signal.pause()

def left():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text(), len(os.listdir("/proc/self/fd"))

# The signal may come to this one: then it is heard wherever the main thread happens to be.
threading.Thread(target=signal.pause, daemon=True).start()
interruptible()
before = left()
try:
    apart(interrupts)
except Interrupted as error:
    print(error, left() == before, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


def test_an_interruption_ends_the_probe() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("interrupted by SIGTERM True set()\n", "")


def test_without_suspension_the_trial_of_seccomp_would_be_killed() -> None:
    def forbid_itself_to_end() -> int:
        prctl.enter_strict_seccomp()
        return 0

    assert status_of(forked(forbid_itself_to_end)) == -signal.SIGKILL


@AS_ROOT
def test_a_module_is_loaded_by_itself_only_where_it_is_there(tmp_path: Path) -> None:
    """A modprobe of ours says which are; /dev is covered."""
    modprobe = tmp_path / "modprobe"
    modprobe.write_text('#!/bin/sh\n[ "$*" = "-n -q -a tun" ]\n')
    modprobe.chmod(0o755)
    hide = 'mount -t tmpfs none /dev && mknod /dev/null c 1 3 && exec "$@"'
    hidden = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hide, "sh"]
    script = (
        "from crckpt.host.process import run; from crckpt.host.probes import network\n"
        f"for place in ('/nonexistent', {str(tmp_path)!r}):\n"
        "    run.ENVIRONMENT['PATH'] = place\n"
        "    print(network.tun().fix, network.tun().safe)"
    )
    assert inside(hidden, script) == ["modprobe tun False", "modprobe tun True"]


def test_what_a_probe_starts_ends_with_it() -> None:
    def starts() -> Outcome:
        return ok(str(forked(hang)))

    child = int(apart(starts).found)
    deadline = time.monotonic() + 10  # it is not ours: whoever adopts it reaps it
    while Path(f"/proc/{child}").exists() and "\nState:\tZ" not in Path(f"/proc/{child}/status").read_text():
        assert time.monotonic() < deadline, f"{child} still runs"


def test_a_child_that_raises_does_not_answer_in_place_of_its_parent() -> None:
    def raises() -> int:
        raise OSError

    assert status_of(forked(raises)) == 255
    assert apart(lambda: ok(str(status_of(forked(raises))))) == ok("255")


def test_who_is_not_root_is_told_all_that_needs_no_root(facts: dict[str, Fact]) -> None:
    """In a user namespace, where what the owner may read stays readable: the checkout may lie in /root."""
    nobody = ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
    lines = inside(nobody, "for fact in told.values(): print(fact.state, fact.key, fact.found)")
    states = {line.split()[1]: line.split()[0] for line in lines}
    assert states.keys() == facts.keys()
    assert not [line for line in lines if "the trial" in line]
    assert states["capabilities"] == "missing"
    assert states["checkpoint_restore"] == facts["checkpoint_restore"].state
    assert states["soft_dirty"] == facts["soft_dirty"].state
    assert states["write_protection"] == facts["write_protection"].state
    assert {states[key] for key in ("tcp_repair", "seccomp_suspension")} == {"missing"}
    assert "ok" not in {states[key] for key in ("pid_selection", "lazy_pages", "lock_nftables")}


def test_root_of_a_user_namespace_is_no_root() -> None:
    assert inside(["unshare", "--user", "--map-root-user"], "print(told['capabilities'].found)") == [
        "root of a user namespace only"
    ]


@AS_ROOT
@pytest.mark.parametrize(
    ("capability", "lost"),
    [("sys_ptrace", {"capabilities"}), ("net_admin", {"capabilities", "tcp_repair", "lock_nftables"})],
)
def test_root_without_a_capability(capability: str, lost: set[str]) -> None:
    without = ["setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}"]
    lines = inside(without, f"for key in {sorted(lost)}: print(key, told[key].state, told[key].fix)")
    name = capability.upper()
    assert lines == [f"{key} missing docker run --cap-add {name} ..." for key in sorted(lost)]


@AS_ROOT
def test_a_host_without_tmpfs_tun_and_control_groups() -> None:
    """In a mount namespace where they are covered or gone."""
    hide = (
        "mount -t tmpfs none /run && umount -R /sys/fs/cgroup && mount -t tmpfs none /dev && "
        'mknod /dev/null c 1 3 && exec "$@"'
    )
    hidden = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hide, "sh"]
    lines = inside(hidden, "for key in ('run_directory', 'tun', 'cgroups'): print(key, told[key].state)")
    assert lines == ["run_directory ok", "tun missing", "cgroups missing"]


def test_sockets_are_listed_where_ss_lists_them(facts: dict[str, Fact]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        if shutil.which("ss") is None:
            pytest.skip("there is no ss")
        listed = run.run(["ss", "-ltnH"]).output
        assert (f":{server.getsockname()[1]} " in listed) == (facts["socket_diagnostics"].state == "ok")


def test_the_store(tmp_path: Path) -> None:
    absent = places.store(tmp_path / "a b/store")
    assert absent.state == "ok"
    assert absent.found.startswith(f"{tmp_path}/a b/store is not there yet, the first dump makes it: ")
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o755)
    assert places.store(tmp_path).state == "ok"
    (tmp_path / "store.json").touch()
    assert places.store(tmp_path) == Outcome(
        "missing", f"{tmp_path} lets other users in", "nothing can be stored", f"chmod 700 {tmp_path}", safe=True
    )
    assert places.store(tmp_path / "store.json").state == "missing"
    assert not places.store(tmp_path / "store.json").safe


@AS_ROOT
def test_a_store_in_memory_is_said_to_be(tmp_path: Path) -> None:
    mounted = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        'mount -t "$1" none "$0" && shift && exec "$@"',
    ]
    script = "from crckpt.host.probes import places; print(*map(places.store, map(Path, sys.argv[1:])))"
    for kind, state in (("tmpfs", "limited"), ("ramfs", "limited")):
        program = f"import sys; from pathlib import Path\n{script}"
        done = subprocess.run(
            [*mounted, str(tmp_path), kind, sys.executable, "-c", program, str(tmp_path), f"{tmp_path}/new"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.count(f"state='{state}'") == 2
        assert f" {kind} " in done.stdout


@AS_ROOT
def test_a_store_on_a_read_only_mount(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from crckpt.host.probes import places; "
        "print(places.store(Path(sys.argv[1])))"
    )
    mounted = 'mount -t tmpfs -o ro none "$0" && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, str(tmp_path), sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{tmp_path} lies on a read-only mount" in done.stdout


@AS_ROOT
def test_a_store_below_a_directory_that_is_closed_to_us(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        outcome = places.store(closed / "store")
    finally:
        os.seteuid(0)
    assert (outcome.state, outcome.safe) == ("missing", False)


def test_a_store_where_nothing_can_be_made() -> None:
    """Whatever the modes of /proc and of a file say."""
    for below in (Path("/proc"), Path(__file__)):
        outcome = places.store(below / "store")
        assert outcome.state == "missing"
        assert f"{below}/store is not there and cannot be made below {below}: " in outcome.found


def test_the_staging_directory(tmp_path: Path) -> None:
    assert places.staging(None, tmp_path / "store").found.startswith("in the store, ")
    assert places.staging(tmp_path, tmp_path).state == "ok"
    assert places.staging(tmp_path / "none", tmp_path).fix == f"mkdir {tmp_path}/none"


@AS_ROOT
def test_capabilities_of_criu_without_root(tmp_path: Path) -> None:
    program = Path(shutil.copy("/bin/true", tmp_path / "criu"))
    if shutil.which("setcap") is None:
        pytest.skip("there is no setcap")
    bare = rights.rootless(program)
    assert (bare.state, bare.fix) == ("limited", f"sudo setcap cap_checkpoint_restore,cap_setpcap+eip {program}")
    run.run(["setcap", "cap_setpcap+eip", program])
    assert rights.rootless(program).found == f"{program} lacks cap_checkpoint_restore"
    given = run.run(bare.fix.split()[1:])
    assert given.ok, given.output
    assert rights.rootless(program).state == "ok"
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    assert "is a script" in rights.rootless(script).found
    assert rights.rootless(None).fix == "scripts/install-criu"


def test_tools_are_looked_for_where_they_are_started_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.util_linux().state == "ok"
    request.getfixturevalue("commands")
    assert tools.util_linux().fix == "apt-get install util-linux"
    assert tools.ssh().fix == "apt-get install openssh-client"
    assert network.lock_by_iptables().fix == "apt-get install iptables"


def test_plugins_lie_where_criu_says(tmp_path: Path) -> None:
    criu = tmp_path / "criu"
    criu.write_text(f"#!/bin/sh\necho '  -L|--libdir           path to a plugin directory (by default {tmp_path}/)'\n")
    criu.chmod(0o755)
    assert tools.criu_plugins(criu).state == "missing"
    (tmp_path / "cuda_plugin.so").touch()
    assert tools.criu_plugins(criu) == ok(f"cuda_plugin.so in {tmp_path}")
    assert tools.criu_plugins(None).fix == "scripts/install-criu"
