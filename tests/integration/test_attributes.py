"""A restore sets the attributes of a program again, or refuses or reports those that it cannot set."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import pytest
from attribute_coverage import COVERAGE
from command import PROGRAM, Crckpt
from control_groups import make_group, rule_packets
from stopped_trees import JOB, orphans_adopted, program, restored_by, stopped
from trees import NOBODY, Case, Tree, started, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

REFUSED: Final = 24
TWO_CPUS: Final = len(os.sched_getaffinity(0)) > 1

ATTRIBUTES_OF_ONE_PROGRAM: Final = (
    "affinity ioprio timer_slack slice personality coredump_filter oom_score_adj autogroup subreaper thp_disable umask "
    "mce_kill memory_merge mlock_on_fault mdwe bounding_set rlimits groups",
    "nice mlock_future seccomp no_new_privs securebits dumpable mdwe_no_inherit",
    "policy",
    "reset_on_fork",
    "deadline",
)
"""Names that a program can set at the same time."""

NAMES: Final = tuple(name for names in ATTRIBUTES_OF_ONE_PROGRAM for name in names.split())


class AttributeReports(NamedTuple):
    """What a program said of itself before its dump and after its restore, thread by thread; and what crckpt said."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    warnings: list[str]


@pytest.fixture(scope="module", params=["detached", "foreground", "pid namespace"])
def restored_attributes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, AttributeReports]:
    """Programs that set every attribute, dumped, ended and restored."""
    if not TWO_CPUS:
        pytest.skip("a program with two affinities needs two CPUs")
    found: dict[str, AttributeReports] = {}
    for names in ATTRIBUTES_OF_ONE_PROGRAM:
        crckpt = Crckpt(tmp_path_factory.mktemp("attributes") / "store")
        with orphans_adopted(), started(program("attributes", *names.split())) as tree:
            (tree.workdir / "quiet").touch()
            tree.wait_growth(tree.counters())
            crckpt.run("dump", str(tree.pid), JOB, "--stop")
            tree.wait_gone()
            before, counters = _of(tree), tree.counters()
            (tree.workdir / "quiet").unlink()
            with restored_by(crckpt, str(request.param)) as warnings:
                tree.wait_growth(counters)
                after = _of(tree)
            found |= dict.fromkeys(names.split(), AttributeReports(before, after, warnings))
    return found


def _of(tree: Tree) -> Mapping[str, Any]:
    """What the program reports about itself."""
    return tree.facts()[""]


@pytest.mark.parametrize("name", NAMES)
def test_attribute_of_a_process_and_its_threads_is_restored(
    restored_attributes: dict[str, AttributeReports], name: str
) -> None:
    """The first and the second thread keep their own values."""
    values = restored_attributes[name]
    assert values.after["process"][name] == values.before["process"][name]
    assert values.after["thread"][name] == values.before["thread"][name]
    assert values.warnings == []


def test_each_restorable_attribute_has_a_test() -> None:
    assert {attribute.test for attribute in COVERAGE if attribute.back != "not" and attribute.test} <= {*NAMES}


def test_dump_and_restore_report_the_loss_of_a_landlock_domain(crckpt: Crckpt) -> None:
    """The dump reports the loss. The restore is refused, or runs with less protection if that is allowed."""
    with started(program("attributes", "landlock")) as tree:
        dumped = crckpt.run("dump", str(tree.pid), JOB, "--stop", "--json").document["result"]
        assert "is confined by Landlock" in " ".join(dumped["warnings"])
        assert "--allow-weaker" in " ".join(dumped["warnings"])
        tree.wait_gone()
        assert _of(tree)["process"]["landlock"] is False
        before = tree.counters()
        for words in ((), ("--no-preflight",), ("--dry-run",)):
            result = crckpt.run("restore", JOB, "--detach", *words, status=REFUSED)
            assert f"process {tree.pid} (python3) has a Landlock domain" in result.err
            assert "--allow-weaker" in result.err
        restored = crckpt.run("restore", JOB, "--detach", "--allow-weaker", "--json").document["result"]
        assert "has a Landlock domain" in " ".join(restored["warnings"])
        tree.wait_growth(before)


