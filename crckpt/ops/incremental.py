"""What a dump has to do with the one before it: the keeper of the tree says what was written since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from crckpt.errors import HostCannot, IntegrityError, NoSuchCheckpoint, StoreUnusable
from crckpt.host import proc
from crckpt.host.files import make_private_directory
from crckpt.images.stats import DumpStats
from crckpt.model import CheckpointId
from crckpt.store import Checkpoint, Repository, materialise_base
from crckpt.tracking.kept import Session, session

_APART = "CRIU runs as another user, or in namespaces of the tree: what was written is not asked for there"


class Tracked(Struct, frozen=True):
    """What was incremental, and if nothing was, why, in `why_full`.

    `tracker` is its name, or empty, and `why` the sentence on it. `base` is the checkpoint that the dump counted from,
    `whole` are clauses on processes that had no part in that. `written_pages` are in CRIU's images, `left_pages` were
    left to `base`; both are of private memory, as CRIU counted them.
    """

    tracker: str
    why: str
    base: CheckpointId | None = None
    why_full: str = ""
    whole: tuple[str, ...] = ()
    written_pages: int = 0
    left_pages: int = 0


class Way:
    """How one dump is made. `close` it."""

    def __init__(self, told: Tracked, followed: Session | None = None) -> None:
        """Without `followed` it is full, and changes nothing for the next one."""
        self.told = told
        self.environment: tuple[str, ...] = ()
        self.tracks = False
        self._followed = followed

    def begin(self, repository: Repository, criu: Path, directory: Path) -> None:
        """From now on the next dump is full, unless this one is committed. The base for CRIU is `directory`.

        Raises DumpFailed if another dump of the tree is going on. All else only makes the dump full.
        """
        if self._followed is None:
            return
        try:
            keeper = self._followed.tell()
            if keeper.criu != str(criu):
                way_out = f"to begin anew: crckpt trackers --end {keeper.root}"
                self._give_up(f"the tracker works with another CRIU, {keeper.criu}; {way_out}")
                return
            began = self._followed.begin()
        except HostCannot as error:
            self._give_up(error.message)
            return
        self.tracks = began.tracks
        self.environment = tuple(f"{name}={value}" for name, value in keeper.environment.items())
        whole = tuple(one.why for one in began.whole)
        self.told = replace(self.told, tracker=keeper.tracker, why=keeper.why, why_full=began.why, whole=whole)
        if began.base:
            self._count_from(repository, began.base, directory)
        elif began.tracks and self._followed.lost:
            self.told = replace(self.told, why_full=self._followed.lost)

    def frozen(self) -> None:
        """In the hold."""
        self._say(Session.frozen)

    def committed(self, checkpoint: Checkpoint) -> None:
        """The checkpoint is durable."""
        self._say(lambda followed: followed.committed(checkpoint.id))

    def counted(self, found: DumpStats) -> Tracked:
        """What it came to."""
        return replace(self.told, written_pages=found.pages_written, left_pages=found.pages_skipped_parent)

    def close(self) -> None:
        """The dump is over."""
        if self._followed is not None:
            self._followed.close()

    def _count_from(self, repository: Repository, name: str, directory: Path) -> None:
        try:
            base = repository.get(CheckpointId(name))
            make_private_directory(directory, "image-directory")
            materialise_base(repository, base, directory)
        except NoSuchCheckpoint:
            why = f"checkpoint {name[:12]}, the last one of this tree, is not in this store"
            self.told = replace(self.told, why_full=why, whole=())
        except (IntegrityError, StoreUnusable) as error:
            self.told = replace(self.told, why_full=error.message, whole=())
        else:
            self.told = replace(self.told, base=base.id)

    def _say(self, what: Callable[[Session], None]) -> None:
        """A keeper that has ended, or is late, harms this dump in nothing: to hear us go makes the next one full."""
        if self._followed is not None:
            try:
                what(self._followed)
            except HostCannot:
                self.close()
                self._followed = None

    def _give_up(self, why: str) -> None:
        self.close()
        self._followed = None
        self.told = replace(self.told, why_full=why)


def way(root: proc.Process, criu: Path, *, wanted: bool | None, apart: bool) -> Way | None:
    """How to dump the tree below `root`. None if nobody follows it and `wanted` is None, or if it is False.

    `apart` if CRIU runs as another user or in namespaces of the tree.
    """
    if wanted is False:
        return None
    if apart:
        return Way(Tracked("", "tracker: none", why_full=_APART)) if wanted else None
    try:
        followed = session(root, criu, start=wanted is True)
    except HostCannot as error:
        return Way(Tracked("", error.message, why_full="nothing tells what was written"))
    return Way(Tracked("", ""), followed) if followed is not None else None
