"""scripts/install and scripts/uninstall where something is missing: one sentence, what to do next, nothing changed.

tests/integration/test_provision.py installs for real; scripts/lab/packages does so on fresh trees of Debian.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
from checkout import PROJECT
from other_user import NOBODY

CANNOT = 20
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


def run(*words: str | Path, status: int, before: tuple[str, ...] = (), script: str = "install") -> str:
    """Run the script; return its output."""
    argv = [*before, str(PROJECT / "scripts" / script), *map(str, words)]
    result = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr


def python_that(folder: Path, body: str) -> Path:
    """Write a script that replaces Python."""
    folder.mkdir(mode=0o755)
    python = folder / "python3"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    return python


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that others can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="crckpt-install-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def prefix(folder: Path) -> Path:
    """A prefix to install below."""
    return folder / "prefix"


def test_installation_with_an_old_python_is_refused(prefix: Path, folder: Path) -> None:
    python = python_that(folder / "old", '[ "$1" = --version ] && echo Python 3.9.2 || exit 1')
    output = run("--prefix", prefix, "--python", python, status=CANNOT)
    assert output.startswith(f"scripts/install: Python 3.9.2 at {python} is too old: crckpt needs 3.11\n  next: ")
    assert not prefix.exists()


def test_installation_with_a_python_without_venv_is_refused(prefix: Path, folder: Path) -> None:
    python = python_that(folder / "bare", "case $* in *venv*) exit 1 ;; esac")
    output = run("--prefix", prefix, "--python", python, status=CANNOT)
    assert output == f"scripts/install: {python} has no venv\n  next: apt-get install python3-venv\n"
    assert not prefix.exists()


def test_installation_with_a_python_that_others_cannot_run_is_refused(prefix: Path, folder: Path) -> None:
    python = python_that(folder / "mine", "exit 0")
    python.parent.chmod(0o700)
    output = run("--prefix", prefix, "--python", python, status=CANNOT)
    assert f"other users cannot run {python}: {python.parent} is closed to them" in output
    assert not prefix.exists()


def test_failed_step_of_an_installation_is_reported_in_one_line_and_undone(prefix: Path, folder: Path) -> None:
    python = python_that(
        folder / "full", 'case $3 in venv) echo "OSError: No space left on device" >&2; exit 1 ;; esac'
    )
    output = run("--prefix", prefix, "--python", python, status=CANNOT)
    assert "making a Python environment failed: No space left on device\n  next: make room on the disk of " in output
    assert list((prefix / "lib/crckpt/versions").iterdir()) == []
    assert "crckpt is removed from" in run("--prefix", prefix, status=0, script="uninstall")
    assert not prefix.exists()


def test_installation_reports_a_missing_write_permission(prefix: Path) -> None:
    prefix.mkdir(mode=0o555)
    output = run("--prefix", prefix, status=CANNOT, before=AS_NOBODY)
    assert f"you cannot write to {prefix}\n  next: sudo scripts/install" in output


def test_installation_script_with_invalid_arguments_prints_its_usage(folder: Path) -> None:
    assert "Usage: scripts/install [OPTION...] [WHEEL]" in run("--nonsense", status=2)
    assert "Usage: scripts/install [OPTION...] [WHEEL]" in run("--prefix", status=2)
    assert "next: make one: scripts/build-wheel" in run(folder / "none.whl", status=CANNOT)
    assert "usage: scripts/uninstall" in run("--nonsense", status=2, script="uninstall")
    assert "is not installed" in run("--prefix", folder / "nowhere", status=0, script="uninstall")


def test_root_does_not_import_from_the_current_directory(prefix: Path, folder: Path) -> None:
    """The current directory may be /tmp, where any user can create a module."""
    here = folder / "here"
    here.mkdir()
    (here / "venv.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    body = f'echo "$1" >>{folder}/options; case $* in *"-m venv"*) exit 1 ;; esac; exec /usr/bin/python3 "$@"'
    python = python_that(folder / "real", body)
    output = run("--prefix", prefix, "--python", python, status=CANNOT, before=("env", "-C", str(here)))
    assert "making a Python environment failed" in output
    assert not (folder / "ran").exists()
    assert set((folder / "options").read_text().split()) == {"-I", "--version"}


def test_root_does_not_install_into_a_prefix_where_others_can_replace_files(folder: Path) -> None:
    """Other users could replace a program that the installation runs."""
    theirs = folder / "theirs"
    program = theirs / "lib/crckpt/venv/bin/crckpt"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ntouch {folder}/ran\n")
    program.chmod(0o755)
    for path in (theirs, *theirs.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    output = run("--prefix", theirs, status=CANNOT)
    assert f"root does not install where others can replace programs: {theirs}" in output
    assert "root runs nothing that others can replace" in run("--prefix", theirs, status=CANNOT, script="uninstall")
    python = python_that(folder / "replaceable", "exit 0")
    os.chown(python, NOBODY, NOBODY)
    output = run("--prefix", folder / "prefix", "--python", python, status=CANNOT)
    assert f"another user can replace {python}, and root would run {python}" in output
    assert not (folder / "ran").exists()
    assert not (folder / "prefix").exists()


def test_other_users_cannot_block_an_installation(prefix: Path, folder: Path) -> None:
    """A user who can open a file can lock it, and the lock of an older version was open to all."""
    lock = prefix / "lib/crckpt/.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    python = python_that(folder / "full", "case $3 in venv) exit 1 ;; esac")
    with subprocess.Popen([*AS_NOBODY, "flock", lock, "sh", "-c", "echo; cat"], stdin=PIPE, stdout=PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.read(1)
        output = run("--prefix", prefix, "--python", python, status=CANNOT, before=("timeout", "60"))
        assert "waiting for another" not in output
        assert lock.stat().st_mode & 0o777 == 0o600
