"""A restored tree must have its own files open: a user may have put a link in the place of one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from other_user import NOBODY
from own_process import descriptors
from recorded_images import RECORDED
from small_programs import WAIT_STATEMENTS, program
from trees import open_workdir

from crckpt.errors import RestoreFailed
from crckpt.host.disk.users import read_link_target
from crckpt.images.core import ZOMBIE, Credentials
from crckpt.images.regfile import LINKED, RegularFile, Remap
from crckpt.images.tree import ImageTree, OpenDescriptor
from crckpt.ops.restore.open_files import RecordedFiles, check_open_files

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")

SECRET = 0o600
FD = 50
USER = 65533


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of another user that all may enter, with a file of root's that only root may read."""
    with open_workdir() as base:
        (base / "users").mkdir(mode=0o755)
        (base / "users/file").write_text("content")
        (base / "users/file").chmod(SECRET)
        (base / "secret").write_text("secret")
        (base / "secret").chmod(SECRET)
        os.chown(base / "users", NOBODY, NOBODY)
        yield base / "users"


@contextmanager
def restored(path: Path, uid: int = 0, flags: int = os.O_RDONLY) -> Iterator[ImageTree]:
    """A program that has opened what is at `path` now, and the images of a tree of user `uid` that had it open."""
    file = RegularFile(id=1000, path=str(path), flags=flags, pos=0, size=None, mode=None, build_id="", external=False)
    code = f"os.dup2(os.open({str(path)!r}, {flags}), {FD})"
    with program(f"{code}\n{WAIT_STATEMENTS}") as process:
        thread = RECORDED.root.threads[0]
        core = replace(thread.core, credentials=Credentials(uid, uid, uid, uid, (uid,)))
        root = replace(
            RECORDED.root,
            pid=process.pid,
            threads=(replace(thread, tid=process.pid, core=core),),
            descriptors=(OpenDescriptor(FD, file, close_on_exec=False),),
            memory=None,
            exe=None,
            cwd=None,
            root=None,
        )
        yield replace(RECORDED, processes=(root,), files=(file,))


def recorded_as(path: Path, writes: int = 0) -> RecordedFiles:
    found = path.stat()
    return RecordedFiles({str(path): [(found.st_dev, found.st_ino, writes)]})


def check(tree: ImageTree, known: RecordedFiles) -> None:
    before = descriptors()
    try:
        assert check_open_files(tree, known, None, allow_weaker=False) == ()
    finally:
        assert descriptors() == before


def test_restored_file_that_belongs_to_the_user_of_the_tree_is_accepted(place: Path) -> None:
    with restored(place / "file") as tree:
        check(tree, recorded_as(place / "file"))


def test_link_planted_in_place_of_a_restored_file_is_refused(place: Path) -> None:
    known = recorded_as(place / "file")
    (place / "file").unlink()
    (place / "file").symlink_to(place.parent / "secret")
    with restored(place / "file") as tree:
        with pytest.raises(RestoreFailed) as refused:
            check(tree, known)
        (finding,) = check_open_files(tree, known, None, allow_weaker=True)
    assert refused.value.message == f"{finding.what}; nothing is left behind"
    assert f"{place}/file" in finding.what
    assert f"{place.parent}/secret" in finding.what
    assert "nobody" in finding.what


def test_other_file_with_the_name_of_a_restored_one_is_refused(place: Path) -> None:
    """The file may have been moved there from a directory that its user could not enter."""
    known = recorded_as(place / "file")
    (place.parent / "secret").rename(place / "file")
    with restored(place / "file") as tree, pytest.raises(RestoreFailed):
        check(tree, known)


def test_other_world_readable_file_is_accepted_for_reading(place: Path) -> None:
    known = recorded_as(place / "file")
    (place.parent / "secret").rename(place / "file")
    (place / "file").chmod(0o644)
    with restored(place / "file") as tree:
        check(tree, known)
    with restored(place / "file", flags=os.O_RDWR) as tree, pytest.raises(RestoreFailed):
        check(tree, known)


def test_file_open_for_reading_is_not_reopened_for_writing(place: Path) -> None:
    with restored(place / "file", flags=os.O_RDWR) as tree:
        check(tree, recorded_as(place / "file", writes=1))
        with pytest.raises(RestoreFailed):
            check(tree, recorded_as(place / "file"))


