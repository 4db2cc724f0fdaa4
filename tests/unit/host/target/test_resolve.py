"""A target names one tree, or the error explains why not."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from crckpt.errors import CrckptError, HostCannot, PreflightRefused, TargetNotRunning, UsageError
from crckpt.host import proc
from crckpt.host.target import RestoredTree, record_restored, resolve
from crckpt.model import CheckpointId, JobName, StoreId


@pytest.fixture
def sleepers() -> Iterator[tuple[int, int]]:
    """PIDs of two children of ours."""
    processes = [subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2)]
    yield processes[0].pid, processes[1].pid
    for process in processes:
        process.kill()
        process.wait()


def refused(target: str, kind: type[CrckptError] = UsageError) -> CrckptError:
    with pytest.raises(kind) as caught:
        resolve(target)
    assert caught.value.hint
    return caught.value


def test_target_that_is_a_number_is_a_pid() -> None:
    assert resolve("1234") == resolve(" 1234\n") == 1234


@pytest.mark.parametrize("target", ["", "0", "-5", "1.5", "abc", "unit", "4194305", "\u0661\u0662", "\u00b2", "1 2"])
def test_invalid_pid_is_refused(target: str) -> None:
    assert "is not a PID" in refused(target).message


def test_target_that_is_a_program_name_suggests_pgrep(tmp_path: Path) -> None:
    advice = "for a program, give its PID: pgrep -af app.py (package procps); for a service: unit:app.py"
    assert refused("app.py").hint == advice
    (tmp_path / "pid").write_text("redis\n")
    for target in ("5x", "two words", "$(reboot)", "-5", f"pidfile:{tmp_path}/pid"):
        assert "pgrep" not in refused(target).hint


@pytest.mark.parametrize("target", ["4194305", "99999999"])
def test_target_number_above_the_pid_limit_names_the_limit(target: str) -> None:
    limit = Path("/proc/sys/kernel/pid_max").read_text().strip()
    assert refused(target).message == f"'{target}' is not a PID: it is too large; this kernel's PIDs are below {limit}"


@pytest.mark.parametrize("target", ["job:trainer", ":5", "PIDFILE:/run/x", "unit:", "cgroup:", "pidfile:"])
def test_invalid_target_is_refused(target: str) -> None:
    assert f"{target!r} is not a valid target" in refused(target).message


def test_target_that_is_a_pidfile_is_resolved(tmp_path: Path, sleepers: tuple[int, int]) -> None:
    pidfile = tmp_path / "a:b.pid"
    pidfile.write_text(f"  {sleepers[0]}\n")
    assert resolve(f"pidfile:{pidfile}") == sleepers[0]
    link = tmp_path / "link"
    link.symlink_to("../" + tmp_path.name + "/a:b.pid")
    assert resolve(f"pidfile:{link}") == sleepers[0]


_USER = 65534


def untrusted(target: str) -> CrckptError:
    with pytest.raises(PreflightRefused) as caught:
        resolve(target)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("owner", "pidfile belongs to user nobody"),
        ("others write", "every user can write to"),
        ("group writes", "can write to"),
        ("directory's owner", "theirs belongs to user nobody"),
        ("directory that others write", "every user can write to"),
        ("link", "theirs belongs to user nobody"),
        ("link in /tmp", "belongs to user nobody"),
        ("above", "belongs to user nobody"),
    ],
)
def test_pidfile_writable_by_others_is_refused(
    tmp_path: Path, sleepers: tuple[int, int], change: str, why: str
) -> None:
    """Root would checkpoint, and end, any process that other users name."""
    directory = tmp_path / "theirs"
    directory.mkdir()
    pidfile = directory / "pidfile"
    pidfile.write_text(str(sleepers[0]))
    pidfile.chmod(0o644)
    target = pidfile
    match change:
        case "owner":
            os.chown(pidfile, _USER, _USER)
        case "others write":
            pidfile.chmod(0o666)
        case "group writes":
            pidfile.chmod(0o664)
            os.chown(pidfile, 0, 100)
        case "directory's owner":
            os.chown(directory, _USER, _USER)
        case "directory that others write":
            directory.chmod(0o777)
        case "link":
            (tmp_path / "root's").write_text(str(sleepers[0]))
            target = directory / "link"
            target.symlink_to(tmp_path / "root's")
            os.chown(directory, _USER, _USER)
        case "link in /tmp":
            directory.chmod(0o1777)
            target = directory / "link"
            target.symlink_to(pidfile)
            os.chown(target, _USER, _USER, follow_symlinks=False)
        case _:
            (directory / "below").mkdir()
            target = directory / "below/pidfile"
            pidfile.rename(target)
            os.chown(directory, _USER, _USER)
    error = untrusted(f"pidfile:{target}")
    assert why in error.message
    assert f"sleep (PID {sleepers[0]})" in error.message


def test_pidfile_of_the_processes_user_is_accepted(tmp_path: Path) -> None:
    """A user who can change the file can end the process anyway."""
    user = pwd.getpwnam("www-data")  # Debian has it, alone in its group
    directory = tmp_path / "theirs"
    directory.mkdir()
    pidfile = directory / "pidfile"
    process = subprocess.Popen(["sleep", "60"], user=user.pw_uid, group=user.pw_gid, extra_groups=[])
    try:
        pidfile.write_text(str(process.pid))
        pidfile.chmod(0o644)
        for path in (directory, pidfile):
            os.chown(path, user.pw_uid, user.pw_gid)
        directory.chmod(0o2775)  # a group of that user's alone
        assert resolve(f"pidfile:{pidfile}") == process.pid
        os.chown(pidfile, 1, 1)
        assert "belongs to user" in untrusted(f"pidfile:{pidfile}").message
    finally:
        process.kill()
        process.wait()


def test_forged_restore_process_does_not_lead_to_a_tree_of_others(sleepers: tuple[int, int]) -> None:
    """Any parent of a restored tree may have that command line, such as one that has adopted the tree."""
    code = "import subprocess; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); child.wait()"
    words = ["python3", "-c", code, "/usr/bin/crckpt", "restore"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            record(child, ())
            assert resolve(str(parent.pid)) == parent.pid
            record(child, [parent.pid])
            assert resolve(str(parent.pid)) == child
        finally:
            os.killpg(parent.pid, 9)


def record(root: int, helpers: Iterable[int]) -> None:
    """Record a process as the root of a restored tree, and the process that waits for it."""
    process = proc.read_process(root)
    assert process is not None
    found = tuple(identity for pid in helpers if (identity := proc.identify(pid)) is not None)
    record_restored(
        RestoredTree(proc.identify_live_root(process), StoreId("store"), JobName("job"), CheckpointId("0" * 64), found)
    )


def test_pidfile_of_a_user_does_not_lead_to_a_tree_of_root(tmp_path: Path, sleepers: tuple[int, int]) -> None:
    """The file names a process of a user that claims to wait for a tree of root."""
    user = pwd.getpwnam("www-data")
    pidfile = tmp_path / "pidfile"
    process = subprocess.Popen(["sleep", "60"], user=user.pw_uid, group=user.pw_gid, extra_groups=[])
    try:
        record(sleepers[0], [process.pid])
        pidfile.write_text(str(process.pid))
        assert resolve(f"pidfile:{pidfile}") == sleepers[0]
        pidfile.chmod(0o644)
        os.chown(pidfile, user.pw_uid, user.pw_gid)
        assert f"sleep (PID {sleepers[0]})" in untrusted(f"pidfile:{pidfile}").message
    finally:
        process.kill()
        process.wait()


def test_own_pidfile_in_a_shared_directory_is_resolved(tmp_path: Path, sleepers: tuple[int, int]) -> None:
    """In /tmp, the creator of a file owns it."""
    directory = tmp_path / "everybody"
    directory.mkdir()
    directory.chmod(0o1777)
    (directory / "pidfile").write_text(str(sleepers[0]))
    (directory / "pidfile").chmod(0o644)
    assert resolve(f"pidfile:{directory}/pidfile") == sleepers[0]


def test_pidfile_that_is_a_fifo_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert "Not a regular file" in refused(f"pidfile:{tmp_path}/fifo").message


def test_pidfile_of_an_ended_process_is_refused(tmp_path: Path) -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    (tmp_path / "pidfile").write_text(str(ended.pid))
    assert f"there is no process {ended.pid}" in refused(f"pidfile:{tmp_path}/pidfile", TargetNotRunning).message


def test_pidfile_behind_endless_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "Too many levels" in refused(f"pidfile:{tmp_path}/loop").message


@pytest.mark.parametrize("content", [b"", b"\n", b"none", b"none\n13\n", b"\xff\xfe", b"99999999999999999999999"])
def test_pidfile_with_other_content_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pidfile").write_bytes(content)
    error = refused(f"pidfile:{tmp_path}/pidfile")
    assert f"pidfile:{tmp_path}/pidfile" in error.message
    assert error.hint == f"read it: cat {tmp_path}/pidfile"


def test_pidfile_with_more_than_a_pid_suggests_the_pid(tmp_path: Path) -> None:
    """PostgreSQL writes such pidfiles."""
    (tmp_path / "postmaster.pid").write_text("812\n/var/lib/postgresql/15/main\n1795660\n")
    hint = refused(f"pidfile:{tmp_path}/postmaster.pid").hint
    assert hint == "a pidfile contains nothing but a PID; name the PID itself: 812"


def test_target_that_is_a_missing_pidfile_is_refused(tmp_path: Path) -> None:
    assert "there is no pidfile" in refused(f"pidfile:{tmp_path}/none", TargetNotRunning).message
    assert "Is a directory" in refused(f"pidfile:{tmp_path}").message
    refused("pidfile:")


def cgroup(path: Path, *pids: int) -> Path:
    path.mkdir()
    (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return path


def test_cgroup_with_one_tree_is_resolved(tmp_path: Path, sleepers: tuple[int, int]) -> None:
    target = cgroup(tmp_path / "service", os.getpid())
    cgroup(target / "below", sleepers[0])
    (target / "no cgroup").mkdir()
    assert resolve(f"cgroup:{target}") == os.getpid()
    assert resolve(f"cgroup:{target}/below") == sleepers[0]


def test_cgroup_with_two_trees_lists_them(tmp_path: Path, sleepers: tuple[int, int]) -> None:
    error = refused(f"cgroup:{cgroup(tmp_path / 'service', *sleepers)}")
    assert all(str(pid) in error.message for pid in sleepers)


def test_forged_cgroup_directory_is_refused(tmp_path: Path, sleepers: tuple[int, int]) -> None:
    theirs = cgroup(tmp_path / "service", sleepers[0])
    os.chown(theirs, _USER, _USER)
    assert "is not a control group" in untrusted(f"cgroup:{theirs}").message


def test_target_that_is_an_empty_cgroup_is_refused(tmp_path: Path) -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    # 0 stands for a process of another pid namespace.
    group = cgroup(tmp_path / "service", 0, ended.pid)
    assert "has no process" in refused(f"cgroup:{group}", TargetNotRunning).message


def test_target_that_is_a_missing_cgroup_is_refused(tmp_path: Path) -> None:
    assert "there is no cgroup" in refused(f"cgroup:{tmp_path}/none", TargetNotRunning).message
    assert "there is no cgroup" in refused("cgroup:/crckpt-no-such-cgroup", TargetNotRunning).message


def answers(systemctl: Path, text: str) -> None:
    """Let systemctl print this for the expected query of the unit `-web` or `web`."""
    asked = "show --property=Id,LoadState,ActiveState,SubState,MainPID,ControlGroup -- "
    systemctl.write_text(f"""#!/bin/sh
