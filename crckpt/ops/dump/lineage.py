"""Find what a dump counts from: the keeper of the tree's tracker knows what was written since.

CRIU gets it as parent images: page maps without pages. Rounds since the last checkpoint lie in directories numbered
from 1. The page maps of round N lie next to it in `maps-N`, those of the checkpoint before in `base-ID`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from crckpt.errors import HostCannot, IntegrityError, NoSuchCheckpoint, StoreUnusable
from crckpt.helper.channel import HelperOutdated
from crckpt.helper.kinds import KEEPER, record_path
from crckpt.host import proc
from crckpt.host.disk.files import make_private_directory, remove_tree, write_unsynced
from crckpt.images.pagemap import PARENT, is_pagemap, is_parent_image, read_pagemap, write_pagemap
from crckpt.model import CheckpointId
from crckpt.ops.dump.result import LineageSummary
from crckpt.ops.last_checkpoint import UNKNOWN_ROOT
from crckpt.store import Repository, materialise_base
from crckpt.tracking.dump_basis import Base, CheckpointBase, DumpBasis, RoundBase
from crckpt.tracking.keeper.client import (
    KILLED,
    KeeperSession,
    Untracked,
    find_session,
    start_session,
    was_ended,
    was_killed,
)
from crckpt.tracking.keeper.protocol import Keeper
from crckpt.tracking.preload.library import identity

_NOT_WANTED: Final = "--no-incremental was given"
_CHANGED: Final = "crckpt or CRIU has changed since the tracker was started; the next dump starts a new one"
_AGAIN: Final = "; --incremental starts a new tracker"
_STARTS: Final = "; the dump tries to start one"
ENDED_ON_REQUEST: Final = "its tracker was ended (crckpt ps --end)"
_APART: Final = "crckpt cannot track a tree whose CRIU runs as another user or in namespaces of the tree"
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


class Lineage:
    """The lineage of one tree: what its dumps and rounds count from. Each does `begin`, `report_freeze`, `commit`; then
    `close`.

    `parent` is what CRIU counts from, None for a full dump. If CRIU `tracks`, it runs with `environment`, and the next
    dump can count from this one. A keeper that has ended or is late is asked nothing more (`has_lost_keeper`).
    """

    def __init__(self, summary: LineageSummary, keeper: KeeperSession | None = None) -> None:
        """Without `keeper` each dump is full, and the next one cannot count from it."""
        self.summary = summary
        self.parent: ParentImages | None = None
        self.environment: tuple[str, ...] = ()
        self.tracks = False
        self.keeper = keeper
        self.has_lost_keeper = False
        self._mismatch = ""
        self._saw_freeze = False

    def begin(self, repository: Repository, criu: Path, place: Callable[[], Path]) -> None:
        """Begin a dump or round: the next one is full unless this one is committed.

        If it counts from a checkpoint, write CRIU's parent images to `place()`. Raises DumpFailed if another dump of
        the tree is going on. Every other failure makes the dump full.
        """
        self.parent, self.tracks, self._saw_freeze = None, False, False
        if self.keeper is None or self.has_lost_keeper:
            return
        try:
            keeper = self.keeper.describe()
            if why := _why_incompatible(keeper, criu):
                # An exchanged crckpt or CRIU needs a new keeper. The keeper of another CRIU is the user's to end.
                if keeper.criu == str(criu):
                    self.keeper.retire()
                self.give_up(why)
                return
            basis = self.keeper.begin()
        except HelperOutdated:
            self.keeper.retire()
            self.give_up(_CHANGED)
            return
        except HostCannot as error:
            self.give_up(error.message)
            return
        self.tracks = basis.tracks
        # LD_PRELOAD and the settings of the library, set by env(1) so that only CRIU loads it.
        self.environment = ("env", *(f"{name}={value}" for name, value in keeper.environment.items()))
        why = "" if basis.base else self._mismatch or (basis.tracks and self.keeper.why_new) or basis.why
        self._mismatch = ""
        whole = tuple(process.why for process in basis.whole)
        self.summary = LineageSummary(keeper.tracker, keeper.sentence, why_full=why, whole=whole)
        if basis.base is not None:
            self._count_from(basis.base, basis, repository, keeper.root, place)

    def predict(self, store: Callable[[], Repository], criu: Path) -> LineageSummary:
        """Predict the summary of a dump that begins now. Nothing is begun."""
        if self.keeper is None:
            return self.summary
        try:
            keeper = self.keeper.describe()
        except HostCannot as error:
            return LineageSummary("", "", why_full=error.message)
        base, why_full = keeper.counts_from, _why_incompatible(keeper, criu) or keeper.why_full
        summary = LineageSummary(keeper.tracker, keeper.sentence, why_full=why_full)
        if base is None or why_full:
            return summary
        try:
            if isinstance(base, RoundBase):
                return replace(summary, rounds=find_parent_images(store(), base).rounds)
            return replace(summary, base=find_checkpoint(store(), base.id))
        except (NoSuchCheckpoint, IntegrityError, StoreUnusable) as error:
            return replace(summary, why_full=error.message)

    def report_freeze(self) -> None:
        """Have the keeper look at the frozen tree, before CRIU resets the bits or ends the tree."""
        self._saw_freeze = True
        self._report(KeeperSession.check_freeze)

    def commit(self, base: Base) -> None:
        """Report that `base` is kept: a checkpoint that is durable, or a round."""
        # A CRIU that takes no preload library any more resets the bits without a freeze that we see: not reported, it
        # makes the next dump full.
        if self._saw_freeze or not self.tracks:
            self._report(lambda keeper: keeper.commit(base))

    def restart_full(self, why: str) -> None:
        """Make what begins next full, because the tree does not match the base."""
        self.parent = None
        self.summary = LineageSummary(self.summary.tracker, self.summary.why, why_full=why)
        self._mismatch = why

    def give_up(self, why: str) -> None:
        """Make everything from now on full."""
        self.close()
        self.keeper, self.tracks = None, False
        self.restart_full(why)

    def close(self) -> None:
        """End the dump for the keeper."""
        if self.keeper is not None:
            self.keeper.close()

    def _count_from(
        self, base: Base, basis: DumpBasis, repository: Repository, root: int, place: Callable[[], Path]
    ) -> None:
        try:
            if isinstance(base, RoundBase):
                self.parent = find_parent_images(repository, base)
            else:
                self.parent = make_parent_images(repository, base, place())
            for process in basis.whole:
                # CRIU leaves the vDSO of a process that it finds there to the parent. An exec has moved it.
                self.parent.pagemap(process.pid).unlink(missing_ok=True)
        # If the base is damaged, removed or in another store, the dump is full: nothing worse.
        except (NoSuchCheckpoint, IntegrityError, StoreUnusable) as error:
            self.summary = replace(self.summary, why_full=error.message, whole=())
            return
        # Processes that rounds did not copy: CRIU dumps them in full.
        now = proc.read_process(root) if self.parent.rounds else None
        named, missed = {process.pid for process in basis.whole}, []
        for one in proc.read_tree(now).processes if now is not None else ():
            if one.state == "stopped" and one.pid not in named and not self.parent.pagemap(one.pid).exists():
                missed.append(f"PID {one.pid}: a round copies nothing of a stopped process")
        whole = (*self.summary.whole, *missed)
        self.summary = replace(self.summary, base=self.parent.checkpoint, rounds=self.parent.rounds, whole=whole)

    def _report(self, message: Callable[[KeeperSession], None]) -> None:
        """Tell the keeper."""
        if self.keeper is None or self.has_lost_keeper:
            return
        try:
            message(self.keeper)
        # A dead or slow keeper is ignored: the next dump is full.
        except HostCannot:
            # The connection stays open: a slow keeper must not remove the rounds that this dump needs.
            self.has_lost_keeper = True


def open_lineage(
    root: proc.Process,
    criu: Path,
    *,
    wanted: bool | None,
    apart: bool,
    before: proc.Identity | None = None,
    starts: bool = True,
) -> Lineage | None:
    """The lineage of the tree below `root`. If it `starts`, a tracker is started if `wanted`, or if one was killed.

    None if `wanted` is not True and neither the tree nor `before`, the tracked root that the job's last checkpoint
    names, was tracked: else the lineage says why the dump is full. `apart`: CRIU runs as another user or in namespaces
    of the tree.
    """
    was_tracked = before is not None or record_path(KEEPER, root.identity).exists() or was_ended(root)
    if wanted is False or apart:
        why, said = (_NOT_WANTED, "") if wanted is False else (_APART, "tracker: none" if wanted else "")
        return Lineage(LineageSummary("", said, why_full=why)) if wanted or was_tracked else None
    why_new = why_no_tracker(root, before)
    try:
        keeper = find_session(root)
        killed = keeper is None and was_killed(root)
        if keeper is None and starts and (wanted or killed):
            keeper = start_session(root, criu, KILLED if killed else why_new)
    except Untracked as error:
        why_full = f"the tree cannot be tracked: {error.message}"
        return Lineage(LineageSummary("", f"tracker: none ({error.message})", why_full=why_full))
    except HostCannot as error:
        return Lineage(LineageSummary("", error.message, why_full=error.message))
    if keeper is not None:
        return Lineage(LineageSummary("", ""), keeper)
    why = KILLED if killed else why_new or ("this tree has no tracker yet" if wanted else "")
    rest = _STARTS if wanted or killed else _AGAIN
    return Lineage(LineageSummary("", "", why_full=f"{why}{rest}")) if why else None


def why_no_tracker(root: proc.Process, before: proc.Identity | None) -> str:
    """Say why the tree below `root`, which no keeper tracks, has lost its tracker; empty if it never had one."""
    if was_ended(root):
        return ENDED_ON_REQUEST
    if before is None:
        return ""
    if before == UNKNOWN_ROOT:
        return "the last checkpoint of the job was incremental, but no tracker runs for this tree"
    now = root.identity
    if before.boot_id != now.boot_id:
        return "the host was rebooted, or is another one, since the program was tracked"
    if before == now:
        return "its tracker has ended"
    return "the tree was restored or started again since it was tracked"


def _why_incompatible(keeper: Keeper, criu: Path) -> str:
    """Return why this tracker does not work with this crckpt and CRIU; empty if it does."""
    if keeper.criu != str(criu):
        restart = f"crckpt ps --end {keeper.root}"
        return f"the tracker was started for another CRIU, {keeper.criu}; to start a new one: {restart}"
    if keeper.identity != identity(criu):
        return _CHANGED
    return ""