def test_other_file_with_the_same_inode_is_refused(place: Path) -> None:
    """ext4 gives the inode of a removed file to the next new file, which has another owner or is younger."""
    path, found = str(place / "file"), (place / "file").stat()
    known = recorded_as(place / "file")
    with restored(place / "file") as tree:
        target = read_link_target(f"/proc/{tree.root.pid}/fd/{FD}")
        assert target is not None
        born = target.birth
        if born is None:
            pytest.skip("this file system does not know when a file was created")
        check(tree, replace(known, owners={path: [0]}, births={path: [(found.st_ino, born)]}))
        with pytest.raises(RestoreFailed):
            check(tree, replace(known, owners={path: [0]}, births={path: [(found.st_ino, born - 1)]}))
        with pytest.raises(RestoreFailed):
            check(tree, replace(known, owners={path: [USER]}))


def test_only_inodes_are_compared_on_other_file_systems(place: Path) -> None:
    found = (place / "file").stat()
    elsewhere = {f"{place}/file": [(found.st_dev + 1, found.st_ino, 0)]}
    with restored(place / "file") as tree:
        check(tree, RecordedFiles(elsewhere, by_inode=True))
        with pytest.raises(RestoreFailed):
            check(tree, RecordedFiles(elsewhere))


def test_file_in_a_directory_of_root_needs_no_record(place: Path) -> None:
    with restored(place.parent / "secret") as tree:
        check(tree, RecordedFiles({}))


def test_user_may_replace_its_own_file(place: Path) -> None:
    """Program and directory belong to the same user, who can put only own files there."""
    known = recorded_as(place / "file")
    (place / "new").write_text("new")
    (place / "new").chmod(SECRET)
    (place / "new").rename(place / "file")
    with restored(place / "file", uid=NOBODY) as tree:
        with pytest.raises(RestoreFailed):
            check(tree, known)
        os.chown(place / "file", NOBODY, NOBODY)
        check(tree, known)


def test_program_keeps_its_file_in_a_shared_directory(place: Path) -> None:
    """Another user cannot create a file of the program's user in /tmp, but can create a link to one."""
    os.chown(place, 0, 0)
    place.chmod(0o1777)
    known = recorded_as(place / "file")
    (place / "new").write_text("new")
    (place / "new").chmod(SECRET)
    os.chown(place / "new", USER, USER)
    (place / "new").rename(place / "file")
    with restored(place / "file", uid=USER) as tree:
        check(tree, known)
    (place / "file").rename(place.parent / "elsewhere")
    (place / "file").symlink_to(place.parent / "elsewhere")
    with restored(place / "file", uid=USER) as tree, pytest.raises(RestoreFailed):
        check(tree, known)


def test_ended_process_has_nothing_open(place: Path) -> None:
    known = recorded_as(place / "file")
    with restored(place / "file") as tree:
        root = tree.root
        os.kill(root.pid, signal.SIGKILL)
        os.waitid(os.P_PID, root.pid, os.WEXITED | os.WNOWAIT)
        zombie = replace(root, threads=(replace(root.threads[0], core=replace(root.core, state=ZOMBIE)),))
        check(replace(tree, processes=(zombie,)), known)


def test_file_without_its_name_is_identified_by_inode(place: Path) -> None:
    """CRIU opens the file by another name, and removes that name."""
    place.chmod(0o1777)
    removed = Remap(LINKED, 5, str(place / "link_remap.5"))
    with restored(place / "file", flags=os.O_RDWR) as tree:
        found = (place / "file").stat()
        (place / "file").unlink()
        linked = replace(tree.regular_files[0], remap=removed)
        (root,) = tree.processes
        opened = replace(root.descriptors[0], file=linked)
        tree = replace(tree, files=(linked,), processes=(replace(root, descriptors=(opened,)),))
        check(tree, RecordedFiles({f"{place}/file (deleted)": [(found.st_dev, found.st_ino, 1)]}))
        for other in ((found.st_dev, found.st_ino + 1, 1), (found.st_dev, found.st_ino, 0)):
            with pytest.raises(RestoreFailed):
                check(tree, RecordedFiles({f"{place}/file (deleted)": [other]}))
