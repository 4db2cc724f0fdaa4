"""Units under a real systemd: boots one in private namespaces and runs under_systemd.py inside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from effort import EXTENT

PROJECT = Path(__file__).resolve().parents[2]
LAB = PROJECT / "scripts/lab/systemd"
INSIDE = PROJECT / "tests/lab/under_systemd.py"
CANNOT = 20


@pytest.fixture(autouse=True, scope="module")
def lab_works() -> None:
    """Skip with the lab's own words where it says that this machine cannot."""
    result = run_lab("true")
    if result.returncode == CANNOT:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stdout + result.stderr


def test_tests_of_systemd_units_pass_in_the_systemd_lab() -> None:
    """Every test of under_systemd.py that is to run passes inside, and none is skipped."""
    options = [
        "-p",
        "no:cacheprovider",
        "-o",
        "pythonpath=scripts tests/support tests/programs",
        "--limit=60",
        "-q",
        "-rA",
    ]
    environment = ("env", "PYTHONDONTWRITEBYTECODE=1", "CRCKPT_TESTS_ON_HOST=1", f"CRCKPT_EXTENT={EXTENT}")
    result = run_lab(*environment, sys.executable, "-m", "pytest", *options, str(INSIDE))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "SKIPPED" not in result.stdout
    assert "PASSED" in result.stdout


def test_systemd_lab_passes_arguments_output_and_status_on() -> None:
    """The command runs in this directory, with its arguments unchanged, under systemd."""
    result = run_lab("sh", "-c", 'cat /proc/1/comm; pwd; echo "$1"; echo said >&2; exit 7', "_", "two  'words'\n$HOME")
    assert (result.returncode, result.stdout) == (7, f"systemd\n{PROJECT}\ntwo  'words'\n$HOME\nsaid\n")


def test_systemd_lab_does_not_change_kernel_settings() -> None:
    """systemd sets fs.file-max at boot, and sysctl.d of packages sets more: the machine must keep its settings."""
    setting = Path("/proc/sys/fs/file-max")
    before = setting.read_text()
    try:
        setting.write_text("3000000\n")
        result = run_lab("cat", str(setting))
        assert (result.stdout, setting.read_text()) == ("3000000\n", "3000000\n")
    finally:
        setting.write_text(before)


def test_interrupted_systemd_lab_leaves_nothing(tmp_path: Path) -> None:
    """No process, cgroup, mount or file is left; a daemon that the lab started also ends."""
    show = "systemd-run -q sleep 1000; findmnt -no OPTIONS /; exec sleep 1000"
    with subprocess.Popen(
        [str(LAB), "bash", "-c", show], stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as lab:
        assert lab.stdout is not None
        assert str(tmp_path) in lab.stdout.readline()
        (directory,) = tmp_path.iterdir()
        cgroups = list(Path("/sys/fs/cgroup").rglob(directory.name))
        assert cgroups, "the lab has no cgroup of its own"
        lab.send_signal(signal.SIGTERM)
        assert lab.wait(20) == 130
    # A cgroup cannot be removed while a process lives in it.
    assert not any(cgroup.exists() for cgroup in cgroups)
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def run_lab(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command under the lab's systemd, in the project's directory."""
    return subprocess.run(
        [str(LAB), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=PROJECT,
    )
