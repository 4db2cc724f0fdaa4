"""Two copies are impossible: every interleaving of steps, messages, deaths, cut links and resumes is searched.

The model has no states of its own: what each side writes, and what may follow, is the table that the code uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
from model_search import describe_path, find_reachable
from msgspec import Struct
from msgspec.structs import replace

from crckpt.store.move_states import RULES, Side, State

Tree = Literal["none", "runs", "held", "unfinished"]
"""A tree on one side. At the source `held` is frozen, at the destination built and not running.

At the destination `unfinished` is one whose CRIU was killed together with its crckpt: it waits for ever.
"""


class World(Struct, frozen=True):
    """Both hosts. `alive`: the crckpt of each side. `wire`: messages on their way; the link may lose all of them.

    `hold`: of the source, undecided until crckpt or CRIU's side wins the rename. `asked`: for a tree over there.
    """

    source: State = "copying"
    destination: State = "receiving"
    source_alive: bool = True
    destination_alive: bool = True
    here: Tree = "runs"
    there: Tree = "none"
    hold: Literal["none", "undecided", "commit", "abort"] = "none"
    linked: bool = True
    wire: tuple[str, ...] = ()
    asked: bool = False
    faults: int = 0


MOST_FAULTS = 4


def written(side: Side, before: State, after: State) -> State:
    assert after in RULES[side][before].next, f"{side}: {before} -> {after}"
    return after


def source_steps(world: World) -> Iterator[World]:  # noqa: C901 one branch for each state
    """The next steps of crckpt on the source, or of CRIU's side of its hold."""
    if world.hold == "undecided" and world.here == "held" and (not world.source_alive or world.faults):
        # hold.c aborts by itself if crckpt has died or is silent.
        yield replace(world, hold="abort")
    if world.hold == "abort" and world.here == "held":
        yield replace(world, here="runs")
    if world.hold == "commit" and world.here == "held":
        yield replace(world, here="none")
    if not world.source_alive:
        return
    match world.source:
        case "copying":
            state = written("source", world.source, "handing-over")
            yield replace(world, source=state, here="held", hold="undecided")
        case "handing-over" if world.hold == "undecided":
            if world.linked and not world.asked:
                yield replace(world, wire=(*world.wire, "prepare"), asked=True)
            if "prepared" in world.wire:
                state = written("source", world.source, "committing")
                yield replace(world, source=state, wire=without(world.wire, "prepared"))
            # A failure over there, a lost connection, an interruption.
            yield replace(world, hold="abort")
        case "committing" if world.hold == "undecided":
            yield replace(world, hold="commit")
        case "committing" if world.here == "none":
            yield replace(world, source=written("source", world.source, "ended"))
        case "ended" if world.linked and "ended" not in world.wire and world.destination in ("prepared", "committed"):
            yield replace(world, wire=(*world.wire, "ended"))
    if world.source == "ended" and "running" in world.wire:
        yield replace(world, source=written("source", "ended", "done"), wire=without(world.wire, "running"))
    if world.source in ("copying", "handing-over", "committing") and world.hold == "abort" and world.here == "runs":
        yield replace(world, source=written("source", world.source, "aborted"))
    if world.source == "aborted" and world.linked and "abort" not in world.wire:
        yield replace(world, wire=(*world.wire, "abort"))


def destination_steps(world: World) -> Iterator[World]:  # noqa: C901 as above
    """The next steps of crckpt on the destination, or of CRIU's side of its hold."""
    if world.there == "held" and world.destination != "done" and (not world.destination_alive or not world.linked):
        # The hold's other side ends what was built.
        yield replace(world, there="none")
    if not world.destination_alive:
        return
    match world.destination:
        case "receiving" if "prepare" in world.wire and world.there == "none":
            yield replace(world, there="held", wire=without(world.wire, "prepare"))
        case "receiving" if world.there == "held":
            state = written("destination", world.destination, "prepared")
            yield replace(world, destination=state, wire=(*world.wire, "prepared") if world.linked else ())
        case "prepared" if "ended" in world.wire:
            state = written("destination", world.destination, "committed")
            yield replace(world, destination=state, wire=without(world.wire, "ended"))
        case "committed" if world.there == "none":
            # From the store.
            yield replace(world, there="held")
        case "committed" if world.there == "held":
            yield replace(world, there="runs")
        case "committed" if world.there == "runs":
            yield replace(world, destination=written("destination", world.destination, "done"))
        case "done" if world.linked and "running" not in world.wire:
            yield replace(world, wire=(*world.wire, "running"))
    if "abort" in world.wire and world.destination in ("receiving", "prepared"):
        state = written("destination", world.destination, "aborted")
        there: Tree = "none"
        yield replace(world, destination=state, there=there, wire=without(world.wire, "abort"))


