"""Records of moves: one for each job of a store, replaced at each step, durable before the step counts.

A destination in doubt waits for the source's word. So the record of an aborted move is kept under another name, until
that word was given, when another move of the job begins.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from crckpt.errors import IntegrityError, PreflightRefused, StoreUnusable
from crckpt.host.proc import LiveRoot
from crckpt.model import CheckpointId, JobName, MoveId
from crckpt.store.backend.local import Backend
from crckpt.store.documents import decode
from crckpt.store.layout import MOVES, NAME, REFS, UNREPORTED, move_name, unreported_name
from crckpt.store.move_states import FIRST, RULES, Rule, Side, State, is_unreported
from crckpt.store.owner import MOST_BYTES, Owner, identify_owner

_LONGEST_PEER: Final = 300
_LONGEST_WHY: Final = 4096
MOST_ROUNDS: Final = 1024
"""Checkpoints of rounds that a record names."""

# Seconds. A crckpt that was stopped while it writes must not stop all others.
_TURN_S: Final = 2.0

Peer = Annotated[str, Meta(pattern=rf"\A[^\x00-\x1f\x7f]{{1,{_LONGEST_PEER}}}\Z")]
"""The other side as the user typed it, or as it names itself."""


class Move(Struct, frozen=True):
    """The record of a move on one side.

    - `owner`: the crckpt that wrote it
    - `peer`: the other side
    - `checkpoint`: what is moved; None before the tree was frozen
    - `keeps_checkpoint`: of the destination: the checkpoint was there before, so it stays if the move is aborted
    - `root`: at the source the tree that is moved, at the destination the one that was built; None if there is none yet
    - `remote`: crckpt and the store there, as the source names them, for a later connection
    - `peer_store`: the store of the other side, as its Hello identifies it
    - `options`: for the restore, as the source's user chose them
    - `why`: why it was aborted
    - `rounds`: of the source: checkpoints of rounds, of this and of earlier moves, which nothing needs after the move
    - `is_settled`: of the source: nothing is left to report to the destination
    - `is_replaced`: the job's last move is another one: this record no longer says where the tree runs
    """

    id: MoveId
    side: Side
    state: State
    job: JobName
    peer: Peer
    owner: Owner
    began: Annotated[datetime, Meta(tz=True)]
    changed: Annotated[datetime, Meta(tz=True)]
    checkpoint: CheckpointId | None = None
    keeps_checkpoint: bool = False
    root: LiveRoot | None = None
    remote: tuple[str, ...] = ()
    options: dict[str, str | bool | tuple[str, ...] | None] = {}
    why: str = ""
    rounds: Annotated[tuple[CheckpointId, ...], Meta(max_length=MOST_ROUNDS)] = ()
    is_settled: bool = True
    peer_store: Annotated[str, Meta(max_length=1024)] = ""
    is_replaced: bool = False
    schema: int = 1

    @property
    def rule(self) -> Rule:
        """The rule of its state."""
        return RULES[self.side][self.state]

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do on this side."""
        return self.rule.is_over

    @property
    def forbids_restore(self) -> bool:
        """Whether no checkpoint of the job may be restored here now. The move was judged (`judge`)."""
        return self.rule.forbids_restore

    @property
    def leaves_tree_with_peer(self) -> bool:
        """Whether the move is over, and the tree runs on the other side as far as this side knows."""
        return (self.side, self.state) in (("source", "done"), ("destination", "aborted"))

    @property
    def is_unreported(self) -> bool:
        """Whether the destination may wait for the word that the move was aborted. The move was judged (`judge`)."""
        return is_unreported(self.side, self.state, is_settled=self.is_settled)

    def judge(self) -> Move:
        """Return the move in its present state, which differs if the crckpt that wrote the record has died."""
        if self.is_over or self.owner.is_alive:
            return self
        aborted = replace(self, state="aborted", why=self.why or f"crckpt (PID {self.owner.pid}) has died")
        match self.rule.after_death:
            case "aborted":
                return aborted
            case "unchanged":
                return self
        # The tree decides.
        if self.root is not None and (self.root.is_held() or self.root.is_unfinished()):
            return self
        runs = self.root is not None and self.root.find() is not None
        if self.side == "source":
            return aborted if runs else replace(self, state="ended")
        return replace(self, state="done") if runs else self


class UnreadableMove(Struct, frozen=True):
    """A record that cannot be read: why, and what to do. `job` is empty if the record alone names it."""

    job: JobName
    why: str
    remedy: str


def begin_move(side: Side, job: JobName, peer: str, move_id: MoveId | None = None) -> Move:
    """Return the record of a move that begins, by this process. It is not written."""
    now = datetime.now(UTC)
    peer = _clean(peer, _LONGEST_PEER) or "another host"
    return Move(
        id=move_id or MoveId(secrets.token_hex(8)),
        side=side,
        state=FIRST[side],
        job=job,
        peer=peer,
        owner=identify_owner(time.time()),
        began=now,
        changed=now,
    )


def advance(move: Move, state: State, **changes: object) -> Move:
    """Return the record in a state that may follow, written by this process. It is not stored.

    Raises ValueError for a state that must not follow: a bug, which must not cost a tree.
    """
    if state not in move.rule.next:
        raise ValueError(f"{state} must not follow {move.state} at the {move.side}")
    if "why" in changes:
        changes["why"] = _clean(str(changes["why"]), _LONGEST_WHY)
    return replace(take_over(move), state=state, **changes)


def take_over(move: Move) -> Move:
    """Return the record in the same state, owned by this process: it goes on with the move. It is not stored."""
    return replace(move, owner=identify_owner(time.time()), changed=datetime.now(UTC))


