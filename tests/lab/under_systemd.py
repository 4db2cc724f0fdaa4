"""Units of a real systemd, dumped and restored. test_systemd_unit.py runs this inside scripts/lab/systemd."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import Crckpt
from tmux import Tmux
from trees import Part, statuses, wait_for

UNITS = Path(__file__).parent / "units"
PROGRAMS = Path(__file__).parent.parent / "programs"
READY_S = 60.0
GROWTH_S = 60.0
NOBODY = 65534
USAGE, TARGET_GONE, REFUSED = 2, 14, 24
CRCKPT = Crckpt(Path("/tmp/store"))


@dataclass(frozen=True)
class Service:
    """A started unit whose program is a family of five that reports below /var/lib."""

    name: str

    @property
    def workdir(self) -> Path:
        """The directory where the program reports."""
        return Path("/var/lib") / self.name

    def shows(self, what: str) -> str:
        """What systemd says of the unit."""
        return _output("systemctl", "show", "--value", f"--property={what}", self.name)

    @property
    def pid(self) -> int:
        """The main process; 0 if systemd knows none."""
        return int(self.shows("MainPID"))

    def parts(self) -> Mapping[str, Part]:
        """The status of each of the five processes; none may report an error."""
        parts = statuses(self.workdir)
        assert all(part.ok for part in parts.values()), [part.error for part in parts.values()]
        return parts

    def counters(self) -> dict[str, int]:
        """The counters of the five processes."""
        return {name: part.counter for name, part in self.parts().items()}

    def goes_on_from(self, counters: Mapping[str, int]) -> None:
        """Wait until each of the five processes counts on from these counters; none may fall back."""

        def grown() -> bool:
            now = self.counters()
            assert all(now[name] >= before for name, before in counters.items()), f"{now} fell back from {counters}"
            return all(now[name] >= before + 3 for name, before in counters.items())

        wait_for(grown, GROWTH_S, f"{self.name} to go on from {counters}")


@pytest.fixture(autouse=True, scope="module")
def programs_are_in_place() -> None:
    """Copy the programs to a directory that units can see: this one may be below /tmp, which is private in units."""
    shutil.copytree(PROGRAMS, "/opt/programs")


@pytest.fixture
def started() -> Iterator[Callable[[str], Service]]:
    """A function that installs and starts tests/lab/units/NAME.service; afterwards its processes are ended."""
    services: list[Service] = []

    def start(name: str) -> Service:
        service = Service(name)
        services.append(service)
        shutil.copy(UNITS / f"{name}.service", "/etc/systemd/system")
        _output("systemctl", "daemon-reload")
        _output("systemctl", "start", name)
        wait_for(lambda: _all_ready(service), READY_S, f"{name} to be ready")
        return service

    yield start
    for service in services:
        _end(service)
        shutil.rmtree(service.workdir)


def test_unit_continues_after_a_dump_without_stop(started: Callable[[str], Service]) -> None:
    """`unit:NAME` is the tree of the unit's main process."""
    counter = started("counter")
    before, pid = counter.counters(), counter.pid
    result = crckpt("dump", "unit:counter")
    assert result["pid"] == pid
    # Its script is family.py.
    assert result["job"] == "counter"
    assert result["checkpoint"]["processes"] == 5
    assert result["warnings"] == []
    counter.goes_on_from(before)
    assert (counter.shows("ActiveState"), counter.pid) == ("active", pid)


def test_dump_of_the_cgroup_of_a_unit_is_a_dump_of_its_tree(started: Callable[[str], Service]) -> None:
    """`cgroup:PATH` accepts the path from /proc/PID/cgroup."""
    counter = started("counter")
    before = counter.counters()
    result = crckpt("dump", f"cgroup:{_cgroup(counter.pid)}", "job")
    assert _cgroup(counter.pid) == "/system.slice/counter.service"
    assert result["pid"] == counter.pid
    assert result["checkpoint"]["processes"] == 5
    counter.goes_on_from(before)


def test_stopped_unit_is_restored_outside_systemd(started: Callable[[str], Service]) -> None:
    """After `--stop` the unit has failed and is not restarted. The restored tree is in the group of crckpt."""
    counter = started("counter")
    pid = counter.pid
    crckpt("dump", "unit:counter", "job", "--stop")
    stopped = counter.counters()
    wait_for(lambda: counter.shows("ActiveState") == "failed", 60, "systemd to see that the unit has ended")
    assert counter.shows("Result") == "signal"
    assert "it is failed (failed)" in refused(TARGET_GONE, "dump", "unit:counter")["message"]

    assert crckpt("restore", "job", "--detach")["pid"] == pid
    counter.goes_on_from(stopped)
    assert _cgroup(pid) == _cgroup(os.getpid())
    assert (counter.pid, counter.shows("NRestarts"), counter.shows("ActiveState")) == (0, "0", "failed")