def faults(world: World) -> Iterator[World]:
    """Whatever may fail at any moment."""
    if world.faults == MOST_FAULTS:
        return
    more = replace(world, faults=world.faults + 1)
    if world.source_alive:
        yield replace(more, source_alive=False, wire=())
    if world.destination_alive:
        yield replace(more, destination_alive=False, wire=())
        if world.there == "held":
            # With CRIU.
            yield replace(more, destination_alive=False, wire=(), there="unfinished")
    if world.linked:
        yield replace(more, linked=False, wire=())
    for message in set(world.wire):
        yield replace(more, wire=without(world.wire, message))


def recoveries(world: World) -> Iterator[World]:
    """The link heals. A new crckpt judges the record of a dead one, as `Move.judge` does, and goes on from it."""
    if not world.linked and not (world.there == "held" and world.destination_alive):
        yield replace(world, linked=True)
    if not world.source_alive and not (world.hold == "undecided" or (world.hold != "none" and world.here == "held")):
        # crckpt does not decide about a tree that CRIU still holds.
        state, rule = world.source, RULES["source"][world.source]
        if rule.after_death == "aborted":
            state = "aborted"
        if rule.after_death == "tree-decides":
            state = "aborted" if world.here == "runs" else "ended"
        yield replace(world, source=state, source_alive=True)
    if not world.destination_alive and world.there != "held":
        state, rule = world.destination, RULES["destination"][world.destination]
        if rule.after_death == "aborted":
            state = "aborted"
        if state == "committed" and world.there == "runs":
            # The identity of what was built is in the record.
            state = "done"
        # An unfinished tree is ended first.
        there: Tree = "none" if world.there == "unfinished" else world.there
        yield replace(world, destination=state, destination_alive=True, there=there)


def without(wire: tuple[str, ...], message: str) -> tuple[str, ...]:
    left = list(wire)
    left.remove(message)
    return tuple(left)


def next_worlds(world: World, *, failing: bool) -> Iterator[World]:
    yield from source_steps(world)
    yield from destination_steps(world)
    yield from recoveries(world)
    if failing:
        yield from faults(world)


@pytest.fixture(scope="module")
def worlds() -> dict[World, World | None]:
    return find_reachable([World()], lambda world: next_worlds(world, failing=True))


def test_two_copies_of_a_moved_tree_never_run(worlds: dict[World, World | None]) -> None:
    assert len(worlds) > 1_000
    for world in worlds:
        assert not (world.here == "runs" and world.there == "runs"), describe_path(world, worlds)


def test_tree_runs_only_where_the_table_says(worlds: dict[World, World | None]) -> None:
    for world in worlds:
        if world.source_alive and world.here == "runs" and world.source != "committing":
            can_run = RULES["source"][world.source].runs or world.hold == "abort"
            assert can_run, describe_path(world, worlds)
        if world.there == "runs":
            assert world.destination in ("committed", "done"), describe_path(world, worlds)


def test_exactly_one_copy_is_reachable_from_every_state(worlds: dict[World, World | None]) -> None:
    # Backwards: which worlds lead to one that is settled, without another fault?
    before: dict[World, list[World]] = {world: [] for world in worlds}
    for world in worlds:
        for after in next_worlds(world, failing=False):
            before[after].append(world)
    settled = [
        world
        for world in worlds
        if (world.here == "runs") != (world.there == "runs")
        and RULES["source"][world.source].is_over
        and RULES["destination"][world.destination].is_over | (world.source == "aborted")
    ]
    leading = find_reachable(settled, lambda world: iter(before[world]))
    lost = next((world for world in worlds if world not in leading), None)
    assert lost is None, describe_path(lost, worlds) if lost else ""


def test_tree_that_does_not_run_yet_cannot_be_restored(worlds: dict[World, World | None]) -> None:
    # A restore by hand on either side would be a second copy, or would become one.
    for world in worlds:
        is_undecided = world.here == "held" or world.source == "ended" or world.destination in ("prepared", "committed")
        if is_undecided and world.source not in ("copying", "aborted") and not RULES["source"][world.source].is_over:
            rule = RULES["source"][world.source]
            assert rule.forbids_restore or rule.after_death == "aborted"


def test_every_state_of_a_move_is_reached(worlds: dict[World, World | None]) -> None:
    assert {world.source for world in worlds} == set(RULES["source"])
    assert {world.destination for world in worlds} == set(RULES["destination"])


@pytest.mark.parametrize("side", RULES)
def test_table_of_move_states_leads_only_to_known_states(side: Side) -> None:
    for state, rule in RULES[side].items():
        assert set(rule.next) <= set(RULES[side]), state
        # From a state that forbids restores, a resume leads on.
        assert not (rule.forbids_restore and RULES[side][state].is_over)
