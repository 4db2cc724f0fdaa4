"""The processes whose memory is filled, and what they have forked meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.proc import Identity, procfs
from crckpt.host.proc.status import Stat, read_stat
from crckpt.ops.lazy.marks import is_incomplete


class Family(Struct, frozen=True):
    """Restored processes, their users, and the layouts of their address spaces."""

    tasks: tuple[Identity, ...] = ()
    users: frozenset[int] = frozenset()
    layouts: frozenset[tuple[int, int, int]] = frozenset()

    @classmethod
    def of(cls, tasks: Iterable[Identity]) -> Family:
        """Look at restored processes, which live now."""
        found = tuple(tasks)
        layouts = (stat.layout for each in found if (stat := _read(each.pid)) is not None and stat.start == each.start)
        return cls(found, frozenset(user for each in found for user in _find_user(each)), frozenset(layouts))

    def find_living(self) -> Iterator[Identity]:
        """Find those that live, and all that descend from them."""
        stats = {pid: stat for pid in procfs.pids() if (stat := _read(pid)) is not None}
        found = {each.pid for each in self.tasks if each.pid in stats and stats[each.pid].start == each.start}
        children: dict[int, list[int]] = {}
        for pid, stat in stats.items():
            children.setdefault(stat.ppid, []).append(pid)
        waiting = [*found]
        while waiting:
            new = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
            found.update(new)
            waiting.extend(new)
        since = max((each.start for each in self.tasks), default=0)
        for pid, stat in stats.items():
            process = Identity(procfs.boot_id(), pid, stat.start)
            if pid in found or (stat.start >= since and self._is_orphan(process, stat)):
                yield process

    def _is_orphan(self, process: Identity, stat: Stat) -> bool:
        """Return whether it is a child that has lost its parent, and does not run another program yet."""
        # A fork's child has the layout of its parent, which differs each time that a program is started. Without
        # address space randomization other users may have the same.
        if stat.layout not in self.layouts or self.users.isdisjoint(_find_user(process)):
            return False
        return is_incomplete(process.pid)


def _read(pid: int) -> Stat | None:
    with suppress(OSError):
        stat = read_stat(pid)
        return None if stat.state in ("Z", "X") else stat
    return None


def _find_user(task: Identity) -> Iterator[int]:
    process = proc.read_process(task.pid)
    if process is not None and process.identity == task:
        yield process.uids[0]