def test_dump_that_leaves_the_tree_running_records_its_landlock_domain(crckpt: Crckpt) -> None:
    """Without its Landlock domain the program is restored only with --allow-weaker, and then with PR_SET_MDWE."""
    with started(program("attributes", "no_new_privs", "mdwe", "landlock")) as tree:
        crckpt.run("dump", str(tree.pid), JOB)
        before = _of(tree)
        tree.end()
        tree.wait_gone()
        (tree.workdir / "status.json").unlink()
        crckpt.run("restore", JOB, "--detach", status=REFUSED)
        crckpt.run("restore", JOB, "--detach", "--allow-weaker")
        wait_for((tree.workdir / "status.json").is_symlink, 60, "the program to report again")
        assert _of(tree)["process"]["mdwe"] == before["process"]["mdwe"] == [1, False]


def test_program_whose_attributes_cannot_be_queried_is_reported(crckpt: Crckpt) -> None:
    """The program would catch our system call. The dump reports the possible loss before the program ends."""
    with started(program("attributes", "dispatch")) as tree:
        warnings = crckpt.run("dump", str(tree.pid), JOB, "--stop", "--json").document["result"]["warnings"]
        assert f"cannot find out whether process {tree.pid} (python3) uses Landlock" in " ".join(warnings)
        assert "dispatches its own system calls" in " ".join(warnings)
        tree.wait_gone()


def test_program_that_landlock_may_confine_is_not_restored_without_consent(crckpt: Crckpt) -> None:
    """The program may have prevented the query itself."""
    with started(program("attributes", "no_new_privs", "landlock", "dispatch")) as tree:
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        before = tree.counters()
        result = crckpt.run("restore", JOB, "--detach", status=REFUSED)
        assert f"process {tree.pid} (python3) may be confined by Landlock" in result.err
        crckpt.run("restore", JOB, "--detach", "--allow-weaker")
        tree.wait_growth(before)


PROGRAM_WITH_ORPHANS = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.prctl(36, 1, 0, 0, 0)
if os.fork():
    open("ready", "w").close()
    while True:
        os.waitpid(-1, 0)
libc.prctl(38, 1, 0, 0, 0)
while True:
    time.sleep(0.03)
    if os.fork():
        os._exit(0)
"""


def test_program_that_often_forks_and_ends_is_not_restored_without_its_confinement(
    crckpt: Crckpt, tmp_path: Path
) -> None:
    """The queried process has ended before the freeze. A subreaper is the parent of the next process."""
    null = subprocess.DEVNULL
    words, options = ("/usr/bin/python3", "-c", PROGRAM_WITH_ORPHANS), {"cwd": tmp_path, "start_new_session": True}
    process = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, **options)  # type: ignore[call-overload]
    try:
        wait_for((tmp_path / "ready").exists, 60, "the program")
        crckpt.run("dump", str(process.pid), JOB)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    result = crckpt.run("restore", JOB, "--dry-run", status=REFUSED)
    assert "may be confined by Landlock" in result.err


def test_rehearsal_restores_attributes(crckpt: Crckpt) -> None:
    with started(program("attributes", "affinity", "mdwe", "mlock_future", "personality")) as tree:
        crckpt.run("dump", str(tree.pid), JOB)
        probe = f"grep -x 00040000 /proc/{tree.pid}/personality && taskset -pc {tree.pid} | grep -q ': 0$'"
        outcome = crckpt.run("rehearse", JOB, "--seconds", "0.4", "--probe", f"sh -c {_quoted(probe)}", "--json")
        result = outcome.document["result"]
        assert result["passed"], result
        assert result["warnings"] == []


def _quoted(words: str) -> str:
    return "'" + words.replace("'", "'\"'\"'") + "'"


def test_unrestricted_affinity_stays_unrestricted(crckpt: Crckpt) -> None:
    """CRIU's tasks inherit the affinity of crckpt, which must not matter."""
    with stopped(crckpt, program("attributes", "ioprio")) as tree:
        before = tree.counters()
        own_cpus = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {0})
        try:
            crckpt.run("restore", JOB, "--detach")
        finally:
            os.sched_setaffinity(0, own_cpus)
        tree.wait_growth(before)
        assert os.sched_getaffinity(tree.pid) == own_cpus


_PROGRAM_WITH_A_SESSION_KEYRING: Final = """
import ctypes, os, sys
# 0: it has this one already.
assert ctypes.CDLL(None).syscall(250, 1, sys.argv[1].encode()) >= 0
os.execv(sys.argv[2], sys.argv[2:])
"""


