"""A keeper may be of another release of crckpt: what is sent keeps its words, and what comes is decoded or refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from crckpt.errors import HostCannot
from crckpt.model import CheckpointId
from crckpt.tracking.dump_basis import Base, CheckpointBase, DumpBasis, RoundBase, WholeProcess
from crckpt.tracking.keeper.protocol import Answer, BeginAnswer, Keeper, KeeperRequest, base_name, read_committed_base

CHECKPOINT = CheckpointBase(CheckpointId("ab" * 32))
ROUND = RoundBase(Path("/store/tmp/rounds/2"))
BASES = [(CHECKPOINT, "ab" * 32), (ROUND, "/store/tmp/rounds/2")]


@pytest.mark.parametrize(("base", "name"), BASES)
def test_base_of_a_dump_is_sent_to_the_tracker_by_name(base: Base, name: str) -> None:
    assert base_name(base) == name
    line = msgspec.json.encode(KeeperRequest("committed", base_name(base)))
    assert line == b'{"do":"committed","name":"%s","directories":[]}' % name.encode()
    assert read_committed_base(msgspec.json.decode(line, type=KeeperRequest)) == base
    assert Keeper(1, 2, "program", "uffd-wp", "", "criu", {}, base=name).counts_from == base


def test_next_dump_of_a_tracker_without_a_base_is_full() -> None:
    assert base_name(None) == ""
    assert Keeper(1, 2, "program", "uffd-wp", "", "criu", {}).counts_from is None
    with pytest.raises(HostCannot):
        read_committed_base(KeeperRequest("committed"))


@pytest.mark.parametrize("base", [CHECKPOINT, ROUND, None])
def test_dump_basis_round_trips(base: Base | None) -> None:
    basis = DumpBasis(base, "why", tracks=True, whole=(WholeProcess(3, "PID 3: the process is new"),))
    answer = msgspec.json.decode(
        msgspec.json.encode(Answer(began=BeginAnswer(base_name(basis.base), basis.why, basis.tracks, basis.whole))),
        type=Answer,
    )
    assert answer.began is not None
    assert answer.began.basis == basis


def test_number_of_a_copied_round_is_read_from_its_directory() -> None:
    assert ROUND.number == 2