def store_move(backend: Backend, move: Move, *, replaces: str | None = None) -> Move:
    """Write the record, durably, in the place of that of the job's last move.

    `replaces` is the id of that move, if it may be no other; empty: there was none.

    Raises PreflightRefused if another crckpt has gone on with this move, or has begun another one: a crckpt that was
    stopped for long must not write what is no longer true. Raises OSError if the store cannot be written.
    """
    with _turn_taken(backend):
        last = read_move(backend, move.job)
        if last is None or last.id != move.id:
            _refuse_replacing(last, move, replaces)
            _keep_unreported(backend, last)
        elif last.state != move.state and move.state not in last.rule.next:
            raise PreflightRefused(
                f"the move of {move.job} is over here: {last.state}", hint="see what is recorded: crckpt migrate --list"
            )
        _put(backend, move_name(move.job), move)
    return move


def mark_reported(backend: Backend, move: Move) -> Move:
    """Record that the destination knows that the move was aborted."""
    reported = replace(take_over(move), is_settled=True)
    with _turn_taken(backend):
        # Another one has taken the place of a record that cannot be read.
        with suppress(StoreUnusable):
            last = read_move(backend, move.job)
            if last is not None and last.id == move.id:
                _put(backend, move_name(move.job), reported)
        with suppress(FileNotFoundError):
            backend.remove(unreported_name(move.id), "move")
    return reported


def _refuse_replacing(last: Move | None, move: Move, replaces: str | None) -> None:
    now = last.judge() if last is not None else None
    if now is not None and not now.is_over:
        raise PreflightRefused(
            f"another move of {move.job} is unfinished here", hint=f"finish it first: crckpt migrate --resume {now.id}"
        )
    has_changed = replaces is not None and replaces != (last.id if last is not None else "")
    if has_changed or (last is not None and move.state != FIRST[move.side] and not move.is_over):
        raise PreflightRefused(
            f"another move of {move.job} has begun since", hint="see what is recorded: crckpt migrate --list"
        )


def _keep_unreported(backend: Backend, last: Move | None) -> None:
    if last is not None and (now := last.judge()).is_unreported:
        _put(backend, unreported_name(now.id), replace(now, is_replaced=True))


def _put(backend: Backend, name: str, move: Move) -> None:
    backend.put(name, msgspec.json.format(msgspec.json.encode(move)), "move")


@contextmanager
def _turn_taken(backend: Backend) -> Iterator[None]:
    """Run the block while no other crckpt writes a record."""
    with ExitStack() as stack:
        # A backup may have left out an empty directory. Then there is no record yet.
        with suppress(FileNotFoundError):
            stack.enter_context(backend.turn_taken(REFS, _TURN_S))
        yield


def read_move(backend: Backend, job: JobName) -> Move | None:
    """Read the record of the last move of a job; None if there was none.

    Raises StoreUnusable if it cannot be read: then nobody knows which side has the program.
    """
    if NAME.fullmatch(job) is None:
        return None
    name = move_name(job)
    try:
        return decode(backend.read(name, MOST_BYTES), Move, name)
    except FileNotFoundError:
        return None
    except (IntegrityError, msgspec.ValidationError) as error:
        raise StoreUnusable(
            f"the record of the move of {job} cannot be read: {error}",
            hint=f"find out on which host {job} runs; if it runs nowhere, remove the file {backend.location}/{name}, "
            "then restore it",
        ) from error


def remove_move(backend: Backend, job: JobName) -> None:
    """Remove the record of a job's last move, if there is one. What is to be reported to its destination is kept."""
    with _turn_taken(backend):
        last = read_move(backend, job)
        _keep_unreported(backend, last)
        if last is not None:
            with suppress(FileNotFoundError):
                backend.remove(move_name(job), "move")


def read_all_moves(backend: Backend) -> tuple[tuple[Move, ...], tuple[UnreadableMove, ...]]:
    """Read the records of each job's last move, and of older ones that are unreported; and say which cannot be read.

    The oldest come first.
    """
    last, unreadable = read_last_moves(backend)
    # A crckpt that died in between has kept a record, and has not replaced it.
    found, ids, damaged = list(last), {move.id for move in last}, list(unreadable)
    for name in filter(NAME.fullmatch, backend.names_in(UNREPORTED)):
        path = unreported_name(MoveId(name))
        try:
            move = decode(backend.read(path, MOST_BYTES), Move, path)
        except FileNotFoundError:
            continue
        except (IntegrityError, msgspec.ValidationError) as error:
            why = f"the record of the aborted move {name} cannot be read: {error}"
            remedy = (
                f"on the host to which it went: crckpt migrate --list. If that does not show {name}, remove the file "
                f"{backend.location}/{path}"
            )
            damaged.append(UnreadableMove(JobName(""), why, remedy))
        else:
            found += [move] if move.id not in ids else []
    return tuple(sorted(found, key=lambda move: move.began)), tuple(damaged)


def read_last_moves(backend: Backend) -> tuple[tuple[Move, ...], tuple[UnreadableMove, ...]]:
    """Read the records of each job's last move, oldest first; and say which cannot be read."""
    found, unreadable = [], []
    for job in map(JobName, backend.names_in(MOVES)):
        try:
            found += [move] if (move := read_move(backend, job)) is not None else []
        except StoreUnusable as error:
            unreadable.append(UnreadableMove(job, error.message, error.hint))
    return tuple(sorted(found, key=lambda move: move.began)), tuple(unreadable)


def _clean(text: str, longest: int) -> str:
    """Return text of the other side, or with names of files, as a record can have it: else nobody could read that."""
    return re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)[:longest]
