"""The hold's script, run as CRIU runs it: it waits for its owner and answers by what is recorded."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from crckpt.criu.hold import Hold, Step, gate, held
from crckpt.errors import HostCannot, StoreUnusable
from crckpt.host import run

SOON = 20.0
OWNER = """
import sys
from pathlib import Path
from crckpt.criu.hold import held
with held(Path(sys.argv[1]), "post-dump") as (hold,):
    print("held", flush=True)
    sys.stdin.read()
"""


def ask(script: Path, action: str) -> subprocess.Popen[bytes]:
    """Start the script as CRIU does."""
    return subprocess.Popen(
        [script], env={**run.ENVIRONMENT, "CRTOOLS_SCRIPT_ACTION": action}, stdin=subprocess.DEVNULL
    )


def is_reached(hold: Hold, seconds: float) -> bool:
    return bool(select.select([hold.reached], [], [], seconds)[0])


def still_waits(script: subprocess.Popen[bytes]) -> bool:
    try:
        script.wait(0.05)
    except subprocess.TimeoutExpired:
        return True
    return False


@pytest.mark.parametrize("step", ["pre-dump", "post-dump", "post-restore"])
def test_commit_lets_criu_go_on(tmp_path: Path, step: Step) -> None:
    with held(tmp_path / "hold", step) as (hold,):
        assert not is_reached(hold, 0)
        script = ask(hold.script, step)
        assert is_reached(hold, SOON)
        assert still_waits(script)
        hold.commit()
        assert script.wait(SOON) == 0


def test_release_without_commit_makes_criu_undo(tmp_path: Path) -> None:
    with held(tmp_path / "hold", "post-dump") as (hold,):
        script = ask(hold.script, "post-dump")
        assert is_reached(hold, SOON)
        hold.release()
        assert script.wait(SOON) != 0


def test_the_end_of_the_block_makes_criu_undo(tmp_path: Path) -> None:
    with held(tmp_path / "hold", "post-dump") as (hold,):
        script = ask(hold.script, "post-dump")
        assert is_reached(hold, SOON)
    assert script.wait(SOON) != 0


@pytest.mark.parametrize(
    "action", ["", "pre-dump", "post-restore", "network-lock", "network-unlock", "pre-restore", "post-resume"]
)
def test_at_other_steps_nobody_waits(tmp_path: Path, action: str) -> None:
    with held(tmp_path / "hold", "post-dump") as (hold,):
        assert ask(hold.script, action).wait(SOON) == 0
        assert not is_reached(hold, 0)


def test_what_is_recorded_decides_even_if_criu_comes_late(tmp_path: Path) -> None:
    with held(tmp_path / "hold", "post-dump") as (hold,):
        hold.commit()
    assert ask(tmp_path / "hold/hold", "post-dump").wait(SOON) == 0
    with held(tmp_path / "other", "post-dump"):
        pass
    assert ask(tmp_path / "other/hold", "post-dump").wait(SOON) != 0


def test_one_script_waits_at_several_steps(tmp_path: Path) -> None:
    with held(tmp_path / "hold", "pre-dump", "post-dump") as (first, last):
        assert first.script == last.script
        first.commit()
        assert ask(first.script, "pre-dump").wait(SOON) == 0
        assert not is_reached(last, 0)
        script = ask(first.script, "post-dump")
        assert is_reached(last, SOON)
        assert still_waits(script)
        last.release()
        assert script.wait(SOON) != 0


def owner(directory: Path) -> subprocess.Popen[bytes]:
    """A process that holds."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_the_death_of_the_owner_makes_criu_undo(tmp_path: Path) -> None:
    process = owner(tmp_path / "hold")
    script = ask(tmp_path / "hold/hold", "post-dump")
    assert still_waits(script)
    process.kill()
    assert script.wait(SOON) != 0
    process.communicate()


def test_an_owner_that_died_before_the_step_keeps_nothing_frozen(tmp_path: Path) -> None:
    process = owner(tmp_path / "hold")
    process.kill()
    process.communicate()
    assert ask(tmp_path / "hold/hold", "post-dump").wait(SOON) != 0


def test_an_owner_that_died_after_the_commit_has_committed(tmp_path: Path) -> None:
    process = owner(tmp_path / "hold")
    script = ask(tmp_path / "hold/hold", "post-dump")
    assert still_waits(script)
    (tmp_path / "hold/post-dump/commit").touch()
    process.kill()
    assert script.wait(SOON) == 0
    process.communicate()


def test_a_directory_that_is_gone_makes_criu_undo(tmp_path: Path) -> None:
    with held(tmp_path / "hold", "post-dump") as (hold,):
        kept = tmp_path / "hold kept"
        kept.mkdir()
        (kept / "hold").write_text(hold.script.read_text())
        (kept / "hold").chmod(0o700)
        assert ask(kept / "hold", "post-dump").wait(SOON) != 0


def test_children_of_ours_do_not_keep_the_lock(tmp_path: Path) -> None:
    with held(tmp_path / "hold", "post-dump") as (hold,):
        child = run.start(["sleep", "60"], output=tmp_path / "out")
        script = ask(hold.script, "post-dump")
        assert is_reached(hold, SOON)
        hold.release()
        assert script.wait(SOON) != 0
        os.kill(child.pid, signal.SIGKILL)
        child.wait()


def test_a_path_with_spaces_and_quotes(tmp_path: Path) -> None:
    with held(tmp_path / "a 'b' \"c\" $d", "post-dump") as (hold,):
        script = ask(hold.script, "post-dump")
        assert is_reached(hold, SOON)
        hold.commit()
        assert script.wait(SOON) == 0


def test_it_is_private_and_leaves_no_descriptor(tmp_path: Path) -> None:
    before = list(Path("/proc/self/fd").iterdir())
    with held(tmp_path / "hold", "post-dump") as (hold,):
        made = [tmp_path / "hold", *(tmp_path / "hold").rglob("*")]
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made}
        assert modes == {"post-dump": 0o700, "reached": 0o600, "owner": 0o600, "hold": 0o700}
        hold.commit()
        hold.release()
    assert list(Path("/proc/self/fd").iterdir()) == before


def test_a_gate_is_private_and_leaves_nothing(tmp_path: Path) -> None:
    before = list(Path("/proc/self/fd").iterdir())
    with gate(tmp_path / "hold") as hold:
        assert hold.words == ("env", f"CRCKPT_HOLD={tmp_path}/hold")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "hold").iterdir()}
        assert modes == {"reached": 0o600, "owner": 0o600}
        assert stat.S_IMODE((tmp_path / "hold").stat().st_mode) == 0o700
        hold.commit()
    with pytest.raises(StoreUnusable), gate(tmp_path / "hold"):
        raise StoreUnusable("no room")
    assert list(tmp_path.iterdir()) == []
    assert list(Path("/proc/self/fd").iterdir()) == before


def test_a_noexec_mount_is_refused_beforehand(tmp_path: Path) -> None:
    mounted = run.run(["mount", "-t", "tmpfs", "-o", "noexec", "test", str(tmp_path)])
    if not mounted.ok:
        pytest.skip(f"nothing can be mounted here: {mounted.output.strip()}")
    try:
        with pytest.raises(HostCannot, match="noexec") as caught, held(tmp_path / "hold", "post-dump"):
            pytest.fail("it cannot work")
        assert "--store DIR" in caught.value.hint
        with gate(tmp_path / "gate") as without_script:
            without_script.commit()
    finally:
        run.run(["umount", str(tmp_path)])
