"""One attempt to restore: the parent of the root, and the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from dump_targets import CRIU
from msgspec.structs import replace
from recorded_images import RECORDED

from crckpt.criu.command import Paths
from crckpt.images.tree import ImageTree
from crckpt.ops.context import Context
from crckpt.ops.restore.attempt import RestoreAttempt
from crckpt.ops.restore.request import RestoreRequest
from crckpt.store import Checkpoint, Repository

PATHS = Paths(Path("/images"), Path("/work"))


@pytest.fixture
def attempt(context: Context, repository: Repository, checkpoints: tuple[Checkpoint, Checkpoint]) -> RestoreAttempt:
    return RestoreAttempt(RestoreRequest("job"), context, repository, checkpoints[1], CRIU)


@pytest.fixture
def tree_with_a_death_signal() -> ImageTree:
    """A tree whose root has asked for a signal when its parent ends."""
    thread = RECORDED.root.threads[0]
    root = replace(RECORDED.root, threads=(replace(thread, core=replace(thread.core, parent_death_signal=15)),))
    return replace(RECORDED, processes=(root,))


@pytest.mark.parametrize(
    ("request_", "has_new_terminal", "is_sibling"),
    [
        (RestoreRequest("job"), False, True),
        (RestoreRequest("job", detach=True), False, False),
        (RestoreRequest("job", detach=True), True, True),
        (RestoreRequest("job", new_pid_namespace=True), False, False),
        (RestoreRequest("job", new_pid_namespace=True), True, True),
    ],
    ids=["foreground", "detached", "new terminal", "new namespace", "new terminal in a new namespace"],
)
def test_root_is_restored_as_a_sibling_of_criu_depending_on_the_request(
    attempt: RestoreAttempt,
    tree_with_a_death_signal: ImageTree,
    request_: RestoreRequest,
    has_new_terminal: bool,
    is_sibling: bool,
) -> None:
    attempt = replace(attempt, request=request_, has_new_terminal=has_new_terminal)
    assert attempt.is_sibling == is_sibling
    assert ("--restore-sibling" in attempt.command(PATHS, (), stream=True)) == is_sibling
    # CRIU ends at once: a root that is its child would get the signal.
    images = attempt.find_edits(tree_with_a_death_signal).without_signal
    assert images == (frozenset() if is_sibling else {f"core-{RECORDED.root.pid}.img"})
    assert attempt.find_edits(RECORDED).without_signal == frozenset()


def test_kept_connections_can_be_closed(attempt: RestoreAttempt) -> None:
    """The checkpoint was made with --tcp keep."""
    assert "--tcp-established" in attempt.command(PATHS, (), stream=True)
    closing = replace(attempt, request=RestoreRequest("job", tcp="close")).command(PATHS, (), stream=True)
    assert "--tcp-close" in closing
    assert "--tcp-established" not in closing


def test_inherited_descriptor_and_images_directory_are_in_the_command(attempt: RestoreAttempt) -> None:
    command = attempt.command(PATHS, ("fd[7]:pipe:[55]",), stream=False)
    assert command[command.index("--inherit-fd") + 1] == "fd[7]:pipe:[55]"
    assert command[command.index("--images-dir") + 1] == "/images"
