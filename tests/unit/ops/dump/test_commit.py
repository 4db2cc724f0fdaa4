"""CRIU's images become a checkpoint only if they can be read again, and nothing in them was forged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from dump_targets import planned
from image_sets import described, files_of, restore_files, write_set
from msgspec.structs import replace
from other_user import NOBODY
from recorded_images import IMAGES, PAGES, RECORDED, image_set

from crckpt.errors import CrckptError, DumpFailed
from crckpt.host.proc.task_states import FileOwner, ProcessState, TaskStates
from crckpt.images import magics
from crckpt.images.core import Rights, read_rights
from crckpt.images.files import read_files
from crckpt.images.framing import Image, Record, read_image, write_image
from crckpt.images.other_files import Pipe
from crckpt.images.processes import read_descriptors, read_directories, read_ids, read_pstree
from crckpt.images.wire import BYTES, VARINT, Message, encode, fields
from crckpt.ops.context import Context
from crckpt.ops.dump.checkpoint import commit_checkpoint
from crckpt.ops.dump.launch import Workspace
from crckpt.ops.dump.plan import PlannedDump
from crckpt.ops.dump.request import DumpRequest
from crckpt.store import Checkpoint, Preparation, Repository

ROOT = RECORDED.root.pid
PIPE = next(
    descriptor
    for descriptor in read_descriptors(IMAGES[f"fdinfo-{read_ids(IMAGES[f'ids-{ROOT}.img']).files}.img"])
    if any(isinstance(file, Pipe) and file.id == descriptor.file_id for file in read_files(IMAGES["files.img"]))
)
TIDS = [thread.tid for process in RECORDED.processes for thread in process.threads]


@pytest.fixture
def workspace(repository: Repository, tmp_path: Path) -> Workspace:
    """The recorded images, as CRIU left them."""
    write_set(tmp_path / "images", image_set(PAGES))
    return Workspace(repository, tmp_path, tmp_path)


@pytest.fixture
def dump(context: Context) -> PlannedDump:
    return planned(context, request=DumpRequest("100", tag="good"))


@pytest.fixture
def rights() -> dict[int, Rights]:
    """The rights in the images."""
    found = {tid: read_rights(IMAGES[f"core-{tid}.img"]) for tid in TIDS}
    return {tid: each for tid, each in found.items() if each is not None}


def commit(dump: PlannedDump, workspace: Workspace, rights: dict[int, Rights] | None = None) -> Checkpoint:
    return commit_reported(dump, workspace, None if rights is None else TaskStates(rights))


def commit_reported(
    dump: PlannedDump, workspace: Workspace, states: TaskStates | None, securebits: Mapping[int, int] = {}
) -> Checkpoint:
    return commit_checkpoint(dump, workspace, described(), states, securebits, Preparation(workspace.repository))


def refusal(dump: PlannedDump, workspace: Workspace, rights: dict[int, Rights] | None = None) -> str:
    """The reason why no checkpoint was stored."""
    with pytest.raises(CrckptError) as refused:
        commit(dump, workspace, rights)
    assert workspace.repository.checkpoints() == ()
    return refused.value.message


def test_images_are_stored_and_tagged(
    dump: PlannedDump, workspace: Workspace, rights: dict[int, Rights], tmp_path: Path
) -> None:
    checkpoint = commit(dump, workspace, rights)
    assert workspace.repository.resolve("job:good") == checkpoint.id
    assert restore_files(workspace.repository, checkpoint, tmp_path) == files_of(workspace.images)


def test_process_that_entered_a_user_namespace_is_refused(dump: PlannedDump, workspace: Workspace) -> None:
    (workspace.images / "userns-13.img").touch()
    assert "a process changed its user namespace during the dump" in refusal(dump, workspace)


def test_images_of_an_unknown_format_are_refused(dump: PlannedDump, workspace: Workspace) -> None:
    (workspace.images / "inventory.img").write_bytes(b"another format")
    assert "inventory.img" in refusal(dump, workspace)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"uids": (33, 33, 33, 33)}, "user 0"),
        ({"gids": (33, 33, 33, 33)}, "group 0"),
        ({"capabilities": (0, 0, 0, 0, 0)}, "capabilities"),
        ({"confined": True}, "no_new_privs"),
    ],
)
def test_additional_rights_of_a_thread_are_refused(
    dump: PlannedDump, workspace: Workspace, rights: dict[int, Rights], changes: dict[str, object], what: str
) -> None:
    had = rights | {ROOT: replace(rights[ROOT], **changes)}
    output = refusal(dump, workspace, had)
    assert output.startswith(f"the dump failed: task {ROOT} told CRIU that it has the rights of ")
    assert what in output


def test_thread_killed_before_its_rights_were_read_fails_the_commit(
    dump: PlannedDump, workspace: Workspace, rights: dict[int, Rights]
) -> None:
    del rights[ROOT]
    assert f"task {ROOT} was killed while it was frozen" in refusal(dump, workspace, rights)


def test_tree_killed_before_its_rights_were_read_fails_the_commit(
    dump: PlannedDump, workspace: Workspace, rights: dict[int, Rights]
) -> None:
    assert f"task {min(rights)} was killed while it was frozen" in refusal(dump, workspace, {})


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"sid": 1}, "session"),
        ({"pgid": 1}, "process group"),
        ({"umask": 0o777}, "umask"),
        ({"is_dumpable": False}, "dumpable flag"),
    ],
)
def test_forged_state_of_a_process_is_refused(
    dump: PlannedDump, workspace: Workspace, rights: dict[int, Rights], changes: dict[str, int], what: str
) -> None:
    (root,) = [entry for entry in read_pstree(IMAGES["pstree.img"]) if entry.pid == ROOT]
    umask = read_directories(IMAGES[f"fs-{ROOT}.img"]).umask or 0
    state = ProcessState(frozenset(root.threads), root.pgid, root.sid, umask, is_dumpable=True)
    forged = TaskStates(rights, {ROOT: replace(state, **changes)})
    with pytest.raises(DumpFailed, match=f"process {ROOT} told CRIU that it has another {what} than it has"):
        commit_reported(dump, workspace, forged)
    commit_reported(dump, workspace, TaskStates(rights, {ROOT: state}))


def test_forged_signal_owner_is_refused(dump: PlannedDump, workspace: Workspace, rights: dict[int, Rights]) -> None:
    """The user of another process that has the descriptor, such as a `su` of the program, is refused, too."""
    image, fd = workspace.images / "files.img", PIPE.fd
    image.write_bytes(give_pipe_to(PIPE.file_id, (0, 0, 0, 1, ROOT), image.read_bytes()))
    (root,) = [entry for entry in read_pstree(IMAGES["pstree.img"]) if entry.pid == ROOT]
    umask = read_directories(IMAGES[f"fs-{ROOT}.img"]).umask or 0
    state = ProcessState(frozenset(root.threads), root.pgid, root.sid, umask, is_dumpable=True)
    owners: tuple[dict[int, FileOwner], ...] = (
        {},
        {fd: FileOwner(1, ROOT, (33, 33))},
        {fd: FileOwner(1, ROOT, (0, 33))},
        {fd: FileOwner(1, 1, (0, 0))},
        {fd: FileOwner(2, ROOT, (0, 0))},
    )
    for found in owners:
        with pytest.raises(DumpFailed, match=f"sends signals to process {ROOT} with the rights of user 0"):
            commit_reported(dump, workspace, TaskStates(rights, {ROOT: replace(state, owners=found)}))
    rightful = {fd: FileOwner(1, ROOT, (0, 0))}
    commit_reported(dump, workspace, TaskStates(rights, {ROOT: replace(state, owners=rightful)}))


def give_pipe_to(file_id: int, owner: tuple[int, ...], data: bytes) -> bytes:
    """Give a pipe in a files.img another owner of its signals: user ids, signal, kind and number."""

    def edit(payload: bytes) -> bytes:
        message = Message(payload, "files.img")
        if message.required(2) != file_id:
            return payload
        given = encode((number, VARINT, value) for number, value in enumerate(owner, start=1))
        pipe = [field for field in fields(message.octets(18)) if field[0] != 4]
        others = [field for field in fields(payload) if field[0] != 18]
        return encode([*others, (18, BYTES, encode([*pipe, (4, BYTES, given)]))])

    image = read_image(data, "files.img", magics.FILES)
    return write_image(Image(image.magic, tuple(Record(edit(each.payload), each.extra) for each in image.records)))


def test_lost_securebits_are_reported(dump: PlannedDump, workspace: Workspace, rights: dict[int, Rights]) -> None:
    """A process with the capability to change securebits may have changed them itself."""
    poor = replace(rights[ROOT], capabilities=(0, 0, 0, rights[ROOT].capabilities[3], 0))
    with pytest.raises(DumpFailed, match="securebits"):
        commit_reported(dump, workspace, TaskStates(rights | {ROOT: poor}), {ROOT: 3})
    commit_reported(dump, workspace, TaskStates(rights), {ROOT: 3})


def test_failed_check_at_the_commit_leaves_no_checkpoint(dump: PlannedDump, workspace: Workspace) -> None:
    def fail(_checkpoint: Checkpoint, _manifest: bytes) -> None:
        assert workspace.repository.checkpoints() == ()
        raise DumpFailed("the tree runs again")

    with pytest.raises(DumpFailed, match="runs again"):
        commit_checkpoint(dump, workspace, described(), None, {}, Preparation(workspace.repository), before=fail)
    assert workspace.repository.checkpoints() == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
def test_images_written_by_the_trees_user_become_ours(dump: PlannedDump, workspace: Workspace) -> None:
    for image in workspace.images.iterdir():
        os.chown(image, NOBODY, NOBODY)
    elsewhere = workspace.staging / "elsewhere"
    elsewhere.mkdir()
    os.chown(elsewhere, NOBODY, NOBODY)
    (workspace.images / "parent").symlink_to("../elsewhere")
    target = replace(dump.target, plan=replace(dump.target.plan, as_user=(NOBODY, NOBODY)))
    commit(replace(dump, target=target), workspace)
    assert {image.lstat().st_uid for image in workspace.images.iterdir()} == {0}
    assert elsewhere.stat().st_uid == NOBODY