def test_dump_warns_of_a_unit_with_a_private_mount_namespace(started: Callable[[str], Service]) -> None:
    """The store is below /tmp, although the unit has another /tmp, and its other files are read-only."""
    isolated = started("isolated")
    before = isolated.counters()
    (warning,) = crckpt("dump", "unit:isolated", "job")["warnings"]
    assert "has its own mount namespace" in warning
    assert "PrivateTmp=no" in warning
    isolated.goes_on_from(before)

    crckpt("dump", "unit:isolated", "job", "--stop")
    stopped = isolated.counters()
    crckpt("restore", "job", "--detach")
    isolated.goes_on_from(stopped)


def test_programs_in_a_root_directory_of_the_units_user_are_not_run(started: Callable[[str], Service]) -> None:
    """The mounts contain traps where CRIU would look for programs, libraries and configuration."""
    _lay_traps(Path("/srv/hostile"), Path("/var/lib/hostile/won"))
    hostile = started("hostile")
    before = hostile.counters()
    assert Path(f"/proc/{hostile.pid}/root/etc/criu/default.conf").exists()
    (warning,) = crckpt("dump", "unit:hostile", "job")["warnings"]
    assert "has its own mount namespace" in warning
    hostile.goes_on_from(before)

    crckpt("dump", "unit:hostile", "job", "--stop")
    stopped = hostile.counters()
    assert not (hostile.workdir / "won").exists(), (hostile.workdir / "won").read_text()
    pid = crckpt("restore", "job", "--detach")["pid"]
    hostile.goes_on_from(stopped)
    assert f"\nUid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}\n" in Path(f"/proc/{pid}/status").read_text()
    assert not (hostile.workdir / "won").exists(), (hostile.workdir / "won").read_text()


def test_unit_without_a_main_process_is_refused(started: Callable[[str], Service]) -> None:
    """The hint names the cgroup, and that works."""
    forked = started("forked")
    error = refused(USAGE, "dump", "unit:forked")
    assert error["message"] == "systemd knows no main process of unit forked.service"
    before = forked.counters()
    target = error["hint"].removeprefix("name its cgroup: ")
    assert crckpt("dump", target, "job")["pid"] == forked.parts()[""].pid
    forked.goes_on_from(before)


def test_unit_that_writes_to_the_journal_is_refused_and_keeps_running(started: Callable[[str], Service]) -> None:
    """The unit's stdout is a unix socket connected to journald."""
    chatty = started("chatty")
    before = chatty.counters()
    message = refused(REFUSED, "dump", "unit:chatty")["message"]
    assert "(a unix socket to /run/systemd/journal/stdout) is connected" in message
    chatty.goes_on_from(before)


def test_cgroup_with_several_trees_lists_them(started: Callable[[str], Service]) -> None:
    """The trees are listed; none is chosen."""
    roots = {started("counter").pid, started("isolated").pid}
    message = refused(USAGE, "dump", "cgroup:/system.slice")["message"]
    assert roots <= {int(word) for word in message.rpartition(":")[2].split(",")}


@pytest.mark.parametrize(
    ("target", "status", "message", "hint"),
    [
        ("unit:unknown", 2, "there is no unit unknown.service", "systemctl list-units"),
        (
            "unit:debug-shell",
            14,
            "debug-shell.service has no process now: it is inactive (dead)",
            "systemctl status debug-shell",
        ),
        ("unit:basic.target", 2, "unit basic.target is not a service", "name a service"),
        ("unit:init.scope", 2, "unit init.scope is not a service", "cgroup:/init.scope"),
        ("unit:systemd-journald*", 2, "must name one unit", "systemctl list-units"),
        ("unit:", 2, "'unit:' is not a valid target", "name a PID"),
        ("cgroup:/unknown.slice", 14, "there is no cgroup /unknown.slice", "cat /proc/PID/cgroup"),
    ],
)
def test_dump_of_an_invalid_unit_or_cgroup_is_refused(target: str, status: int, message: str, hint: str) -> None:
    """The message is one sentence with the next command."""
    error = refused(status, "dump", target)
    assert message in error["message"]
    assert hint in error["hint"]


@pytest.mark.parametrize("target", ["unit:lab", "cgroup:/system.slice/lab.service"])
def test_crckpt_refuses_to_dump_the_unit_that_it_runs_in(target: str) -> None:
    """crckpt cannot freeze the unit that it runs in."""
    assert "would freeze itself" in refused(REFUSED, "dump", target)["message"]


