"""The private directory is private, and one of others is not used."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from other_user import NOBODY, as_user
from trees import open_workdir

from crckpt.host.disk import own_files

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user: root's is /run/crckpt")


def as_nobody(monkeypatch: pytest.MonkeyPatch, check: Callable[[Path], object]) -> None:
    """Run `check`, as a user with a directory of their own, with where the private directory is."""
    with open_workdir() as workdir:
        os.chown(workdir, NOBODY, NOBODY)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(workdir))
        as_user(lambda: check(workdir / f"crckpt-{NOBODY}"))


def test_runtime_directory_is_private_whatever_the_umask(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(top: Path) -> None:
        os.umask(0)
        own_files.make_runtime_directory(top / "keepers/1-2")
        for path in (top, top / "keepers"):
            assert path.stat().st_mode & 0o777 == 0o700

    as_nobody(monkeypatch, check)


@pytest.mark.parametrize("name", ["", "keepers"])
def test_runtime_directory_of_another_user_is_not_used(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def check(top: Path) -> None:
        wanted = top / "keepers/1-2"
        own_files.make_runtime_directory(wanted)
        (top / name).chmod(0o777)
        with pytest.raises(PermissionError):
            own_files.make_runtime_directory(wanted)
        (top / name).chmod(0o700)
        (top.parent / "elsewhere").mkdir()
        (top / name).rename(top.parent / "gone")
        (top / name).symlink_to(top.parent / "elsewhere")
        with pytest.raises(PermissionError):
            own_files.make_runtime_directory(wanted)

    as_nobody(monkeypatch, check)
