"""How long a dump would keep a tree frozen: foreseen from trials on this host and from the rounds before it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.disk import space
from crckpt.host.observe.tree import Observed
from crckpt.host.proc.maps import count_maps
from crckpt.model import PAGE_SIZE
from crckpt.ops.dump.lineage import Copied
from crckpt.preflight.dump.cost import DumpSpeed, Load, dump_speed, usual_ms
from crckpt.preflight.dump.files import ghost_files
from crckpt.tracking.tracker import written

_ROUNDS: Final = ("first", "second")
"""What is measured is measured so often; the second dump shows what changes in an idle tree."""


class Trial(Struct, frozen=True):
    """What a small tree's dumps came to: how quick they were, the tree, its root's PID, and where their images are."""

    speed: DumpSpeed
    load: Load
    root: int
    images: tuple[Path, ...]


def trial(criu: Path, staging: Path) -> Trial:
    """Dump a small tree of ours with this CRIU into the private directory `staging`. Raises HostCannot."""
    # Loaded only for a trial: most dumps need none.
    from statistics import fmean

    from crckpt.criu.speed import running_trial_tree

    loads: list[Load] = []
    with running_trial_tree(criu, staging) as tried:

        def look() -> None:
            loads.append(_load_of(tried.root, tried.child))

        dumps = [tried.dump(name, look) for name in _ROUNDS]
    quick = dump_speed(
        loads[0],
        memory_ms=fmean(dump.memory_ms for dump in dumps),
        frozen_ms=fmean(dump.frozen_ms for dump in dumps),
        dump_ms=fmean(dump.dump_ms for dump in dumps),
    )
    return Trial(quick, loads[0], tried.root, tuple(dump.images for dump in dumps))


def load_of_tree(seen: Observed) -> Load:
    """What a dump of the tree's time grows with."""
    live = [process for process in seen.tree.processes if process.state != "zombie"]
    return Load(
        memory=seen.memory + _ghosts(seen),
        maps=sum(count_maps(process.pid) for process in live),
        descriptors=len(seen.descriptors),
        threads=sum(len(process.threads) for process in live),
        processes=len(live),
    )


class Forecast(Struct, frozen=True):
    """What a dump of a tree of this load, at this speed, would take; its processes are those below `root`."""

    speed: DumpSpeed
    load: Load
    root: proc.Process

    def full_ms(self) -> float:
        """Milliseconds of the freeze of a full dump."""
        return self.speed.byte_ms * self.load.memory + self._else_ms()

    def after_ms(self, last: Copied, tracker: str) -> float:
        """Milliseconds of the freeze of a dump now, the `last` round before it; `tracker` by its name.

        CRIU is to do again all that it did in the freeze of the round, where it was looked at as well, and beyond that
        it writes what is not memory, and the pages, of which some more are written until it has started.
        """
        return self.ms_of(last, *left_to_freeze(self.root, tracker))

    def ms_of(self, last: Copied, tracked: int, whole: int) -> float:
        """The same, with so many bytes left to the freeze as `left_to_freeze` gives."""
        # Nearly all of the round came after its reset of the bits.
        growth = 1 + self.speed.around_ms / max(last.ms, self.speed.around_ms)
        # Not more than all of it, which may have grown since it was looked at.
        most = max(self.load.memory, tracked + last.fixed_bytes + whole)
        memory = min(tracked * growth + last.fixed_bytes + whole, most)
        return last.frozen_ms + self.speed.byte_ms * memory + self._else_ms()

    def _else_ms(self) -> float:
        return self.speed.slowness * usual_ms(self.load)


def forecast(criu: Path, staging: Path, seen: Observed) -> Forecast:
    """Try this host's speed in the private directory `staging`. Raises HostCannot."""
    return Forecast(trial(criu, staging).speed, load_of_tree(seen), seen.tree.root)


def left_to_freeze(root: proc.Process, tracker: str) -> tuple[int, int]:
    """Bytes that were written below `root` since the last round, by what is tracked; those of stopped processes."""
    tracked = whole = 0
    now = proc.read_process(root.pid)
    if now is None or now.start != root.start:
        return tracked, whole
    for process in proc.read_tree(now).processes:
        with suppress(OSError):
            if process.state == "stopped":  # CRIU takes nothing of it in a round
                whole += proc.memory(process.pid)
            else:
                tracked += written(tracker, process.pid) * PAGE_SIZE
    return tracked, whole


def _ghosts(seen: Observed) -> int:
    """Bytes of files without a name, which CRIU copies; mapped ones that lie in memory count as that."""
    mapped = {path for path, *_ in seen.deleted_maps if is_in_memory(path)}
    return sum(size for path, size in ghost_files(seen) if path not in mapped)


def is_in_memory(path: str) -> bool:
    """Whether that file, which may have no name any more, lies in memory."""
    return space.is_in_memory(space.existing(Path(path).parent))


def _load_of(*pids: int) -> Load:
    threads = [process.threads for pid in pids if (process := proc.read_process(pid))]
    return Load(
        memory=proc.memory(*pids),
        maps=sum(count_maps(pid) for pid in pids),
        descriptors=sum(len(proc.descriptors(pid)) for pid in pids),
        threads=sum(map(len, threads)),
        processes=len(pids),
    )