def test_dump_of_init_is_refused() -> None:
    """The cgroup of init is refused, too."""
    assert (
        refused(REFUSED, "dump", "cgroup:/init.scope")["message"]
        == "PID 1 is the init process of this system, which cannot be checkpointed"
    )


def test_dump_of_an_empty_cgroup_is_refused() -> None:
    """The group exists, and no process is in it."""
    Path("/sys/fs/cgroup/empty.slice").mkdir()
    assert refused(TARGET_GONE, "dump", "cgroup:/empty.slice")["message"] == "cgroup /empty.slice has no process"


def test_tracker_outlives_the_unit_that_started_it(started: Callable[[str], Service]) -> None:
    """A timer's dumps are incremental, whatever the unit's KillMode."""
    started("counter")
    first, second = (crckpt("dump", "unit:counter", "job", *words)["tracked"] for words in (("--incremental",), ()))
    if not first["tracker"]:
        assert first["why"].startswith("tracker: none"), "this host tracks nothing"
        return
    assert second["base"]
    _output(sys.executable, "-m", "crckpt", "ps", "--end", "all")
    for mode in ("process", "control-group"):
        words = ["dump", "unit:counter", "job", "--incremental", "--store", "/tmp/store"]
        _output("systemd-run", "--wait", "-p", f"KillMode={mode}", sys.executable, "-m", "crckpt", *words)
        assert crckpt("dump", "unit:counter", "job")["tracked"]["why_full"] == ""
        _output(sys.executable, "-m", "crckpt", "ps", "--end", "all")


_LEAVER = """
import subprocess, sys
from crckpt.helper.scope import leave_session
kept = leave_session("crckpt-job", "job")
child = subprocess.Popen(["sleep", "1000"])
print(kept, child.pid, open("/proc/self/cgroup").read().rpartition(":")[2].strip(), flush=True)
child.wait()
"""


def test_moved_program_outlives_the_ssh_session() -> None:
    here = Path(__file__).resolve().parents[2]
    words = ("systemd-run", "--quiet", "--scope", "--unit=session-7", sys.executable, "-c", _LEAVER)
    with subprocess.Popen(words, cwd=here, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        kept, child, group = session.stdout.readline().split(" ")
        assert (kept, group.strip()) == ("", f"/system.slice/crckpt-job-{session.pid}.scope")
        wait_for(lambda: Service("session-7.scope").shows("ActiveState") == "inactive", READY_S, "the session to end")
        assert _cgroup(int(child)) == group.strip()
        _output("systemctl", "stop", f"crckpt-job-{session.pid}.scope")
        session.wait()


def crckpt(*words: str) -> dict[str, Any]:
    """The result of a command that must succeed."""
    result: dict[str, Any] = CRCKPT.run(*words, "--json").document["result"]
    return result


@pytest.mark.parametrize(("kind", "more"), [("exec", ()), ("forking", ("--detach",))])
def test_program_from_a_prompt_is_restored_as_a_service(kind: str, more: tuple[str, ...], tmp_path: Path) -> None:
    """The program gets a new terminal. The unit names the program, and stopping the unit ends it."""
    workdir = tmp_path / "prompt"
    workdir.mkdir()
    talker = ("/usr/bin/python3", "/opt/programs/talker.py", str(workdir), "--listen")
    with Tmux(workdir / "tmux", "bash", "--norc") as window:
        window.enter(" ".join(talker))
        wait_for(lambda: _all_say(workdir) > 5, READY_S, "the program to start")
        pid = statuses(workdir)[""].pid
        crckpt("dump", str(pid), "prompt", "--stop")
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), READY_S, "the program to be gone")
    before = _all_say(workdir)
    restore = (sys.executable, "-m", "crckpt", "restore", "prompt", "--tty", "new", "--store", "/tmp/store", *more)
    here = Path(__file__).resolve().parents[2]
    _output("systemd-run", "--unit=prompt", f"--property=Type={kind}", f"--setenv=PYTHONPATH={here}", *restore)
    wait_for(lambda: _all_say(workdir) > before + 2, READY_S, "it to go on")
    listed = _output(sys.executable, "-m", "crckpt", "attach", "--list", "--json")
    (terminal,) = json.loads(listed)["result"]["terminals"]
    assert terminal["pid"] == pid
    assert _cgroup(pid) == "/system.slice/prompt.service"
    assert (Service("prompt").pid == terminal["holder"]) == (kind == "forking")
    assert Service("prompt").pid != pid
    for target in ("unit:prompt", "cgroup:/system.slice/prompt.service"):
        assert crckpt("dump", target, "again")["pid"] == pid
    _output("systemctl", "stop", "prompt")
    assert not any(Path(f"/proc/{number}").exists() for number in (pid, terminal["holder"]))
    assert "says" in Path(terminal["log"]).read_text()
    subprocess.run(["systemctl", "reset-failed", "prompt"], check=False)


