"""Count which batches of pages a process still lacks. Pure."""

from __future__ import annotations


class Batches:
    """The batches that are not in a process yet: `again`, then all from `first` on. They are claimed in this order."""

    def __init__(self, count: int, first: int = 0, again: frozenset[int] = frozenset()) -> None:
        """There are `count` of them."""
        self._count = count
        self._next = first
        self._again = set(again)
        self._claimed: set[int] = set()

    def copy(self) -> Batches:
        """Return those that a fork of the process lacks: claimed ones may be incomplete there."""
        return Batches(self._count, self._next, frozenset(self._again | self._claimed))

    @property
    def are_complete(self) -> bool:
        """Whether none is left."""
        return not self._again and not self._claimed and self._next >= self._count

    def claim(self) -> int | None:
        """Take the next one to fill; None if there is none."""
        if self._again:
            batch = self._again.pop()
        elif self._next < self._count:
            batch = self._next
            self._next += 1
        else:
            return None
        self._claimed.add(batch)
        return batch

    def finish(self, batch: int) -> None:
        """A claimed one is in the process."""
        self._claimed.remove(batch)

    def give_back(self, batch: int) -> None:
        """A claimed one could not be filled yet."""
        self._claimed.remove(batch)
        self._again.add(batch)