case "$*" in "{asked}"-web|"{asked}"web) ;; *) echo "asked: $*"; exit 1 ;; esac
/bin/cat <<'END'
{text}
END
""")


SERVICE = "Id={}\nLoadState=loaded\nActiveState={}\nSubState={}\nMainPID={}\nControlGroup={}\n"


def test_target_that_is_a_unit_is_resolved(systemctl: Path) -> None:
    answers(systemctl, SERVICE.format("-web.service", "active", "running", 77, "/system.slice/-web.service"))
    assert resolve("unit:-web") == 77


def test_unit_with_a_warning_is_resolved(systemctl: Path) -> None:
    answers(systemctl, "Warning: changed on disk\n" + SERVICE.format("web.service", "active", "running", 78, "/x"))
    assert resolve("unit:web") == 78


def test_target_that_is_an_inactive_unit_is_refused(systemctl: Path) -> None:
    answers(systemctl, SERVICE.format("web.service", "inactive", "dead", 0, ""))
    error = refused("unit:web", TargetNotRunning)
    assert "web.service has no process now: it is inactive (dead)" in error.message
    assert error.hint == "see why: systemctl status web.service"


def test_unit_without_a_main_process_suggests_its_cgroup(systemctl: Path) -> None:
    answers(systemctl, SERVICE.format("web.service", "active", "running", 0, "/system.slice/web.service"))
    assert refused("unit:web").hint == "name its cgroup: cgroup:/system.slice/web.service"


def test_unit_that_is_not_a_service_is_refused(systemctl: Path) -> None:
    answers(systemctl, "Id=web.socket\nLoadState=loaded\nActiveState=active\nSubState=listening\nControlGroup=\n")
    assert "web.socket is not a service" in refused("unit:web").message


def test_target_that_is_an_unknown_unit_is_refused(systemctl: Path) -> None:
    answers(systemctl, SERVICE.format("web.service", "inactive", "dead", 0, "").replace("=loaded", "=not-found"))
    assert "there is no unit web.service" in refused("unit:web").message


def test_target_with_an_ambiguous_unit_name_is_refused(systemctl: Path) -> None:
    units = [SERVICE.format(f"{name}.service", "active", "running", 5, "/x") for name in ("web1", "web2")]
    answers(systemctl, "\n".join(units))
    assert "but names web1.service, web2.service" in refused("unit:web").message
    answers(systemctl, "")
    assert "but names none" in refused("unit:web").message


def test_error_of_a_failing_systemctl_is_quoted(systemctl: Path) -> None:
    systemctl.write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    assert "Failed to connect to bus" in refused("unit:web").message


@pytest.mark.usefixtures("commands")
def test_target_that_is_a_unit_needs_systemd() -> None:
    with pytest.raises(HostCannot, match="cannot run systemctl"):
        resolve("unit:web")
