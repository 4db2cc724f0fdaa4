"""Marks of checkpoints that were restored: the state of their programs is no longer in the checkpoint alone."""

from __future__ import annotations

from contextlib import suppress

from crckpt.model import CheckpointId
from crckpt.store.backend.protocol import Backend
from crckpt.store.layout import restored_name


def mark_restored(backend: Backend, checkpoint_id: CheckpointId) -> None:
    """Mark a checkpoint as restored, durably. Raises OSError if the store cannot be written."""
    backend.put(restored_name(checkpoint_id), b"", "restored")


def is_restored(backend: Backend, checkpoint_id: CheckpointId) -> bool:
    """Return whether the checkpoint is marked."""
    return backend.exists(restored_name(checkpoint_id))


def remove_mark(backend: Backend, checkpoint_id: CheckpointId) -> None:
    """Remove the mark, if there is one."""
    with suppress(FileNotFoundError):
        backend.remove(restored_name(checkpoint_id), "restored")
