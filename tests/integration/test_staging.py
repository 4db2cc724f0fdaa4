"""The directory of a dump's images before they are stored, and its free space."""

import os
import signal
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from small_disk import mounted_disk
from stopped_trees import JOB, staging
from trees import Tree

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

USAGE: Final = 2
REFUSED: Final = 24


@pytest.fixture
def staging_directory(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere"
    path.mkdir(mode=0o755)
    (path / "somebody's").touch()
    return path


def test_images_are_staged_in_the_given_directory(crckpt: Crckpt, tree: Tree, staging_directory: Path) -> None:
    """Only root can enter the directory, and it is removed after the dump."""
    with crckpt.start(
        "dump", str(tree.pid), JOB, "--staging", str(staging_directory), CRCKPT_STOP_AT="manifest.create"
    ) as dump:
        os.waitid(os.P_PID, dump.pid, os.WSTOPPED)
        (staged,) = staging_directory.glob("crckpt-*")
        assert staged.stat().st_mode & 0o777 == 0o700
        assert list(staged.glob("images/pages-*.img"))
        assert not list(crckpt.store.glob("tmp/*/images"))
        dump.send_signal(signal.SIGCONT)
        assert dump.wait(60) == 0
    assert [path.name for path in staging_directory.iterdir()] == ["somebody's"]
    tree.wait_growth(tree.counters())
    crckpt.run("verify", "--all")


def test_next_dump_removes_staged_images_of_a_killed_one(crckpt: Crckpt, tree: Tree, staging_directory: Path) -> None:
    words = ("dump", str(tree.pid), JOB, "--staging", str(staging_directory))
    crckpt.run(*words, status=-signal.SIGKILL, CRCKPT_KILL_AT="manifest.create")
    assert list(staging_directory.glob("crckpt-*/images/pages-*.img"))
    crckpt.run(*words)
    assert [path.name for path in staging_directory.iterdir()] == ["somebody's"]
    crckpt.run("gc")
    assert staging(crckpt) == ()


def test_gc_removes_staged_images_of_a_killed_dump(crckpt: Crckpt, tree: Tree, staging_directory: Path) -> None:
    words = ("dump", str(tree.pid), JOB, "--staging", str(staging_directory))
    crckpt.run(*words, status=-signal.SIGKILL, CRCKPT_KILL_AT="manifest.create")
    (left,) = staging_directory.glob("crckpt-*")
    assert str(left) in crckpt.run("gc", "--json").document["result"]["leftovers"]
    assert [path.name for path in staging_directory.iterdir()] == ["somebody's"]
    assert staging(crckpt) == ()


def test_dump_does_not_touch_files_of_others_in_a_staging_directory_that_all_can_write(
    crckpt: Crckpt, tree: Tree, staging_directory: Path
) -> None:
    """In a directory writable by all, another user could make us remove other files, or wait forever."""
    for name, mode in (("crckpt-theirs", 0o700), ("crckpt-open", 0o755)):
        (staging_directory / name).mkdir()
        (staging_directory / name).chmod(mode)
        os.mkfifo(staging_directory / name / "owner.json")
    os.chown(staging_directory / "crckpt-theirs", 65534, 65534)
    (staging_directory / "crckpt-link").symlink_to(crckpt.store)
    crckpt.run("dump", str(tree.pid), JOB, "--staging", str(staging_directory))
    assert len(list(staging_directory.glob("crckpt-*"))) == 3


def test_failed_dump_leaves_nothing_in_the_staging_directory(
    crckpt: Crckpt, tree: Tree, staging_directory: Path
) -> None:
    words = ("dump", str(tree.pid), JOB, "--staging", str(staging_directory), "--stop")
    with mounted_disk(staging_directory, "60m", "noexec"):
        crckpt.run(*words)  # the hold's script lies in the store
        assert not list(staging_directory.iterdir())


def test_too_little_staging_space_is_refused_with_numbers(crckpt: Crckpt, tree: Tree, staging_directory: Path) -> None:
    words = ("dump", str(tree.pid), JOB, "--staging", str(staging_directory))
    with mounted_disk(staging_directory, "2m"):
        error = crckpt.run(*words, "--json", status=REFUSED).document["error"]
        assert f"{staging_directory} has only 2.0 MiB free" in error["message"]
        assert "--staging" in error["hint"]
        assert not list(staging_directory.iterdir())
        assert not crckpt.store.exists()
        crckpt.run(*words, "--dry-run", status=REFUSED)
    tree.wait_growth(tree.counters())


def test_path_for_staging_must_be_a_directory(crckpt: Crckpt, tree: Tree, staging_directory: Path) -> None:
    for path in (staging_directory / "missing", staging_directory / "somebody's"):
        result = crckpt.run("dump", str(tree.pid), JOB, "--staging", str(path), status=USAGE)
        assert f"{path} is not a directory" in result.err


def test_staging_directory_that_others_can_replace_is_refused(
    crckpt: Crckpt, tree: Tree, staging_directory: Path
) -> None:
    """The owner of the parent directory could replace it by a link, and root would write memory of a program there."""
    (staging_directory / "below").mkdir()
    os.chown(staging_directory, 65534, 65534)
    result = crckpt.run("dump", str(tree.pid), JOB, "--staging", str(staging_directory / "below"), status=USAGE)
    assert f"{staging_directory} belongs to user nobody" in result.err
    os.chown(staging_directory, 0, 0)
    staging_directory.chmod(0o777)
    result = crckpt.run("dump", str(tree.pid), JOB, "--staging", str(staging_directory), status=USAGE)
    assert f"every user can write to {staging_directory}" in result.err
    staging_directory.chmod(0o1777)
    crckpt.run("dump", str(tree.pid), JOB, "--staging", str(staging_directory))
    assert sorted(path.name for path in staging_directory.iterdir()) == ["below", "somebody's"]
