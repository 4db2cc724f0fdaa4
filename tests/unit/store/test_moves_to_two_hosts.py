"""The source never forgets a host that is in doubt: moves to two hosts, with faults and resumes in every order.

The first move may be aborted while its destination is prepared, and the next one go to another host. What is kept of
the first one, and what an answer means, are the functions that the code uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import pytest
from model_search import describe_path, find_reachable
from msgspec import Struct
from msgspec.structs import replace

from crckpt.store import move_states
from crckpt.store.move_states import FIRST, State, find_report_step, is_unreported

HOSTS = (0, 1)
MOST_MOVES = 2
MOST_FAULTS = 3
Tree = Literal["none", "runs", "held"]


class Record(Struct, frozen=True):
    """The record of a move on one side. `is_alive`: its crckpt works on it."""

    number: int
    state: State
    host: int
    is_alive: bool = True
    is_settled: bool = True


class Host(Struct, frozen=True):
    """A destination. A message to it, and its answer, are one step, or are lost with the link."""

    record: Record | None = None
    tree: Tree = "none"
    linked: bool = True


class World(Struct, frozen=True):
    """The source and the destinations; `kept` are records of older moves."""

    source: Record | None = None
    tree: Tree = "runs"
    kept: frozenset[Record] = frozenset()
    hosts: tuple[Host, Host] = (Host(), Host())
    faults: int = 0


class Rules(Struct, frozen=True):
    """Which records the source keeps, and when a record is settled."""

    keeps: Callable[[Record], bool]
    is_same_store: Callable[[int, int], bool]


def is_owed(record: Record) -> bool:
    return is_unreported("source", record.state, is_settled=record.is_settled)


RULES = Rules(keeps=is_owed, is_same_store=lambda asked, meant: asked == meant)
# The rules of an earlier version: a new move replaces the old record after asking only its own destination.
RULES_THAT_FORGET_A_HOST = Rules(keeps=lambda _record: False, is_same_store=lambda asked, meant: asked == meant)
RULES_THAT_ASK_ANY_STORE = Rules(keeps=is_owed, is_same_store=lambda _asked, _meant: True)


def at(world: World, number: int, host: Host) -> World:
    first, second = world.hosts
    return replace(world, hosts=(host, second) if number == 0 else (first, host))


def written(record: Record, side: Literal["source", "destination"], state: State) -> Record:
    assert state in move_states.RULES[side][record.state].next, (side, record, state)
    return replace(record, state=state)


def judged(record: Record | None, side: Literal["source", "destination"]) -> Record | None:
    """The record as the next crckpt reads it, if the one that wrote it has died before a commit."""
    if record is not None and not record.is_alive and record.state in ("copying", "handing-over", "receiving"):
        return replace(record, state="aborted")
    return record


def begins(world: World, rules: Rules) -> Iterator[World]:
    """The source begins a move to any host that it can reach."""
    last = judged(world.source, "source")
    if (last is not None and not move_states.RULES["source"][last.state].is_over) or world.tree != "runs":
        return
    number = last.number + 1 if last is not None else 1
    for host in HOSTS if number <= MOST_MOVES else ():
        if not world.hosts[host].linked:
            continue
        owed = {record for record in (last, *world.kept) if record is not None and is_owed(record)}
        if any(record.host == host for record in owed):
            # The earlier move to this host is settled first: see `reports`.
            continue
        kept = world.kept | {last} if last is not None and rules.keeps(last) else world.kept
        yield replace(world, source=Record(number, FIRST["source"], host), kept=frozenset(kept))


def hand_overs(world: World) -> Iterator[World]:
    """Both sides go on with the current move."""
    source = world.source
    if source is None or not source.is_alive:
        return
    there = world.hosts[source.host]
    last = judged(there.record, "destination")
    if source.state == "copying":
        yield replace(world, source=replace(written(source, "source", "handing-over"), is_settled=False), tree="held")
    if source.state == "handing-over":
        # Any failure aborts the move.
        aborted = replace(world, source=written(source, "source", "aborted"), tree="runs")
        yield aborted
        if there.linked and last is not None and last.number == source.number and last.is_alive:
            host = Host(replace(last, state="aborted", is_alive=False))
            yield at(
                replace(aborted, source=replace(written(source, "source", "aborted"), is_settled=True)),
                source.host,
                host,
            )
        if there.linked and (last is None or move_states.RULES["destination"][last.state].is_over):
            yield at(world, source.host, replace(there, record=Record(source.number, "receiving", source.host)))
        if (
            there.linked
            and last is not None
            and last.number == source.number
            and last.state == "prepared"
            and last.is_alive
        ):
            committing = written(source, "source", "committing")
            yield replace(world, source=written(committing, "source", "ended"), tree="none")
    if source.state == "ended" and there.linked and last is not None and last.number == source.number:
        # Over the same connection, or with --resume, which restores from the store.
        host = replace(there, record=replace(last, state="done", is_alive=False), tree="runs")
        yield at(replace(world, source=written(source, "source", "done")), source.host, host)


def destinations(world: World) -> Iterator[World]:
    """A destination builds its tree, and ends it once its connection is lost."""
    for number in HOSTS:
        host = world.hosts[number]
        record = host.record
        if record is None or not record.is_alive:
            continue
        if record.state == "receiving" and host.tree == "none":
            yield at(world, number, replace(host, record=written(record, "destination", "prepared"), tree="held"))
        is_current = world.source is not None and world.source.number == record.number and world.source.is_alive
        if not host.linked or not is_current or (world.source is not None and world.source.state == "aborted"):
            state: State = "aborted" if record.state == "receiving" else record.state
            yield at(world, number, replace(host, record=replace(record, state=state, is_alive=False), tree="none"))


def reports(world: World, rules: Rules) -> Iterator[World]:
    """`crckpt migrate --resume`, or the next move, speaks of an aborted move to a host: perhaps to the wrong one."""
    last = judged(world.source, "source")
    for record in {each for each in (last, *world.kept) if each is not None and is_owed(each)}:
        for number in HOSTS:
            host = world.hosts[number]
            found = judged(host.record, "destination")
            if not host.linked or (found is not None and found.is_alive):
                continue
            is_same_store = rules.is_same_store(number, record.host)
            there = found.state if found is not None and found.number == record.number else None
            if (
                there is None
                and is_same_store
                and (found is None or move_states.RULES["destination"][found.state].is_over)
            ):
                # It records that.
                found, there = Record(record.number, "aborted", number, is_alive=False), "aborted"
            step = find_report_step(there, is_same_store=is_same_store)
            assert step != "runs-there"
            if step == "unknown":
                continue
            if found is not None and found.number == record.number and step == "abort":
                found = written(found, "destination", "aborted")
            after = at(world, number, replace(host, record=found) if host.tree != "runs" else host)
            if record == last:
                yield replace(after, source=replace(record, is_settled=True))
            else:
                yield replace(after, kept=world.kept - {record})


def faults(world: World) -> Iterator[World]:
    if world.faults == MOST_FAULTS:
        return
    more = replace(world, faults=world.faults + 1)
    if world.source is not None and world.source.is_alive:
        is_before = world.source.state in ("copying", "handing-over")
        yield replace(more, source=replace(world.source, is_alive=False), tree="runs" if is_before else world.tree)
    for number in HOSTS:
        host = world.hosts[number]
        if host.linked:
            yield at(more, number, replace(host, linked=False))
        if host.record is not None and host.record.is_alive:
            yield at(more, number, Host(replace(host.record, is_alive=False), "none", host.linked))


def recoveries(world: World) -> Iterator[World]:
    for number in HOSTS:
        if not world.hosts[number].linked:
            yield at(world, number, replace(world.hosts[number], linked=True))
    if world.source is not None and not world.source.is_alive:
        yield replace(world, source=replace(judged(world.source, "source") or world.source, is_alive=True))


def next_worlds(world: World, rules: Rules, *, failing: bool) -> Iterator[World]:
    yield from begins(world, rules)
    yield from hand_overs(world)
    yield from destinations(world)
    yield from reports(world, rules)
    yield from recoveries(world)
    if failing:
        yield from faults(world)


def find_lost(rules: Rules) -> tuple[World | None, dict[World, World | None]]:
    """Find a world from which no sequence of steps ends all doubt, if there is one; and all worlds."""
    worlds = find_reachable([World()], lambda world: next_worlds(world, rules, failing=True))
    before: dict[World, list[World]] = {world: [] for world in worlds}
    for world in worlds:
        for after in next_worlds(world, rules, failing=False):
            before[after].append(world)
    decided = [
        world for world in worlds if not any(is_in_doubt(host) for host in world.hosts) and len(copies(world)) == 1
    ]
    leading = find_reachable(decided, lambda world: iter(before[world]))
    return next((world for world in worlds if world not in leading), None), worlds


def is_in_doubt(host: Host) -> bool:
    return host.record is not None and host.record.state in ("receiving", "prepared")


def copies(world: World) -> list[int]:
    """The places where the tree runs: -1 is the source."""
    return [
        number
        for number, tree in ((-1, world.tree), *((each, world.hosts[each].tree) for each in HOSTS))
        if tree == "runs"
    ]


def test_no_host_stays_in_doubt_and_two_copies_never_run() -> None:
    lost, worlds = find_lost(RULES)
    assert lost is None, describe_path(lost, worlds)
    assert len(worlds) > 1_000
    for world in worlds:
        assert len(copies(world)) <= 1, describe_path(world, worlds)
    # The case was searched: the second move is done, and the first host is still in doubt.
    assert any(is_in_doubt(world.hosts[0]) and world.hosts[1].tree == "runs" for world in worlds)


@pytest.mark.parametrize("rules", [RULES_THAT_FORGET_A_HOST, RULES_THAT_ASK_ANY_STORE], ids=["forgets", "asks anybody"])
def test_search_finds_a_forgotten_host(rules: Rules) -> None:
    lost, _ = find_lost(rules)
    assert lost is not None
    assert any(is_in_doubt(host) for host in lost.hosts)
