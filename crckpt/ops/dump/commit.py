"""Check CRIU's images, and store them as a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from crckpt.errors import DumpFailed
from crckpt.images.creds import Rights, excess_rights, read_rights
from crckpt.images.fdinfo import read_descriptors
from crckpt.images.ids import read_ids
from crckpt.images.inventory import read_inventory
from crckpt.images.signal_owners import read_signal_owners
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.dump.launch import Workspace
from crckpt.store import BeforeWrite, Checkpoint, NewCheckpoint, Preparation, ingest
from crckpt.store.read.details import cache_details
from crckpt.tracking.dump_basis import CheckpointBase


def commit_checkpoint(
    target: DumpTarget,
    workspace: Workspace,
    new: NewCheckpoint,
    rights: Mapping[int, Rights] | None,
    preparation: Preparation,
    *,
    at_least: int = 0,
    before: BeforeWrite = lambda _checkpoint, _manifest: None,
) -> Checkpoint:
    """Store the checkpoint, report it to the tree's keeper, and tag it. It exists once its manifest is written.

    `rights` are those of the frozen threads by TID, None if they are not known. `preparation` has run for the images.
    `at_least` and `before` are for `Repository.add_checkpoint`.
    """
    context, repository, images = target.context, workspace.repository, workspace.images
    if target.plan.as_user is not None:
        # CRIU wrote the images as the tree's user, and the store takes only our own files.
        for image in images.iterdir():
            os.chown(image, os.geteuid(), os.getegid(), follow_symlinks=False)
    # CRIU dumps such a tree, but cannot restore it: with --stop the program would be lost.
    if any(images.glob("userns-*.img")):
        raise DumpFailed(
            "the dump failed: a process changed its user namespace during the dump",
            hint="start it without a user namespace (unshare --user), or checkpoint it with its container engine",
        )
    # A newer CRIU may write another format: store nothing that could not be read again.
    read_inventory((images / "inventory.img").read_bytes())
    if rights is not None:
        _check_rights(images, rights)
        _check_signal_owners(images, rights)
    if target.parent:
        target.parent.link_pages(images)
    checkpoint = ingest(
        repository,
        images,
        new,
        compress=context.compress,
        searches=target.request.searches,
        copies=target.request.copies,
        progress=context.progress,
        at_least=at_least,
        before=before,
        preparation=preparation,
    )
    cache_details(repository, checkpoint, new.details, workspace.work)
    # Report it only now: until the checkpoint is durable, the next dump must count from the one before.
    if target.lineage is not None:
        target.lineage.commit(CheckpointBase(checkpoint.id))
    if target.request.tag is not None:
        repository.tag(checkpoint.id, target.request.tag)
    return checkpoint


def _check_signal_owners(images: Path, rights: Mapping[int, Rights]) -> None:
    """Raise DumpFailed if a descriptor would send signals with the rights of a user that no process having it was."""
    # This, too, each process reports itself (F_SETOWN), and CRIU sets it as root, with the user ids that were reported.
    holders: dict[int, set[int]] = {}
    for image in images.glob("ids-*.img"):
        users = set(rights[pid].uids) if (pid := int(image.stem.removeprefix("ids-"))) in rights else set()
        table = images / f"fdinfo-{read_ids(image.read_bytes(), image.name).files}.img"
        for descriptor in read_descriptors(table.read_bytes(), table.name) if table.exists() else ():
            holders.setdefault(descriptor.file_id, set()).update(users)
    files = images / "files.img"
    for owner in read_signal_owners(files.read_bytes(), files.name) if files.exists() else ():
        if excess := owner.uids - holders.get(owner.file_id, set()):
            raise DumpFailed(
                f"the dump failed: a descriptor would send signals to process {owner.pid} with the rights of user "
                f"{min(excess)}, which no process of the tree that has it is: it came from another program, or another "
                "process changed the memory of its process during the dump",
                hint="let the program set the owner of its signals itself: F_SETOWN, fcntl(2)",
            )


def _check_rights(images: Path, rights: Mapping[int, Rights]) -> None:
    """Raise DumpFailed if a thread would come back with rights that it did not have when the tree was frozen.

    Or if it was killed before these were read.
    """
    # CRIU lets each process report its own rights, from memory that other processes of its user can write meanwhile.
    for tid, image in sorted((int(found.stem.removeprefix("core-")), found) for found in images.glob("core-*.img")):
        saved = read_rights(image.read_bytes(), image.name)
        if saved is None:  # a zombie
            continue
        if (had := rights.get(tid)) is None:
            raise DumpFailed(
                f"the dump failed: task {tid} was killed while it was frozen, before all was known of it",
                hint="if other processes of the tree run on, dump these",
            )
        if more := ", ".join(excess_rights(saved, had)):
            raise DumpFailed(
                f"the dump failed: task {tid} told CRIU that it has the rights of {more}, which it does not have: "
                "another process changed its memory during the dump",
                hint="find the process of its user that did this, and end it",
            )
