"""CRIU's parent images: what a dump or a round counts from, as page maps without pages.

Rounds since the last checkpoint lie in directories numbered from 1. The page maps of round N lie next to it in
`maps-N`, those of the checkpoint before in `base-ID`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.errors import IntegrityError, NoSuchCheckpoint, StoreUnusable
from crckpt.host.disk.files import make_private_directory, remove_tree, write_unsynced
from crckpt.images.pagemap import PARENT, is_pagemap, is_parent_image, read_pagemap, write_pagemap
from crckpt.model import CheckpointId
from crckpt.store import Repository, materialise_base
from crckpt.tracking.dump_basis import CheckpointBase, RoundBase

_CHECKPOINT: Final = "base-"
_ROUND: Final = "maps-"


class ParentImages(Struct, frozen=True):
    """`directory` is CRIU's --prev-images-dir: page maps of the last of `rounds`, or without rounds of `checkpoint`.

    The first round may count from that checkpoint: then `checkpoint_directory` has its page maps.
    """

    directory: Path
    rounds: int = 0
    checkpoint: CheckpointId | None = None
    checkpoint_directory: Path | None = None

    def next_round(self) -> RoundBase:
        """The directory for the images of the next round."""
        return RoundBase(self.directory.with_name(str(self.rounds + 1)))

    def pagemap(self, pid: int) -> Path:
        """The page map of a process. CRIU dumps a process that has none in full."""
        return self.directory / f"pagemap-{pid}.img"

    def link_pages(self, images: Path) -> None:
        """Link `images`, which CRIU made with this parent, to the last round: it has the pages that they leave out."""
        link = images / PARENT
        if self.rounds and link.is_symlink():
            # CRIU has linked them to the page maps, which have no pages.
            link.unlink()
            link.symlink_to(self.directory.with_name(str(self.rounds)))


def make_parent_images(repository: Repository, base: CheckpointBase, place: Path) -> ParentImages:
    """Write the page maps of a checkpoint below `place`. Raises NoSuchCheckpoint, IntegrityError."""
    checkpoint = find_checkpoint(repository, base.id)
    # `find_parent_images` reads from this name which checkpoint the first round counts from.
    directory = place / f"{_CHECKPOINT}{checkpoint}"
    make_private_directory(directory, "image-directory")
    try:
        materialise_base(repository, repository.get(checkpoint), directory)
    except IntegrityError:
        # Left next to rounds, it would name a checkpoint that they do not count from.
        remove_tree(directory, "image-directory")
        raise
    return ParentImages(directory, checkpoint=checkpoint, checkpoint_directory=directory)


def find_parent_images(repository: Repository, base: RoundBase) -> ParentImages:
    """The page maps of the last round. Raises NoSuchCheckpoint, StoreUnusable."""
    last = base.directory
    page_maps = _page_maps_of(last)
    if not (last.is_dir() and page_maps.is_dir()):
        raise StoreUnusable(f"the copied rounds are no longer in {last.parent}")
    directory = next(last.parent.glob(f"{_CHECKPOINT}*"), None)
    if directory is None:
        return ParentImages(page_maps, base.number)
    checkpoint = find_checkpoint(repository, CheckpointId(directory.name.removeprefix(_CHECKPOINT)))
    return ParentImages(page_maps, base.number, checkpoint, directory)


def write_page_maps(last: RoundBase) -> None:
    """Write the page maps of this round, as few entries as possible. Raises IntegrityError, OSError."""
    place = _page_maps_of(last.directory)
    place.mkdir(mode=0o700)
    for path in filter(lambda path: is_parent_image(path.name), last.directory.iterdir()):
        content = path.read_bytes()
        # While the tree is frozen, CRIU reads every entry of its parent, and of the parent's parents.
        joined = write_pagemap(read_pagemap(content, path.name).join()) if is_pagemap(path.name) else content
        # No sync: after a crash of the host, the tree is gone, and its rounds are useless.
        write_unsynced(place / path.name, joined, "image")


def find_checkpoint(repository: Repository, name: CheckpointId) -> CheckpointId:
    """The checkpoint of this id. Raises NoSuchCheckpoint."""
    try:
        return repository.get(name).id
    except NoSuchCheckpoint:
        raise NoSuchCheckpoint(
            f"checkpoint {name[:12]}, the tree's last one, was removed or is in another store"
        ) from None


def _page_maps_of(last: Path) -> Path:
    return last.with_name(f"{_ROUND}{last.name}")
