"""The hold's program, run as CRIU runs it: it waits for its owner and answers by what is recorded."""

from __future__ import annotations

import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from own_process import descriptors
from smaller_bounds import smaller_bounds
from target_processes import halted

from crckpt.criu import hold as hold_module
from crckpt.criu.hold import PATIENCE_S, GaveUp, Hold, Step, gate, holds_at
from crckpt.errors import HostCannot, StoreUnusable
from crckpt.host.process import run

SOON = 20.0
OWNER = """
import sys
from pathlib import Path
from crckpt.criu.hold import holds_at
with holds_at(Path(sys.argv[1]), "post-dump", program=Path(sys.argv[2])) as (hold,):
    print("held", flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True)
class Kind:
    """The compiled program, or the shell script that replaces it without a compiler."""

    program: Path

    @property
    def is_script(self) -> bool:
        return not self.program.exists()

    def holds_at(
        self, directory: Path, *steps: Step, patience_s: int = PATIENCE_S
    ) -> AbstractContextManager[tuple[Hold, ...]]:
        return holds_at(directory, *steps, patience_s=patience_s, program=self.program)

    def ask(
        self, directory: Path, action: str, steps: str = "post-dump", **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start the program as CRIU does, for a hold in `directory`: in its work directory."""
        script = directory / "hold" if self.is_script else self.program
        ours = {"CRTOOLS_SCRIPT_ACTION": action, "CRCKPT_HOLDS": directory.name, "CRCKPT_HOLD_STEPS": steps}
        with (directory.parent / "report").open("ab") as log:
            return subprocess.Popen(
                [script],
                env={**run.ENVIRONMENT, **ours, **environment},
                stdin=subprocess.DEVNULL,
                stderr=log,
                cwd=directory.parent,
            )


