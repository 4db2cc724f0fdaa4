"""The directories of a dump, which are gone afterwards, and a CRIU that has ended afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from own_process import children

from crckpt.criu.command import Paths
from crckpt.errors import UsageError
from crckpt.ops.context import Context
from crckpt.ops.dump.launch import Workspace, opened_workspace, started_criu
from crckpt.store import STAGING

NO_TREE = 1 << 30  # larger than any PID


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    """A directory that the user names with --staging."""
    path = tmp_path / "staging"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def workspace(context: Context) -> Iterator[Workspace]:
    with opened_workspace(context) as found:
        yield found


def test_working_directory_of_a_dump_is_in_the_store_and_removed(context: Context) -> None:
    with opened_workspace(context) as workspace:
        assert workspace.images.is_relative_to(context.store)
        assert workspace.images.stat().st_mode & 0o777 == 0o700
        assert (workspace.log.parent, workspace.stats.parent) == (workspace.work, workspace.work)
        (workspace.images / "core-1.img").touch()
    assert not workspace.work.exists()


def test_store_that_is_missing_is_created_by_a_dump(tmp_path: Path) -> None:
    with opened_workspace(Context(tmp_path / "new")) as workspace:
        assert workspace.repository.root == tmp_path / "new"


def test_images_are_staged_in_the_given_directory(context: Context, staging: Path) -> None:
    with suppress(KeyError), opened_workspace(replace(context, staging=staging)) as workspace:
        assert workspace.images.is_relative_to(staging)
        assert workspace.log.is_relative_to(context.store)
        # By this link gc finds it if crckpt is killed.
        assert (workspace.work / STAGING).resolve() == workspace.staging
        raise KeyError
    assert list(staging.iterdir()) == []


def test_missing_staging_directory_creates_no_store(tmp_path: Path) -> None:
    context = Context(tmp_path / "new", staging=tmp_path / "none")
    with pytest.raises(UsageError, match=r"--staging: .* is not a directory"), opened_workspace(context):
        pass
    assert not (tmp_path / "new").exists()


def test_criu_has_ended_after_the_block_that_launched_it(workspace: Workspace) -> None:
    """Here CRIU is a program that waits while anything in it continues."""
    before = children()
    given: list[Paths] = []

    def command(paths: Paths) -> tuple[str, ...]:
        given.append(paths)
        return ("/bin/sh", "-c", "echo begun; sleep 0.1; echo done")

    with suppress(KeyError), started_criu(command, workspace, NO_TREE, waits=True) as criu:
        assert criu.paths == given[0]
        assert criu.paths.images == workspace.images
        assert criu.first is not None
        assert criu.paths.script == criu.first.script
        assert (workspace.work / "waiting").is_dir()
        raise KeyError
    assert children() == before
    assert not (workspace.work / "waiting").exists()


def test_command_that_cannot_be_built_leaves_no_hold(workspace: Workspace) -> None:
    def command(_: Paths) -> tuple[str, ...]:
        raise KeyError

    with pytest.raises(KeyError), started_criu(command, workspace, NO_TREE, stop=True):
        pass
    assert not (workspace.work / "hold").exists()
