"""A target names one tree, or says why it does not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from crckpt.errors import CrckptError, HostCannot, UsageError
from crckpt.host import run, targets


@pytest.fixture
def sleepers() -> Iterator[tuple[int, int]]:
    """PIDs of two children of ours."""
    processes = [subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2)]
    yield processes[0].pid, processes[1].pid
    for process in processes:
        process.kill()
        process.wait()


def refused(target: str) -> CrckptError:
    with pytest.raises(UsageError) as caught:
        targets.resolve(target)
    assert caught.value.hint
    return caught.value


def test_a_number_is_a_pid() -> None:
    assert targets.resolve("1234") == targets.resolve(" 1234\n") == 1234


@pytest.mark.parametrize("target", ["", "0", "-5", "1.5", "abc", "4194305", "\u0661\u0662", "\u00b2", "1 2"])
def test_what_is_no_pid(target: str) -> None:
    assert "is not a PID" in refused(target).message


@pytest.mark.parametrize("target", ["job:trainer", ":5", "PIDFILE:/run/x", "unit", "unit:", "cgroup:", "pidfile:"])
def test_what_is_no_target(target: str) -> None:
    assert f"{target} is no target" in refused(target).message


def test_a_pidfile(tmp_path: Path) -> None:
    pidfile = tmp_path / "a:b.pid"
    pidfile.write_text("  4321\n")
    assert targets.resolve(f"pidfile:{pidfile}") == 4321


@pytest.mark.parametrize("content", [b"", b"\n", b"none", b"12\n13\n", b"\xff\xfe", b"99999999999999999999999"])
def test_a_pidfile_with_something_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pidfile").write_bytes(content)
    error = refused(f"pidfile:{tmp_path}/pidfile")
    assert f"pidfile:{tmp_path}/pidfile" in error.message
    assert error.hint == f"look into it: cat {tmp_path}/pidfile"


def test_no_pidfile(tmp_path: Path) -> None:
    assert "No such file" in refused(f"pidfile:{tmp_path}/none").message
    assert "Is a directory" in refused(f"pidfile:{tmp_path}").message
    refused("pidfile:")


def cgroup(path: Path, *pids: int) -> Path:
    path.mkdir()
    (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return path


def test_a_cgroup_with_one_tree(tmp_path: Path, sleepers: tuple[int, int]) -> None:
    whole = cgroup(tmp_path / "service", os.getpid())
    cgroup(whole / "below", sleepers[0])
    (whole / "no cgroup").mkdir()
    assert targets.resolve(f"cgroup:{whole}") == os.getpid()
    assert targets.resolve(f"cgroup:{whole}/below") == sleepers[0]


def test_a_cgroup_with_two_trees_names_them(tmp_path: Path, sleepers: tuple[int, int]) -> None:
    error = refused(f"cgroup:{cgroup(tmp_path / 'service', *sleepers)}")
    assert all(str(pid) in error.message for pid in sleepers)


def test_a_cgroup_without_processes(tmp_path: Path) -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    # 0 stands for a process of another pid namespace.
    assert "no process lives" in refused(f"cgroup:{cgroup(tmp_path / 'service', 0, ended.pid)}").message


def test_no_cgroup(tmp_path: Path) -> None:
    assert "there is no cgroup" in refused(f"cgroup:{tmp_path}/none").message
    assert "there is no cgroup" in refused("cgroup:/crckpt-no-such-cgroup").message


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a systemctl can be put that is found before the system's."""
    monkeypatch.setitem(run.ENVIRONMENT, "PATH", f"{tmp_path}:/usr/bin:/bin")
    path = tmp_path / "systemctl"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o700)
    return path


def answers(systemctl: Path, text: str) -> None:
    """Let systemctl say this, to the question that is expected for the unit `-web` or `web`."""
    asked = "show --property=Id,LoadState,ActiveState,SubState,MainPID,ControlGroup -- "
    systemctl.write_text(f"""#!/bin/sh
case "$*" in "{asked}"-web|"{asked}"web) ;; *) echo "asked: $*"; exit 1 ;; esac
cat <<'END'
{text}
END
""")


SERVICE = "Id={}\nLoadState=loaded\nActiveState={}\nSubState={}\nMainPID={}\nControlGroup={}\n"


def test_a_unit(systemctl: Path) -> None:
    answers(systemctl, SERVICE.format("-web.service", "active", "running", 77, "/system.slice/-web.service"))
    assert targets.resolve("unit:-web") == 77


def test_a_unit_beside_a_warning(systemctl: Path) -> None:
    answers(systemctl, "Warning: changed on disk\n" + SERVICE.format("web.service", "active", "running", 78, "/x"))
    assert targets.resolve("unit:web") == 78


def test_a_unit_that_does_not_run(systemctl: Path) -> None:
    answers(systemctl, SERVICE.format("web.service", "inactive", "dead", 0, ""))
    error = refused("unit:web")
    assert "web.service has no process now: it is inactive (dead)" in error.message
    assert error.hint == "systemctl start web.service"


def test_a_unit_of_which_systemd_knows_no_main_process(systemctl: Path) -> None:
    answers(systemctl, SERVICE.format("web.service", "active", "running", 0, "/system.slice/web.service"))
    assert refused("unit:web").hint == "give its cgroup: cgroup:/system.slice/web.service"


def test_a_unit_that_is_no_service(systemctl: Path) -> None:
    answers(systemctl, "Id=web.socket\nLoadState=loaded\nActiveState=active\nSubState=listening\nControlGroup=\n")
    assert "web.socket is no service" in refused("unit:web").message


def test_no_such_unit(systemctl: Path) -> None:
    answers(systemctl, SERVICE.format("web.service", "inactive", "dead", 0, "").replace("=loaded", "=not-found"))
    assert "there is no unit web.service" in refused("unit:web").message


def test_a_name_that_means_several_units(systemctl: Path) -> None:
    both = [SERVICE.format(f"{name}.service", "active", "running", 5, "/x") for name in ("web1", "web2")]
    answers(systemctl, "\n".join(both))
    assert "it names web1.service, web2.service" in refused("unit:web").message
    answers(systemctl, "")
    assert "it names none" in refused("unit:web").message


def test_systemd_does_not_answer(systemctl: Path) -> None:
    systemctl.write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    assert "Failed to connect to bus" in refused("unit:web").message


def test_no_systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(run.ENVIRONMENT, "PATH", str(tmp_path))
    with pytest.raises(HostCannot, match="cannot run systemctl"):
        targets.resolve("unit:web")
