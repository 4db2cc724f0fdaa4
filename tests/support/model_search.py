"""Search a model: all worlds that its steps can reach, and the way to one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

World = TypeVar("World")


def find_reachable(starts: list[World], successors: Callable[[World], Iterable[World]]) -> dict[World, World | None]:
    """Find all worlds that can be reached, each with the one before."""
    found: dict[World, World | None] = dict.fromkeys(starts)
    left = deque(starts)
    while left:
        world = left.popleft()
        for after in successors(world):
            if after not in found:
                found[after] = world
                left.append(after)
    return found


def describe_path(world: World, found: dict[World, World | None]) -> str:
    """Describe the worlds on the way to this one, a line each."""
    steps = []
    at: World | None = world
    while at is not None:
        steps.append(str(at))
        at = found[at]
    return "\n".join(reversed(steps))