@pytest.fixture(params=["program", "script"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    if request.param == "script":
        return Kind(tmp_path / "none")
    if not hold_module.PROGRAM.exists():
        pytest.skip("crckpt was installed without a C compiler")
    return Kind(hold_module.PROGRAM)


def is_reached(hold: Hold, seconds: float) -> bool:
    return bool(select.select([hold.reached], [], [], seconds)[0])


def still_waits(script: subprocess.Popen[bytes]) -> bool:
    try:
        script.wait(0.05)
    except subprocess.TimeoutExpired:
        return True
    return False


@pytest.mark.parametrize("step", ["pre-dump", "post-dump", "post-restore"])
def test_criu_continues_after_the_hold_was_committed(kind: Kind, tmp_path: Path, step: Step) -> None:
    with kind.holds_at(tmp_path / "hold", step) as (hold,):
        assert not is_reached(hold, 0)
        script = kind.ask(tmp_path / "hold", step, step)
        assert is_reached(hold, SOON)
        assert still_waits(script)
        hold.commit()
        assert script.wait(SOON) == 0


def test_criu_undoes_the_dump_if_the_hold_is_released_without_a_commit(kind: Kind, tmp_path: Path) -> None:
    with kind.holds_at(tmp_path / "hold", "post-dump") as (hold,):
        script = kind.ask(tmp_path / "hold", "post-dump")
        assert is_reached(hold, SOON)
        hold.release()
        assert script.wait(SOON) != 0


def test_criu_undoes_the_dump_if_the_block_of_the_hold_ends(kind: Kind, tmp_path: Path) -> None:
    with kind.holds_at(tmp_path / "hold", "post-dump") as (hold,):
        script = kind.ask(tmp_path / "hold", "post-dump")
        assert is_reached(hold, SOON)
    assert script.wait(SOON) != 0


@pytest.mark.parametrize(
    "action", ["", "pre-dump", "post-restore", "network-lock", "network-unlock", "pre-restore", "post-resume"]
)
def test_script_waits_only_at_the_step_of_the_hold(kind: Kind, tmp_path: Path, action: str) -> None:
    with kind.holds_at(tmp_path / "hold", "post-dump") as (hold,):
        assert kind.ask(tmp_path / "hold", action).wait(SOON) == 0
        assert not is_reached(hold, 0)


def test_criu_that_comes_late_follows_the_recorded_decision(kind: Kind, tmp_path: Path) -> None:
    with kind.holds_at(tmp_path / "hold", "post-dump") as (hold,):
        hold.commit()
    assert kind.ask(tmp_path / "hold", "post-dump").wait(SOON) == 0
    with kind.holds_at(tmp_path / "other", "post-dump"):
        pass
    assert kind.ask(tmp_path / "other", "post-dump").wait(SOON) != 0


def test_one_script_can_wait_at_several_steps_of_criu(kind: Kind, tmp_path: Path) -> None:
    with kind.holds_at(tmp_path / "hold", "pre-dump", "post-dump") as (first, last):
        assert first.script == last.script
        first.commit()
        assert kind.ask(tmp_path / "hold", "pre-dump", "pre-dump,post-dump").wait(SOON) == 0
        assert not is_reached(last, 0)
        script = kind.ask(tmp_path / "hold", "post-dump", "pre-dump,post-dump")
        assert is_reached(last, SOON)
        assert still_waits(script)
        last.release()
        assert script.wait(SOON) != 0


def owner(kind: Kind, directory: Path, **environment: str) -> subprocess.Popen[bytes]:
    """A process that owns a hold."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, directory, kind.program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_criu_undoes_the_dump_if_the_owner_of_the_hold_dies(kind: Kind, tmp_path: Path) -> None:
    process = owner(kind, tmp_path / "hold")
    script = kind.ask(tmp_path / "hold", "post-dump")
    assert still_waits(script)
    process.kill()
    assert script.wait(SOON) != 0
    process.communicate()


def test_hold_is_aborted_if_its_owner_died_before_criu_reached_it(kind: Kind, tmp_path: Path) -> None:
    process = owner(kind, tmp_path / "hold")
    process.kill()
    process.communicate()
    assert kind.ask(tmp_path / "hold", "post-dump").wait(SOON) != 0


def test_hold_is_committed_if_its_owner_died_after_the_commit(kind: Kind, tmp_path: Path) -> None:
    process = owner(kind, tmp_path / "hold")
    script = kind.ask(tmp_path / "hold", "post-dump")
    assert still_waits(script)
    (tmp_path / "hold/post-dump/undecided").rename(tmp_path / "hold/post-dump/commit")
    process.kill()
    assert script.wait(SOON) == 0
    process.communicate()


def test_criu_undoes_the_dump_if_the_directory_of_the_hold_is_missing(kind: Kind, tmp_path: Path) -> None:
    with kind.holds_at(tmp_path / "hold", "post-dump") as (hold,):
        if kind.is_script:
            pytest.skip("the script is in that directory")
        (tmp_path / "hold").rename(tmp_path / "moved")
        assert kind.ask(tmp_path / "hold", "post-dump").wait(SOON) != 0
        assert not is_reached(hold, 0)
        (tmp_path / "moved").rename(tmp_path / "hold")


@pytest.mark.parametrize("action", ["network-lock", "post-dump"])
def test_script_aborts_at_every_step_without_the_directory_of_the_hold(kind: Kind, tmp_path: Path, action: str) -> None:
    """A lost environment must not end a tree without a commit."""
    with kind.holds_at(tmp_path / "hold", "post-dump") as (hold,):
        environment = {**run.ENVIRONMENT, "CRTOOLS_SCRIPT_ACTION": action}
        assert subprocess.run([hold.script], env=environment, stderr=subprocess.DEVNULL, check=False).returncode != 0


def test_child_of_the_owner_does_not_keep_the_hold_alive(kind: Kind, tmp_path: Path) -> None:
    with kind.holds_at(tmp_path / "hold", "post-dump") as (hold,):
        child = run.start(["sleep", "60"], output=tmp_path / "out")
        script = kind.ask(tmp_path / "hold", "post-dump")
        assert is_reached(hold, SOON)
        hold.release()
        assert script.wait(SOON) != 0
        os.kill(child.pid, signal.SIGKILL)
        child.wait()


def test_path_of_a_hold_may_contain_spaces_and_quotes(kind: Kind, tmp_path: Path) -> None:
    directory = tmp_path / "a 'b' \"c\" $d"
    with kind.holds_at(directory, "post-dump") as (hold,):
        script = kind.ask(directory, "post-dump")
        assert is_reached(hold, SOON)
        hold.commit()
        assert script.wait(SOON) == 0


def test_hold_is_private_and_leaks_no_descriptor(kind: Kind, tmp_path: Path) -> None:
    before = descriptors()
    with kind.holds_at(tmp_path / "hold", "post-dump") as (hold,):
        made = [tmp_path / "hold", *(tmp_path / "hold").rglob("*")]
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made}
        files = dict.fromkeys(("reached", "alive", "owner", "undecided"), 0o600)
        assert modes == {"post-dump": 0o700, "hold": 0o700} | files
        hold.commit()
        hold.release()
    assert descriptors() == before


def test_gate_is_private_and_leaves_nothing(tmp_path: Path) -> None:
    before = descriptors()
    with gate(tmp_path / "hold") as hold:
        assert hold.environment == {"CRCKPT_HOLD": f"{tmp_path}/hold"}
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "hold").iterdir()}
        assert modes == dict.fromkeys(("reached", "alive", "owner", "undecided"), 0o600)
        assert stat.S_IMODE((tmp_path / "hold").stat().st_mode) == 0o700
        hold.commit()
    with pytest.raises(StoreUnusable), gate(tmp_path / "hold"):
        raise StoreUnusable("no room")
    assert list(tmp_path.iterdir()) == []
    assert descriptors() == before


def test_noexec_mount_is_refused_where_a_script_must_run(kind: Kind, tmp_path: Path) -> None:
    mounted = run.run(["mount", "-t", "tmpfs", "-o", "noexec", "test", str(tmp_path)])
    if not mounted.ok:
        pytest.skip(f"nothing can be mounted here: {mounted.output.strip()}")
    try:
        if kind.is_script:
            with pytest.raises(HostCannot, match="noexec") as caught, kind.holds_at(tmp_path / "hold", "post-dump"):
                pytest.fail("it cannot work")
            assert "--store DIR" in caught.value.hint
        else:
            with kind.holds_at(tmp_path / "hold", "post-dump") as (hold,):
                hold.commit()
            assert kind.ask(tmp_path / "hold", "post-dump").wait(SOON) == 0
        with gate(tmp_path / "gate") as without_script:
            without_script.commit()
    finally:
        run.run(["umount", str(tmp_path)])


@contextmanager
def silent(kind: Kind, directory: Path) -> Iterator[Hold]:
    """A hold whose owner gives no sign of life after the first."""
    directory.mkdir()
    hold = Hold(directory / "post-dump", {}, 1, kind.program)
    yield hold
    hold.release()


def late(script: subprocess.Popen[bytes], directory: Path) -> str:
    """What the program says, which has aborted."""
    assert script.wait(SOON) != 0
    return (directory / "report").read_text()


@pytest.fixture
def _limited(kind: Kind) -> None:
    if kind.is_script:
        pytest.skip("the script reads no signs of life")


@pytest.mark.usefixtures("_limited")
def test_hold_waits_for_heartbeats_and_aborts_without_them(kind: Kind, tmp_path: Path) -> None:
    """A commit after the hold was aborted has no effect."""
    with kind.holds_at(tmp_path / "hold", "post-dump", patience_s=1) as (hold,):
        script = kind.ask(tmp_path / "hold", "post-dump")
        assert is_reached(hold, SOON)
        for _ in range(25):
            hold.beat()
            assert still_waits(script)
        hold.release()
        assert script.wait(SOON) != 0
    # An owner without a heartbeat after the first one is treated as if there were none, even if it answers in time.
    with silent(kind, tmp_path / "stopped") as hold:
        hold.check()
        assert late(kind.ask(tmp_path / "stopped", "post-dump"), tmp_path) == (
            "crckpt's hold: no answer while CRIU waited at post-dump\n"
        )
        for answer in (hold.check, hold.commit, hold.commit):
            with pytest.raises(GaveUp):
                answer()
        assert kind.ask(tmp_path / "stopped", "post-dump").wait(SOON) != 0


@pytest.mark.usefixtures("_limited")
@pytest.mark.parametrize("stop", ["SIGSTOP", "ptrace"])
def test_hold_waits_for_a_stopped_owner_up_to_its_limit(kind: Kind, tmp_path: Path, stop: str) -> None:
    process = owner(kind, tmp_path / "hold", CRCKPT_PATIENCE_S="2")
    script = kind.ask(tmp_path / "hold", "post-dump")
    assert still_waits(script)
    with halted(process.pid, stop):
        assert "no answer" in late(script, tmp_path)
        assert (tmp_path / "hold/post-dump/abort").exists()
    process.kill()
    process.communicate()


@pytest.mark.usefixtures("_limited")
def test_script_of_a_hold_that_was_stopped_with_its_owner_gives_the_owner_time(kind: Kind, tmp_path: Path) -> None:
    """In a frozen cgroup or a suspended machine, no time passes for either process."""
    with silent(kind, tmp_path / "hold") as hold, silent(kind, tmp_path / "other"):
        script = kind.ask(tmp_path / "hold", "post-dump")
        assert is_reached(hold, SOON)
        os.kill(script.pid, signal.SIGSTOP)
        assert kind.ask(tmp_path / "other", "post-dump").wait(SOON) != 0, "one that is not stopped loses its patience"
        os.kill(script.pid, signal.SIGCONT)
        assert still_waits(script)
        hold.commit()
        assert script.wait(SOON) == 0


@pytest.mark.usefixtures("_limited")
def test_owner_stuck_in_the_hold_sends_no_heartbeat(kind: Kind, tmp_path: Path) -> None:
    """A disk that does not answer uses no CPU time. Outside of the hold, crckpt waits as long as CRIU takes."""
    with (
        smaller_bounds(hold_module, STUCK_S=0.8),
        kind.holds_at(tmp_path / "hold", "post-dump", patience_s=1) as (hold,),
    ):
        script = kind.ask(tmp_path / "hold", "post-dump")
        with pytest.raises(subprocess.TimeoutExpired):
            script.wait(2.5)
        hold.work_began = time.monotonic()
        # There is no time limit here: the script uses CPU time while it waits.
        assert script.wait() != 0
        assert "no answer" in (tmp_path / "report").read_text()


def test_commit_or_abort_decides_if_they_come_at_the_same_time(kind: Kind, tmp_path: Path) -> None:
    """crckpt and the hold may decide at the same time."""
    won = set()
    for number in range(60):
        with kind.holds_at(tmp_path / str(number), "post-dump") as (hold,):
            directory = tmp_path / str(number) / "post-dump"
            script = kind.ask(tmp_path / str(number), "post-dump")
            assert is_reached(hold, SOON)
            other = threading.Thread(target=aborting, args=(directory,))
            other.start()
            try:
                hold.commit()
                committed = True
            except GaveUp:
                committed = False
                hold.release()
            other.join()
            assert (script.wait(SOON) == 0) == committed
            assert (directory / "commit").exists() == committed
            assert (directory / "abort").exists() != committed
            won.add(committed)
    assert won


def aborting(directory: Path) -> None:
    """Abort the hold, as CRIU's side does when it has waited too long."""
    with suppress(FileNotFoundError):
        (directory / "undecided").rename(directory / "abort")


@pytest.mark.usefixtures("_limited")
def test_hold_program_needs_no_other_files(kind: Kind, tmp_path: Path) -> None:
    """CRIU may run the program where loader, libraries, shell and programs belong to other users."""
    found = subprocess.run(["readelf", "-ld", kind.program], capture_output=True, text=True, check=True).stdout
    assert "INTERP" not in found
    assert "no dynamic section" in found
    strace = shutil.which("strace")
    if strace is None:
        return
    with kind.holds_at(tmp_path / "hold", "post-dump") as (hold,):
        hold.commit()
    error = subprocess.run(
        [strace, "-e", "trace=open,openat,execve", kind.program],
        env={"CRTOOLS_SCRIPT_ACTION": "post-dump", "CRCKPT_HOLDS": "hold", "CRCKPT_HOLD_STEPS": "post-dump"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    opened = [line.split('"')[1] for line in error.splitlines() if line.startswith("open")]
    assert set(opened) == {"hold", "post-dump", "reached", "alive", "commit"}
