"""Directories that another process of ours is to remove."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from image_sets import open_store

from crckpt.errors import HostCannot
from crckpt.store import handed_over
from crckpt.store.owner import read_owner
from crckpt.store.transaction import find_unused_transactions, staged


def test_temporary_directory_that_was_handed_over_has_an_owner(tmp_path: Path) -> None:
    with handed_over(tmp_path, os.getppid()) as path:
        pass
    owner = read_owner(path / "owner.json")
    assert owner is not None
    assert (owner.pid, owner.is_alive) == (os.getppid(), True)
    assert path.stat().st_mode & 0o777 == 0o700


def test_temporary_directory_is_removed_if_not_handed_over(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), handed_over(tmp_path, os.getpid(), outside=True):
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []


def test_temporary_directory_cannot_be_handed_over_to_an_ended_process(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(HostCannot, match=f"PID {child} has ended"), handed_over(tmp_path, child):
        pass
    assert list(tmp_path.iterdir()) == []


def test_temporary_directory_is_in_use_while_a_process_works_in_it(tmp_path: Path) -> None:
    """An orphaned CRIU works in the directory. Links on the path to the store do not matter."""
    (tmp_path / "link").symlink_to(tmp_path)
    images = tmp_path / "tmp/1-dead/images"
    images.mkdir(parents=True)
    (tmp_path / "tmp/1-dead2").mkdir()
    with subprocess.Popen(["sleep", "60"], cwd=images, stdin=subprocess.DEVNULL) as criu:
        assert [path.name for path in find_unused_transactions(tmp_path / "link/tmp")] == ["1-dead2"]
        criu.kill()
    assert [path.name for path in find_unused_transactions(tmp_path / "link/tmp")] == ["1-dead", "1-dead2"]


@pytest.mark.skipif(os.geteuid() != 0, reason="root can surely have mounts of its own")
def test_temporary_directory_with_a_namesake_in_another_mount_namespace_is_not_in_use(tmp_path: Path) -> None:
    """Any user can mount a directory with that path in an own mount namespace."""
    dead = tmp_path / "tmp/1-dead"
    dead.mkdir(parents=True)
    code = 'mount -t tmpfs none "$1" && mkdir -p "$1/tmp/1-dead" && cd "$1/tmp/1-dead" && pwd && read line'
    words = ("unshare", "--mount", "--propagation", "private", "sh", "-c", code, "sh", str(tmp_path))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        if user.stdout.readline() != f"{dead}\n".encode():
            pytest.skip("nothing can be mounted here")
        assert Path(f"/proc/{user.pid}/cwd").readlink() == dead
        assert find_unused_transactions(tmp_path / "tmp") == (dead,)
        user.communicate()


def test_temporary_directory_of_a_transaction_is_removed_at_the_end_of_its_block(tmp_path: Path) -> None:
    repository = open_store(tmp_path)

    def fail() -> None:
        with repository.transaction() as begun:
            (begun / "images").mkdir(mode=0o500)
            assert list((repository.root / "tmp").iterdir()) == [begun]
            assert begun.stat().st_mode & 0o777 == 0o700
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list((repository.root / "tmp").iterdir()) == []


def test_link_to_a_directory_in_use_is_not_in_use(tmp_path: Path) -> None:
    (tmp_path / "planted").symlink_to(Path.cwd())
    assert [path.name for path in find_unused_transactions(tmp_path)] == ["planted"]


def test_staging_directory_stays_while_a_command_names_it(tmp_path: Path) -> None:
    """An orphaned CRIU may still write its images to the directory."""
    with subprocess.Popen(["sleep", "60"]) as crckpt:
        with handed_over(tmp_path, crckpt.pid, outside=True) as path:
            pass
        crckpt.kill()
    argv = ["sh", "-c", "echo ready; read line", "criu", f"{path}/images"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as criu:
        assert criu.stdout is not None
        criu.stdout.readline()  # just after exec the kernel shows no words yet
        with staged(tmp_path):
            assert path.exists()
        criu.communicate()
    with staged(tmp_path):
        assert not path.exists()
