"""Suitable directories for a store and for staging."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crckpt.host.probes import setup
from crckpt.host.probes.trial import missing

IS_ROOT = os.geteuid() == 0
AS_ROOT = pytest.mark.skipif(not IS_ROOT, reason="needs root")


def test_store_must_be_closed_to_other_users(tmp_path: Path) -> None:
    absent = setup.store(tmp_path / "a b/store")
    assert absent.state == "ok"
    assert absent.found.startswith(f"{tmp_path}/a b/store does not exist yet; the first dump makes it: ")
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o755)
    assert setup.store(tmp_path).state == "ok"
    (tmp_path / "store.json").touch()
    assert setup.store(tmp_path) == missing(
        f"{tmp_path} is open to other users (mode {tmp_path.stat().st_mode & 0o777:o})",
        "nothing can be stored",
        f"chmod 700 {tmp_path}",
        safe=True,
    )
    assert setup.store(tmp_path / "store.json").state == "missing"
    assert not setup.store(tmp_path / "store.json").safe


@AS_ROOT
def test_store_in_memory_is_reported(tmp_path: Path) -> None:
    mounted = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        'mount -t "$1" none "$0" && shift && exec "$@"',
    ]
    script = "from crckpt.host.probes import setup; print(*map(setup.store, map(Path, sys.argv[1:])))"
    for kind, state in (("tmpfs", "limited"), ("ramfs", "limited")):
        program = f"import sys; from pathlib import Path\n{script}"
        result = subprocess.run(
            [*mounted, str(tmp_path), kind, sys.executable, "-c", program, str(tmp_path), f"{tmp_path}/new"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.count(f"state='{state}'") == 2
        assert f" {kind} " in result.stdout


@AS_ROOT
def test_store_on_a_read_only_mount_is_reported(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from crckpt.host.probes import setup; "
        "print(setup.store(Path(sys.argv[1])))"
    )
    mounted = 'mount -t tmpfs -o ro none "$0" && exec "$@"'
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, str(tmp_path), sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{tmp_path} is on a read-only mount" in result.stdout


@AS_ROOT
def test_store_below_a_closed_directory_has_no_safe_fix(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        outcome = setup.store(closed / "store")
    finally:
        os.seteuid(0)
    assert (outcome.state, outcome.safe) == ("missing", False)


def test_store_where_nothing_can_be_created_is_reported() -> None:
    """The modes of /proc and of a file do not matter."""
    for below in (Path("/proc"), Path(__file__)):
        outcome = setup.store(below / "store")
        assert outcome.state == "missing"
        assert f"{below}/store does not exist and cannot be made below {below}: " in outcome.found


def test_missing_staging_directory_has_a_fix(tmp_path: Path) -> None:
    assert setup.staging(None, tmp_path / "store").found.startswith("during a dump images are in the store: ")
    assert setup.staging(tmp_path, tmp_path).state == "ok"
    assert setup.staging(tmp_path / "none", tmp_path).fix == f"mkdir {tmp_path}/none"