RESTORED = """
[Unit]
Conflicts=counter.service
[Service]
Type={kind}
Environment=PYTHONPATH={here}
ExecStart={python} -m crckpt restore counter --store /tmp/store {more}
StandardOutput=null
StandardError=null
"""


@pytest.mark.parametrize("more", ["", "--new-pid-namespace"])
@pytest.mark.parametrize("kind", ["exec", "forking"])
def test_program_that_runs_in_another_unit_is_named(started: Callable[[str], Service], kind: str, more: str) -> None:
    """The hint names the job and the unit that the program runs in.

    It does not suggest to start counter.service, which would end the program.
    """
    counter = started("counter")
    crckpt("dump", "unit:counter", "counter", "--stop")
    wait_for(lambda: counter.shows("ActiveState") == "failed", READY_S, "systemd to see that the unit has ended")
    before, here = counter.counters(), Path(__file__).resolve().parents[2]
    options = f"{more} --detach" if kind == "forking" else more
    unit = RESTORED.format(kind=kind, here=here, python=sys.executable, more=options)
    Path("/etc/systemd/system/counter-restored.service").write_text(unit)
    _output("systemctl", "daemon-reload")
    _output("systemctl", "start", "counter-restored")
    try:
        counter.goes_on_from(before)
        pid = crckpt("dump", "counter")["pid"]
        assert Path(f"/proc/{pid}/comm").read_text() == "python3\n"
        hint = f"counter runs as PID {pid}, in counter-restored.service: crckpt dump counter"
        for target in ("unit:counter-restored", "cgroup:/system.slice/counter-restored.service"):
            assert crckpt("dump", target, "counter")["pid"] == pid
        for job in ((), ("counter",)):
            assert refused(TARGET_GONE, "dump", "unit:counter", *job)["hint"] == hint
        assert f"as PID {pid}, in counter-restored.service" in refused(REFUSED, "restore", "counter")["message"]
        counter.goes_on_from(counter.counters())
    finally:
        _output("systemctl", "stop", "counter-restored")
        subprocess.run(["systemctl", "reset-failed", "counter-restored"], check=False)
    assert "crckpt restore counter" in refused(TARGET_GONE, "dump", "counter")["hint"]


def _all_say(workdir: Path) -> int:
    return sum(part.counter for part in statuses(workdir).values())


def refused(status: int, *words: str) -> dict[str, Any]:
    """The error of a command that must end with `status`."""
    error: dict[str, Any] = CRCKPT.run(*words, "--json", status=status).document["error"]
    return error


def _lay_traps(root: Path, won: Path) -> None:
    """Make a root directory owned by nobody whose programs write their names to the file `won` if root runs them."""
    script = f'#!/bin/sh\n[ "$(id -u)" != 0 ] || echo "$0 $*" >> {won}\n'
    for name in ("usr/bin", "usr/lib", "opt/programs", "etc/criu", ".criu", "root/.criu", "run"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            (root / name).symlink_to(Path("/", name).readlink())
    programs = [
        f"usr/local/{at}/{name}" for at in ("bin", "sbin") for name in ("criu", "env", "sh", "tar", "nft", "ip")
    ]
    for name in (*programs, "usr/local/lib/crckpt/criu/criu", "trap"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(script)
        (root / name).chmod(0o755)
    for name in ("etc", ".criu", "root/.criu"):
        (root / name / ("criu/default.conf" if name == "etc" else "default.conf")).write_text("action-script /trap\n")
    (root / "run/criu.kdat").write_text("garbage")
    shutil.copy("/etc/passwd", root / "etc/passwd")
    shutil.copy("/etc/group", root / "etc/group")
    _output("chown", "-R", "nobody:nogroup", str(root))


def _end(service: Service) -> None:
    pids = [part.pid for part in statuses(service.workdir).values()]
    _output("systemctl", "stop", service.name)
    for pid in pids:  # a restored tree is no longer the unit's
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 60, "the tree to be gone")


def _all_ready(service: Service) -> bool:
    parts = service.parts()
    return bool(parts) and all(part.ready for part in parts.values())


def _cgroup(pid: int) -> str:
    (line,) = (line for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::"))
    return line.removeprefix("0::")


def _output(*argv: str) -> str:
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip()
