"""Give a checkpoint a tag, or remove the tag."""

from __future__ import annotations

from msgspec import Struct

from crckpt.model import CheckpointId, JobName
from crckpt.ops.context import Context
from crckpt.store import check_name


class TagResult(Struct, frozen=True):
    """The tag, and the checkpoint that got it, or lost it."""

    job: JobName
    tag: str
    id: CheckpointId


def tag(context: Context, ref: str, name: str, *, remove: bool = False) -> TagResult:
    """Tag the checkpoint that `ref` names. Raises UsageError if `name` is not valid, NoSuchCheckpoint."""
    check_name(name, "tag")
    repository = context.repository()
    with repository.shared():
        checkpoint = repository.get(repository.resolve(ref))
        if not remove:
            repository.tag(checkpoint.id, name)
        else:
            repository.untag(checkpoint.job, name)
    return TagResult(checkpoint.job, name, checkpoint.id)