def _session_after(crckpt: Crckpt, tree: Tree, name: str = "crckpt-restores") -> str:
    """The session keyring of the tree after a restore by a crckpt with a keyring of this name."""
    before = tree.counters()
    words = (sys.executable, "-c", _PROGRAM_WITH_A_SESSION_KEYRING, name, str(PROGRAM), "restore", JOB, "--detach")
    subprocess.run(words, check=True, env=crckpt.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    tree.wait_growth(before)
    return str(_of(tree)["process"]["session_keyring"])


@pytest.mark.parametrize("name", ["crckpt-restores", "_uid_ses.0"])
def test_program_of_another_user_does_not_get_our_session_keyring(crckpt: Crckpt, name: str) -> None:
    """With our keyring the program could read our keys.

    Where root has no session, the keyring of root's user counts.
    """
    ordinary = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    case = program("attributes", "session_keyring")
    with stopped(crckpt, Case(case.name, (*ordinary, *case.argv), user=NOBODY)) as tree:
        session = _session_after(crckpt, tree, name)
        assert name not in session
        assert session.endswith(";_ses")


def test_program_of_our_user_joins_our_session_keyring(crckpt: Crckpt) -> None:
    """The program behaves like any program started in our session."""
    with stopped(crckpt, program("attributes", "session_keyring")) as tree:
        assert "crckpt-restores" in _session_after(crckpt, tree)


def test_process_with_fewer_rights_than_its_tree_gets_its_own_session_keyring(crckpt: Crckpt) -> None:
    """A process with a keyring can read the keys of all that have it. The threads of a program share one."""
    case = program("attributes", "session_keyring")
    fewer = 'setpriv --bounding-set=-dac_override --inh-caps=-dac_override "$@" & wait'
    with stopped(crckpt, Case(case.name, ("sh", "-c", fewer, "sh", *case.argv))) as tree:
        session = _session_after(crckpt, tree)
        assert "crckpt-restores" not in session
        assert _of(tree)["thread"]["session_keyring"] == session


@contextmanager
def _group(controller: str, **limits: str) -> Iterator[Path]:
    """A control group of version 1 with these limits; its remaining processes are moved out at the end of the block."""
    group = make_group(Path("/sys/fs/cgroup", controller))
    try:
        for file, value in limits.items():
            (group / file.replace("__", ".")).write_text(value)
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    if not group.exists():
        return
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(OSError):
            (group.parent / "cgroup.procs").write_text(pid)

    def gone() -> bool:
        with suppress(OSError):
            group.rmdir()
        return not group.exists()

    wait_for(gone, 60, f"{group} to go")


@contextmanager
def _stopped_in(crckpt: Crckpt, group: Path, name: str = "counter") -> Iterator[Tree]:
    with started(program(name)) as tree:
        (group / "cgroup.procs").write_text(str(tree.pid))
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        yield tree


def _is_in(pid: int, group: Path) -> bool:
    return f"/{group.name}\n" in Path(f"/proc/{pid}/cgroup").read_text()


def test_tree_is_restored_into_the_cgroup_that_limits_it(crckpt: Crckpt) -> None:
    with _group("pids", pids__max="50") as group, _stopped_in(crckpt, group) as tree:
        before = tree.counters()
        result = crckpt.run("restore", JOB, "--detach", "--json").document["result"]
        tree.wait_growth(before)
        assert result["warnings"] == []
        assert _is_in(tree.pid, group)


def test_restored_memory_is_charged_to_the_cgroup(crckpt: Crckpt) -> None:
    """Memory filled before the process enters its group would not be charged to it: the kernel moves no charges."""
    limit = {"memory__limit_in_bytes": str(1 << 30)}
    with _group("memory", **limit) as group, _stopped_in(crckpt, group) as tree:
        before = tree.counters()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        assert _is_in(tree.pid, group)
        memory = psutil.Process(tree.pid).memory_full_info()
        assert int((group / "memory.usage_in_bytes").read_text()) > memory.uss * 0.8


def test_restored_sockets_belong_to_the_cgroup(crckpt: Crckpt) -> None:
    """The kernel applies the packet rules of the group in which a socket was created."""
    with _group("unified") as group:
        rule_packets(group)
        with _stopped_in(crckpt, group, "tcp_listen") as tree:
            before = tree.counters()
            crckpt.run("restore", JOB, "--detach")
            tree.wait_growth(before)
            listening = subprocess.run(("ss", "-tlnpH", "--cgroup"), capture_output=True, text=True, check=True).stdout
            own = [line for line in listening.splitlines() if f"pid={tree.pid}," in line]
            assert own
            assert all(line.rstrip().endswith(f"cgroup:/{group.name}") for line in own), own


def test_tree_returns_to_the_cgroup_that_the_packet_filter_matches(crckpt: Crckpt) -> None:
    """The group has neither limits nor rules of its own. If it is gone, the packet filter cannot match it."""
    with _group("unified") as group, _filtered(group), _stopped_in(crckpt, group) as tree:
        before = tree.counters()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        assert _is_in(tree.pid, group)
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        _remove(group)
        error = crckpt.run("restore", JOB, "--detach", status=REFUSED).err
        assert "crckpt runs in a group without its rules on packets of " in error
        crckpt.run("restore", JOB, "--detach", "--allow-weaker")


@contextmanager
def _filtered(group: Path) -> Iterator[None]:
    """Count what is sent from this group, by a rule of nftables in the network of the test."""
    rule = f'socket cgroupv2 level 1 "{group.relative_to("/sys/fs/cgroup")}" counter'
    chain = f"chain sent {{ type filter hook output priority 0\n{rule}\n}}"
    subprocess.run(("nft", f"table inet groups {{\n{chain}\n}}"), check=True)
    try:
        yield
    finally:
        subprocess.run(("nft", "delete", "table", "inet", "groups"), check=True)


def test_restore_into_a_frozen_cgroup_is_refused(crckpt: Crckpt) -> None:
    """CRIU would wait forever in a frozen group."""
    with _group("unified") as group:
        rule_packets(group)
        with _stopped_in(crckpt, group) as tree:
            before = tree.counters()
            (group / "cgroup.freeze").write_text("1")
            error = crckpt.run("restore", JOB, "--detach", status=REFUSED).err
            assert f"the control group /{group.name}, to which process {tree.pid} must go back, is frozen" in error
            (group / "cgroup.freeze").write_text("0")
            crckpt.run("restore", JOB, "--detach")
            tree.wait_growth(before)


def test_restore_warns_if_a_cgroup_lacks_a_limit(crckpt: Crckpt) -> None:
    """The tree runs without the limit: a missing limit of tasks must not prevent the restore of a service."""
    with _group("pids", pids__max="50") as group, _stopped_in(crckpt, group) as tree:
        _remove(group)
        before = tree.counters()
        result = crckpt.run("restore", JOB, "--detach", "--json").document["result"]
        tree.wait_growth(before)
        assert f"the control group /{group.name}, but crckpt runs in a group without its limits of pids" in " ".join(
            result["warnings"]
        )


def test_restore_is_refused_if_a_cgroup_lacks_its_device_rules(crckpt: Crckpt) -> None:
    with _group("devices", devices__deny="a *:* rwm") as group, _stopped_in(crckpt, group) as tree:
        _remove(group)
        before = tree.counters()
        result = crckpt.run("restore", JOB, "--detach", status=REFUSED)
        assert f"the control group /{group.name}, but crckpt runs in a group without its rules on devices" in result.err
        restored = crckpt.run("restore", JOB, "--detach", "--allow-weaker", "--json").document["result"]
        assert "without its rules on devices" in " ".join(restored["warnings"])
        tree.wait_growth(before)


def test_missing_cgroup_that_had_no_limits_gives_no_warning(crckpt: Crckpt) -> None:
    with _group("pids") as group, _stopped_in(crckpt, group) as tree:
        before = tree.counters()
        result = crckpt.run("restore", JOB, "--detach", "--json").document["result"]
        tree.wait_growth(before)
        assert result["warnings"] == []
        assert not _is_in(tree.pid, group)


def test_dump_reports_the_loss_of_a_cgroup_namespace(crckpt: Crckpt) -> None:
    case = program("counter")
    case_in_a_cgroup_namespace = type(case)(case.name, ("unshare", "--cgroup", *case.argv))
    with stopped(crckpt, case_in_a_cgroup_namespace) as tree:
        before = tree.counters()
        assert "has its own cgroup namespace" in crckpt.run("restore", JOB, "--detach", status=REFUSED).err
        restored = crckpt.run("restore", JOB, "--detach", "--allow-weaker", "--json").document["result"]
        assert "has its own cgroup namespace" in " ".join(restored["warnings"])
        tree.wait_growth(before)
