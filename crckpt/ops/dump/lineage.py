"""What a dump has to do with the one before it: the keeper of the tree says what was written since."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from crckpt.errors import HostCannot, IntegrityError, NoSuchCheckpoint, StoreUnusable
from crckpt.host import proc
from crckpt.images.stats import DumpStats
from crckpt.model import CheckpointId
from crckpt.ops.dump.parent_images import Base, after_checkpoint, after_rounds, stored
from crckpt.store import Repository
from crckpt.tracking.keeper.client import ENDED, Session, running, session, was_killed
from crckpt.tracking.keeper.server import Keeper
from crckpt.tracking.preload.library import identity
from crckpt.tracking.tracker import Round

_APART: Final = "CRIU runs as another user, or in namespaces of the tree: what was written is not asked for there"


class Copied(Struct, frozen=True):
    """A round, with the number it has since the last checkpoint: what CRIU copied, and how long it took.

    `bytes` are of private and shared memory, `fixed_bytes` what is not tracked and copied each time. Times are
    milliseconds.
    """

    number: int
    pages: int
    bytes: int
    fixed_bytes: int
    ms: float
    frozen_ms: float


class Tracked(Struct, frozen=True):
    """What was incremental, and if nothing was, why, in `why_full`.

    `tracker` is its name, or empty, and `why` the sentence on it. The dump counted from `rounds` that were copied
    before it, or else, or before those, from the checkpoint `base`; `whole` are clauses on processes that had no part
    in that. `written_pages` are in CRIU's images, `left_pages` were left to what was before; both are of private
    memory, as CRIU counted them.
    """

    tracker: str
    why: str
    base: CheckpointId | None = None
    rounds: int = 0
    why_full: str = ""
    whole: tuple[str, ...] = ()
    written_pages: int = 0
    left_pages: int = 0


class Way:
    """How a dump is made, and the rounds before it: each begins, is `frozen` and `committed`. `close` it.

    Once its keeper `is_late`, or has ended, it is told nothing more.
    """

    def __init__(self, told: Tracked, followed: Session | None = None) -> None:
        """Without `followed` it is full, and changes nothing for the next one."""
        self.told = told
        self.base: Base | None = None
        self.environment: tuple[str, ...] = ()
        self.tracks = False
        self.followed = followed
        self.is_late = False
        self._unfit = ""
        self._was_looked_at = False

    def begin(self, repository: Repository, criu: Path, place: Callable[[], Path]) -> None:
        """From now on the next dump is full, unless this one is committed.

        If it counts from a checkpoint, the base for CRIU comes to be in what `place` makes. Raises DumpFailed if
        another dump of the tree is going on. All else only makes the dump full.
        """
        self.base, self.tracks, self._was_looked_at = None, False, False
        if self.followed is None or self.is_late:
            return
        try:
            keeper = self.followed.tell()
            if why := _of_another(keeper, criu):
                if keeper.criu == str(criu):
                    self.followed.retire()
                self.give_up(why)
                return
            began = self.followed.begin()
        except HostCannot as error:
            self.give_up(error.message)
            return
        self.tracks = began.tracks
        self.environment = ("env", *(f"{name}={value}" for name, value in keeper.environment.items()))
        why = "" if began.base else self._unfit or (began.tracks and self.followed.lost) or began.why
        self._unfit = ""
        self.told = Tracked(keeper.tracker, keeper.why, why_full=why, whole=tuple(one.why for one in began.whole))
        if began.base:
            self._count_from(repository, began, keeper.root, place)

    def frozen(self) -> None:
        """In the hold: before CRIU resets the bits, or before it ends the tree."""
        self._was_looked_at = True
        self._say(Session.frozen)

    def committed(self, name: str) -> None:
        """It is kept: the id of a checkpoint that is durable, or the directory of a round.

        If CRIU reset the bits and came to no hold, as one that meanwhile takes no preload library, the next is full.
        """
        if self._was_looked_at or not self.tracks:
            self._say(lambda followed: followed.committed(name))

    def counted(self, found: DumpStats) -> Tracked:
        """What it came to."""
        return replace(self.told, written_pages=found.pages_written, left_pages=found.pages_skipped_parent)

    def unfit(self, why: str) -> None:
        """CRIU found that the tree does not fit the base: what begins next is full, and that is why."""
        self.base = None
        self.told = Tracked(self.told.tracker, self.told.why, why_full=why)
        self._unfit = why

    def give_up(self, why: str) -> None:
        """From now on all is dumped in full."""
        self.close()
        self.followed = self.base = None
        self.tracks = False
        self.told = Tracked(self.told.tracker, self.told.why, why_full=why)

    def close(self) -> None:
        """The dump is over."""
        if self.followed is not None:
            self.followed.close()

    def _count_from(self, repository: Repository, began: Round, root: int, place: Callable[[], Path]) -> None:
        name = began.base
        try:
            self.base = (
                after_rounds(repository, Path(name)) if "/" in name else after_checkpoint(repository, name, place())
            )
            for one in began.whole:
                # Of a process that it finds there CRIU leaves the vdso to the base, which an exec has moved.
                self.base.pagemap(one.pid).unlink(missing_ok=True)
        except (NoSuchCheckpoint, IntegrityError, StoreUnusable) as error:
            self.told = replace(self.told, why_full=error.message, whole=())
        else:
            whole = (*self.told.whole, *_left_out(self.base, began, root))
            self.told = replace(self.told, base=self.base.checkpoint, rounds=self.base.rounds, whole=whole)

    def _say(self, what: Callable[[Session], None]) -> None:
        """A keeper that has ended, or is late, harms this dump in nothing: to hear us go makes the next one full.

        That it hears when this one is over, which may need the rounds that it keeps.
        """
        if self.followed is not None and not self.is_late:
            try:
                what(self.followed)
            except HostCannot:
                self.is_late = True


def _left_out(base: Base, began: Round, root: int) -> Iterator[str]:
    """Clauses on processes below `root` of which CRIU has taken nothing in a round, and so takes all now."""
    process = proc.read_process(root) if base.rounds else None
    told = {one.pid for one in began.whole}
    for one in proc.read_tree(process).processes if process is not None else ():
        if one.state == "stopped" and one.pid not in told and not base.pagemap(one.pid).exists():
            yield f"PID {one.pid}: it is stopped, and a round copies nothing of it"


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


def foreseen(
    root: proc.Process, criu: Path, store: Callable[[], Repository], *, wanted: bool | None, apart: bool
) -> Tracked | None:
    """What a dump now, by this CRIU into this store, would have to do with the one before it.

    As far as that can be told without touching the tree. Where it would be full, `why_full` says why.
    """
    if wanted is False:
        return None
    if apart:
        return Tracked("", "tracker: none", why_full=_APART) if wanted else None
    followed = running(root)
    if followed is None:
        lost = was_killed(root)
        why = ENDED if lost else "no tracker of this tree is running yet"
        return Tracked("", "", why_full=f"{why}; the dump starts one if it can") if wanted or lost else None
    try:
        with closing(followed):
            keeper = followed.tell()
    except HostCannot as error:
        return Tracked("", "", why_full=error.message)
    told = Tracked(keeper.tracker, keeper.why, why_full=_of_another(keeper, criu) or keeper.why_full)
    if not keeper.base or told.why_full:
        return told
    try:
        if "/" in keeper.base:
            return replace(told, rounds=after_rounds(store(), Path(keeper.base)).rounds)
        return replace(told, base=stored(store(), keeper.base))
    except (NoSuchCheckpoint, IntegrityError, StoreUnusable) as error:
        return replace(told, why_full=error.message)


def _of_another(keeper: Keeper, criu: Path) -> str:
    """Why the tracker that is kept does not work with us and this CRIU, or nothing."""
    if keeper.criu != str(criu):
        return f"the tracker works with another CRIU, {keeper.criu}; to begin anew: crckpt trackers --end {keeper.root}"
    if keeper.identity != identity(criu):
        return "crckpt or CRIU was exchanged since its tracker was started: the next dump starts another"
    return ""
