"""Records of moves: at most one for each job of a store, replaced at each step, durable before the step counts."""

from __future__ import annotations

import re
import secrets
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from crckpt.errors import IntegrityError, StoreUnusable
from crckpt.host.proc import LiveRoot
from crckpt.model import CheckpointId, JobName
from crckpt.store.backend.protocol import Backend
from crckpt.store.documents import decode
from crckpt.store.layout import MOVES, move_name
from crckpt.store.move_states import FIRST, Side, State, can_follow, find_rule, is_over
from crckpt.store.names import NAME
from crckpt.store.process_identity import MOST_BYTES, ProcessIdentity, identify_process

MoveId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
"""The id of a move, the same on both sides."""

_LONGEST_PEER: Final = 300
_LONGEST_WHY: Final = 4096

Peer = Annotated[str, Meta(pattern=rf"\A[^\x00-\x1f\x7f]{{1,{_LONGEST_PEER}}}\Z")]
"""The other side as the user typed it, or as it names itself."""


class Move(Struct, frozen=True):
    """The record of a move on one side.

    - `owner`: the crckpt that wrote it
    - `peer`: the other side
    - `checkpoint`: what is moved; None before the tree was frozen
    - `root`: at the source the tree that is moved, at the destination the one that was built; None if there is none yet
    - `remote`: crckpt and the store there, as the source names them, for a later connection
    - `options`: for the restore, as the source's user chose them
    - `why`: why it was aborted
    - `is_settled`: of the source: nothing is left to report to the destination
    """

    id: MoveId
    side: Side
    state: State
    job: JobName
    peer: Peer
    owner: ProcessIdentity
    began: Annotated[datetime, Meta(tz=True)]
    changed: Annotated[datetime, Meta(tz=True)]
    checkpoint: CheckpointId | None = None
    root: LiveRoot | None = None
    remote: tuple[str, ...] = ()
    options: dict[str, str | bool | tuple[str, ...] | None] = {}
    why: str = ""
    is_settled: bool = True
    schema: int = 1

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do on this side."""
        return is_over(self.side, self.state)

    @property
    def forbids_restore(self) -> bool:
        """Whether no checkpoint of the job may be restored here now. The move was judged (`judge`)."""
        return find_rule(self.side, self.state).forbids_restore

    @property
    def leaves_tree_with_peer(self) -> bool:
        """Whether the move is over, and the tree runs on the other side as far as this side knows."""
        return (self.side, self.state) in (("source", "done"), ("destination", "aborted"))

    def judge(self) -> Move:
        """Return the move in its present state, which differs if the crckpt that wrote the record has died."""
        if self.is_over or self.owner.is_alive:
            return self
        match find_rule(self.side, self.state).after_death:
            case "tree-decides":
                return self._judge_by_tree()
            case "aborted":
                return self._aborted()
        return self

    def _judge_by_tree(self) -> Move:
        if self.root is not None and self.root.is_held():
            return self
        found = self.root.find() if self.root is not None else None
        if self.side == "source":
            return self._aborted() if found is not None else replace(self, state="ended")
        return replace(self, state="done") if found is not None else self

    def _aborted(self) -> Move:
        return replace(self, state="aborted", why=self.why or f"crckpt (PID {self.owner.pid}) has died")


class UnreadableMove(Struct, frozen=True):
    """A record that cannot be read: why, and what to do."""

    job: JobName
    why: str
    remedy: str


def begin_move(side: Side, job: JobName, peer: str, move_id: str = "") -> Move:
    """Return the record of a move that begins, by this process. It is not written."""
    now = datetime.now(UTC)
    peer = _clean(peer, _LONGEST_PEER) or "another host"
    return Move(
        id=move_id or secrets.token_hex(8),
        side=side,
        state=FIRST[side],
        job=job,
        peer=peer,
        owner=identify_process(time.time()),
        began=now,
        changed=now,
    )


def advance(move: Move, state: State, **changes: object) -> Move:
    """Return the record in a state that may follow, written by this process. It is not stored.

    Raises ValueError for a state that must not follow: a bug, which must not cost a tree.
    """
    if not can_follow(move.side, move.state, state):
        raise ValueError(f"{state} must not follow {move.state} at the {move.side}")
    owner = identify_process(time.time())
    if "why" in changes:
        changes["why"] = _clean(str(changes["why"]), _LONGEST_WHY)
    return replace(move, state=state, owner=owner, changed=datetime.now(UTC), **changes)


def take_over(move: Move) -> Move:
    """Return the record in the same state, owned by this process: it goes on with the move. It is not stored."""
    return replace(move, owner=identify_process(time.time()), changed=datetime.now(UTC))


def store_move(backend: Backend, move: Move) -> Move:
    """Write the record, durably. Raises OSError if the store cannot be written."""
    backend.put(move_name(move.job), msgspec.json.format(msgspec.json.encode(move)), "move")
    return move


def read_move(backend: Backend, job: str) -> Move | None:
    """Read the record of the last move of a job; None if there was none.

    Raises StoreUnusable if it cannot be read: then nobody knows which side has the program.
    """
    if NAME.fullmatch(job) is None:
        return None
    name = move_name(job)
    try:
        return decode(backend.read(name, MOST_BYTES), _MOVE, name)
    except FileNotFoundError:
        return None
    except (IntegrityError, msgspec.ValidationError) as error:
        raise StoreUnusable(
            f"the record of the move of {job} cannot be read: {error}",
            hint=f"find out on which host {job} runs; if it runs nowhere, remove the file {backend.location}/{name}, "
            "then restore it",
        ) from error


def remove_move(backend: Backend, job: str) -> None:
    """Remove the record of a job's last move, if there is one."""
    with suppress(FileNotFoundError):
        backend.remove(move_name(job), "move")


def read_moves(backend: Backend) -> tuple[Move, ...]:
    """Read the records of all moves that can be read, oldest first."""
    return read_all_moves(backend)[0]


def read_all_moves(backend: Backend) -> tuple[tuple[Move, ...], tuple[UnreadableMove, ...]]:
    """Read the records of all moves, oldest first; and say which cannot be read."""
    found, unreadable = [], []
    for job in backend.names_in(MOVES):
        try:
            move = read_move(backend, job)
        except StoreUnusable as error:
            unreadable.append(UnreadableMove(JobName(job), error.message, error.hint))
        else:
            if move is not None:
                found.append(move)
    return tuple(sorted(found, key=lambda move: move.began)), tuple(unreadable)


def _clean(text: str, longest: int) -> str:
    """Return text of the other side, or with names of files, as a record can have it: else nobody could read that."""
    return re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)[:longest]


_MOVE: Final = msgspec.json.Decoder(Move)
