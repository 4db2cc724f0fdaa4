"""Check CRIU's images, and store them as a checkpoint."""

from __future__ import annotations

import os

from crckpt.errors import DumpFailed
from crckpt.images.inventory import read_inventory
from crckpt.ops.dump.details import FrozenTree
from crckpt.ops.dump.launch import Workspace
from crckpt.ops.dump.plan import PlannedDump
from crckpt.ops.dump.reported import check_reported
from crckpt.store import BeforeWrite, Checkpoint, Preparation, ingest
from crckpt.store.read.details import cache_details
from crckpt.tracking.dump_basis import CheckpointBase


def commit_checkpoint(
    dump: PlannedDump,
    workspace: Workspace,
    frozen: FrozenTree,
    preparation: Preparation,
    *,
    at_least: int = 0,
    before: BeforeWrite | None = None,
) -> Checkpoint:
    """Store the checkpoint, report it to the tree's keeper, and tag it. It exists once its manifest is written.

    `preparation` has run for the images. `at_least` and `before` are for `ingest`.
    """
    target, repository, images = dump.target, workspace.repository, workspace.images
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
    check_reported(images, frozen.reported)
    if dump.parent:
        dump.parent.link_pages(images)
    checkpoint = ingest(
        repository,
        images,
        frozen.checkpoint,
        compress=target.context.compress,
        searches=target.request.searches,
        copies=target.request.copies,
        progress=target.context.progress,
        at_least=at_least,
        before=before,
        preparation=preparation,
    )
    cache_details(repository, checkpoint, frozen.checkpoint.details, workspace.work)
    # Report it only now: until the checkpoint is durable, the next dump must count from the one before.
    if dump.lineage is not None:
        dump.lineage.commit(CheckpointBase(checkpoint.id))
    if target.request.tag is not None:
        repository.tag(checkpoint.id, target.request.tag)
    return checkpoint
