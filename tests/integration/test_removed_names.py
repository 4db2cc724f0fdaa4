"""Files and directories that lost the name by which a program opened them are restored with the program."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from stopped_trees import BY_NAME, JOB, ObstructedCriu, stopped
from trees import NOBODY, PYTHON, Case, open_workdir, started, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

FAILED: Final = 23
REFUSED: Final = 24
AS_NOBODY: Final = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory for all users, as /tmp is."""
    with open_workdir() as place:
        place.chmod(0o1777)
        yield place
        for path in Path("/dev/shm").glob("sem.crckpt-*"):
            path.unlink()


def other_names(place: Path, other: str = ".", *words: str, user: int = 0) -> Case:
    """A program with such files, whose other name is in the directory `other`."""
    (place / other).mkdir(exist_ok=True)
    (place / other).chmod(0o1777)
    argv = (PYTHON, "{programs}/other_names.py", "{workdir}", str(place), str(place / other), *words)
    return Case("other-names", (*(AS_NOBODY if user else ()), *argv), user=user)


@pytest.mark.parametrize("user", [0, NOBODY])
def test_renamed_files_in_a_shared_directory_are_restored(crckpt: Crckpt, place: Path, user: int) -> None:
    """CRIU links the files under their old names. The restored program has the same files, also as another user."""
    with stopped(crckpt, other_names(place, "inner", "sem", user=user)) as tree:
        before = tree.counters()
        crckpt.run("rehearse", JOB, "--seconds", "0.2")
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        assert sorted(path.name for path in place.rglob("*")) == [f"file-{tree.pid}", "inner"]


def test_two_programs_with_files_of_the_same_removed_name_are_both_restored(crckpt: Crckpt, place: Path) -> None:
    """The second program opens and removes a file of the same name once the first has been stopped."""
    with started(other_names(place, "inner")) as one:
        crckpt.run("dump", str(one.pid), "one", "--stop")
        one.wait_gone()
        with started(other_names(place, "inner")) as two:
            crckpt.run("dump", str(two.pid), "two", "--stop")
            two.wait_gone()
            for job, tree in (("one", one), ("two", two)):
                before = tree.counters()
                crckpt.run("restore", job, "--detach")
                tree.wait_growth(before)


def test_running_dump_warns_that_it_cannot_be_restored(crckpt: Crckpt, place: Path) -> None:
    """CRIU removes the link of a removed file when the program continues, also if the file is only mapped."""
    with started(other_names(place, "inner")) as tree:
        before = tree.counters()
        output = crckpt.run("dump", str(tree.pid), JOB).out
        assert f"{place}/file was removed but has a name in another directory" in output
        assert "the tree keeps running; this checkpoint cannot be restored\n" in output
        assert "bring it back with" not in output
        tree.wait_growth(before)
        tree.end()
        tree.wait_gone()
        refused = crckpt.run("restore", JOB, "--detach", status=REFUSED).err
        assert f"by which CRIU finds the removed file {place}/file" in refused
        assert "put it back" not in refused


def test_removed_name_is_linked_again_from_another_name_in_its_directory(crckpt: Crckpt, place: Path) -> None:
    """CRIU removes the link when the program continues, and after a restore."""
    with started(other_names(place, ".", "sem")) as tree:
        before = tree.counters()
        assert "bring it back with" in crckpt.run("dump", str(tree.pid), JOB).out
        tree.wait_growth(before)
        for _ in range(2):
            tree.end()
            tree.wait_gone()
            crckpt.run("rehearse", JOB, "--seconds", "0.2")
            crckpt.run("restore", JOB, "--detach", "--written", "keep")
            wait_for(lambda: tree.sound_parts()[""].counter > before[""], 60, "the program to go on")
            assert [path.name for path in place.iterdir()] == [f"file-{tree.pid}"]


def test_failed_restore_removes_the_link_that_it_created(
    crckpt: Crckpt, place: Path, obstructed: ObstructedCriu
) -> None:
    """A second restore creates the link again."""
    with started(other_names(place)) as tree:
        before = tree.counters()
        crckpt.run("dump", str(tree.pid), JOB)
        tree.end()
        tree.wait_gone()
        words = ("restore", JOB, "--detach", "--written", "keep")
        with obstructed.fails(committed=False):
            crckpt.run(*words, "--criu", str(obstructed.path), status=FAILED)
        assert [path.name for path in place.iterdir()] == [f"file-{tree.pid}"]
        crckpt.run(*words)
        wait_for(lambda: tree.sound_parts()[""].counter > before[""], 60, "the program to go on")


def test_restore_does_not_change_a_directory_that_was_created_again(crckpt: Crckpt) -> None:
    """CRIU would give the directory its old owner and mode, and remove it."""
    with stopped(crckpt, BY_NAME["deleted-files"]) as tree:
        again, before = tree.workdir / "scratch", tree.counters()
        again.mkdir(mode=0o700)
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        assert stat.S_IMODE(again.stat().st_mode) == 0o700
        assert [path.name for path in tree.workdir.iterdir() if "ghost" in path.name] == []
