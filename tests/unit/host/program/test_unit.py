"""A process has the name of its service only if it is the service's own: real processes in real control groups."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from crckpt.host.process.cgroups import find_service

MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/systemd"))


@pytest.fixture
def slice_() -> Iterator[Path]:
    """A control group of systemd's hierarchy."""
    for mount in MOUNTS:
        directory = mount / f"crckpt-test-{secrets.token_hex(4)}.slice"
        with suppress(OSError):
            directory.mkdir()
            if (directory / "cgroup.procs").exists():
                break
            directory.rmdir()
    else:
        pytest.skip("no control group can be made here")
    yield directory
    for below in sorted(directory.rglob("*"), reverse=True):
        if below.is_dir():
            below.rmdir()
    directory.rmdir()


@pytest.fixture
def shell() -> Iterator[subprocess.Popen[str]]:
    """A process that starts a child for each line, and prints its PID."""
    code = 'while read -r word; do sleep 1000 & pids="$pids $!"; echo $!; done; [ -z "$pids" ] || kill $pids; wait'
    with subprocess.Popen(["sh", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def start_child(shell: subprocess.Popen[str]) -> int:
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write("child\n")
    shell.stdin.flush()
    return int(shell.stdout.readline())


def put(pid: int, group: Path) -> None:
    group.mkdir(exist_ok=True)
    (group / "cgroup.procs").write_text(str(pid))


def path_of(group: Path) -> str:
    return f"/{group.parent.name}/{group.name}"


def test_only_the_main_process_of_a_unit_counts_as_the_service(slice_: Path, shell: subprocess.Popen[str]) -> None:
    service = slice_ / "web@1.service"
    put(shell.pid, service)
    child = start_child(shell)
    assert find_service(shell.pid) == path_of(service)
    assert find_service(child) == ""


def test_process_in_a_nested_control_group_belongs_to_the_service(slice_: Path, shell: subprocess.Popen[str]) -> None:
    service = slice_ / "web.service"
    service.mkdir()
    put(shell.pid, service / "main")
    put(start_child(shell), service / "workers")
    assert find_service(shell.pid) == path_of(service)


def test_job_started_by_another_program_is_not_the_service(slice_: Path, shell: subprocess.Popen[str]) -> None:
    """cron starts such jobs. They are not the service even after their parent has ended."""
    service = slice_ / "cron.service"
    put(shell.pid, service)
    with subprocess.Popen(["sleep", "1000"]) as orphan:
        put(orphan.pid, service)
        assert find_service(orphan.pid) == find_service(shell.pid) == ""
        orphan.kill()


@pytest.mark.parametrize("name", ["session-3.scope", "run-u17.service", "run-r0123abcd.service", "run-p1-i2.service"])
def test_invalid_unit_names_are_ignored(slice_: Path, shell: subprocess.Popen[str], name: str) -> None:
    put(shell.pid, slice_ / name)
    assert find_service(shell.pid) == ""


def test_scope_in_a_service_is_not_a_service(slice_: Path, shell: subprocess.Popen[str]) -> None:
    """A terminal in a user's session: user@1000.service/app-terminal-1.scope."""
    manager = slice_ / "user@1000.service"
    manager.mkdir()
    put(shell.pid, manager / "app-terminal-1.scope")
    assert find_service(shell.pid) == ""


def test_ended_process_has_no_service() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        assert find_service(process.pid) == ""
