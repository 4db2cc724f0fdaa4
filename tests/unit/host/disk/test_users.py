"""Users who could not open a file that a process has open."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_user import NOBODY
from trees import open_workdir

from crckpt.host.disk.path_trust import Changers
from crckpt.host.disk.users import (
    LinkTarget,
    User,
    find_refused_user,
    read_link_target,
    read_user,
    user_name,
    users_of,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to take the rights of another user")
SOMEBODY = User(NOBODY, NOBODY)


@pytest.fixture
def root_descriptor() -> Iterator[int]:
    descriptor = os.open("/", os.O_PATH | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def open_file() -> Iterator[Path]:
    """A link in /proc to a file that everybody may read."""
    with open_workdir() as workdir:
        workdir.chmod(0o755)
        (workdir / "file").touch()
        (workdir / "file").chmod(0o644)
        with (workdir / "file").open("rb") as file:
            yield Path(f"/proc/self/fd/{file.fileno()}")


def test_user_who_may_read_but_not_write_is_refused_for_writing(open_file: Path, root_descriptor: int) -> None:
    assert find_refused_user(str(open_file), os.R_OK, [SOMEBODY], root_descriptor) is None
    assert find_refused_user(str(open_file), os.W_OK, [User(0, 0), SOMEBODY], root_descriptor) == SOMEBODY


def test_user_who_may_not_enter_the_parent_directory_is_refused(open_file: Path, root_descriptor: int) -> None:
    """The mode of the file itself would allow it. The file may have been opened before the directory was closed."""
    open_file.readlink().parent.chmod(0o700)
    assert find_refused_user(str(open_file), os.R_OK, [SOMEBODY], root_descriptor) == SOMEBODY


def test_user_is_refused_by_the_mode_of_a_deleted_file(open_file: Path, root_descriptor: int) -> None:
    path = open_file.readlink()
    path.unlink()
    path.parent.chmod(0o700)
    assert find_refused_user(str(open_file), os.R_OK, [SOMEBODY], root_descriptor) is None


def test_user_in_the_group_of_the_file_may_open_it(open_file: Path, root_descriptor: int) -> None:
    path = open_file.readlink()
    path.chmod(0o640)
    os.chown(path, 0, 4242)
    assert find_refused_user(str(open_file), os.R_OK, [SOMEBODY], root_descriptor) == SOMEBODY
    assert find_refused_user(str(open_file), os.R_OK, [User(NOBODY, NOBODY, (4242,))], root_descriptor) is None


def test_user_and_groups_of_a_process_are_found_by_number() -> None:
    assert (read_user(0).gid, user_name(0)) == (0, "root")
    assert pwd.getpwuid(0).pw_gid in read_user(0).groups
    assert read_user(424242) == User(424242, NOBODY)
    assert user_name(424242) == "user 424242"
    assert users_of(Changers(frozenset({0}), anyone=True)) == (read_user(0), SOMEBODY)
    assert users_of(Changers()) == ()


def test_target_of_a_link_in_proc_is_read_with_its_inode(open_file: Path) -> None:
    path = open_file.readlink()
    status = path.stat()
    found = read_link_target(str(open_file))
    assert found is not None
    assert found == LinkTarget(str(path), status.st_dev, status.st_ino, 0, found.birth)
    born = subprocess.run(("stat", "--format=%W", path), stdout=subprocess.PIPE, check=True).stdout
    assert found.birth is None or found.birth // 10**9 == int(born)
    assert read_link_target("/proc/self/fd/1000") is None
