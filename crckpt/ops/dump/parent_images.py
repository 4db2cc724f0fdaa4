"""What a dump or a round counts from, as CRIU is given it: page maps without any page.

After rounds they lie beside the sets of those that were taken since the last checkpoint, which are numbered from 1.
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

_CHECKPOINT: Final = "base-"
_ROUND: Final = "maps-"


class Base(Struct, frozen=True):
    """`before` has the page maps of the last of `rounds` sets, or if there are none those of `checkpoint`.

    The first round may count from that checkpoint: what stands for it lies in `directory`.
    """

    before: Path
    rounds: int = 0
    checkpoint: CheckpointId | None = None
    directory: Path | None = None

    def next_round(self) -> Path:
        """Where the set of the next round belongs."""
        return self.before.with_name(str(self.rounds + 1))

    def pagemap(self, pid: int) -> Path:
        """The page map of a process; CRIU takes all of one that has none."""
        return self.before / f"pagemap-{pid}.img"

    def lend_pages(self, images: Path) -> None:
        """Have the set in `images`, which CRIU has made on this base, find the pages that it leaves to a round."""
        link = images / PARENT
        if self.rounds and link.is_symlink():
            link.unlink()
            link.symlink_to(self.before.with_name(str(self.rounds)))


def after_checkpoint(repository: Repository, name: str, place: Path) -> Base:
    """What stands for a checkpoint, made in `place`. Raises NoSuchCheckpoint, IntegrityError."""
    checkpoint = stored(repository, name)
    # The name is what says after rounds which checkpoint it was.
    directory = place / f"{_CHECKPOINT}{checkpoint}"
    make_private_directory(directory, "image-directory")
    try:
        materialise_base(repository, repository.get(checkpoint), directory)
    except IntegrityError:
        # Beside rounds it would say what they count from.
        remove_tree(directory, "image-directory")
        raise
    return Base(directory, checkpoint=checkpoint, directory=directory)


def after_rounds(repository: Repository, last: Path) -> Base:
    """What stands for the round whose set is `last`. Raises NoSuchCheckpoint, StoreUnusable."""
    before = _standing_for(last)
    if not (last.is_dir() and before.is_dir()):
        raise StoreUnusable(f"the rounds that were copied before are gone from {last.parent}")
    directory = next(last.parent.glob(f"{_CHECKPOINT}*"), None)
    checkpoint = None if directory is None else stored(repository, directory.name.removeprefix(_CHECKPOINT))
    return Base(before, int(last.name), checkpoint, directory)


def keep_page_maps(last: Path) -> None:
    """Make what stands for the round whose set is `last`. Raises IntegrityError, OSError.

    While the tree stands still CRIU reads every entry of the set before, and those of all before that, only to see
    whether they have a page. Here are as few as there can be, and no set before.
    """
    place = _standing_for(last)
    place.mkdir(mode=0o700)
    for path in filter(lambda path: is_parent_image(path.name), last.iterdir()):
        content = path.read_bytes()
        told = write_pagemap(read_pagemap(content, path.name).join()) if is_pagemap(path.name) else content
        write_unsynced(place / path.name, told, "image")


def stored(repository: Repository, name: str) -> CheckpointId:
    """The checkpoint of this id. Raises NoSuchCheckpoint."""
    try:
        return repository.get(CheckpointId(name)).id
    except NoSuchCheckpoint:
        raise NoSuchCheckpoint(f"checkpoint {name[:12]}, the last one of this tree, is not in this store") from None


def _standing_for(last: Path) -> Path:
    return last.with_name(f"{_ROUND}{last.name}")
