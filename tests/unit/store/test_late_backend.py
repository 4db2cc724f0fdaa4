"""Packs that come late are read from elsewhere, then from the store, also if it is not locked any more."""

from __future__ import annotations

from pathlib import Path

from image_sets import of_pages, open_store, store

from crckpt.errors import IntegrityError
from crckpt.store import Checkpoint, collect_garbage
from crckpt.store.backend.local import Fetched, LateBackend
from crckpt.store.layout import pack_name


def fetch(digest: str, offset: int, size: int) -> Fetched:
    """Fetch nothing."""
    raise IntegrityError(f"nobody sends {size} bytes of {digest} at {offset}")


def test_packs_opened_for_a_lazy_restore_are_readable_after_their_checkpoint_was_removed(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, of_pages(1, 2, 3))
    late = LateBackend(repository.root, checkpoint.id, (use.digest for use in checkpoint.packs), b"", fetch)
    before = read(late, checkpoint)
    late.hold()
    repository.remove([checkpoint.id])
    collect_garbage(repository)
    assert read(late, checkpoint) == before
    assert not any(repository.root.glob("packs/*/*"))


def read(late: LateBackend, checkpoint: Checkpoint) -> list[bytes]:
    """Read the packs of a checkpoint."""
    found = []
    for use in checkpoint.packs:
        with late.open(pack_name(use.digest)) as file:
            found.append(file.read(file.size, 0))
    return found
