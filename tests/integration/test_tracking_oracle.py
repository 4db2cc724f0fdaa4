"""A chain of incremental dumps has exactly the pages of the frozen tree, byte by byte.

The tree writes, maps, moves, drops, protects and forks at random all the while. CRCKPT_ORACLE_SEEDS says how many
trees there are to be: every other one is dumped by CRIU alone, the rest through the store.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command import Crckpt
from incremental import NO_TRACKER
from oracle import CHANGES_BETWEEN_DUMPS, Oracle, churning, is_passing, seeing, wrong_pages

from crckpt.model import CheckpointId
from crckpt.store import Repository, materialise

pytestmark = pytest.mark.skipif(bool(NO_TRACKER), reason=NO_TRACKER)

SEEDS = int(os.environ.get("CRCKPT_ORACLE_SEEDS", "20"))
ROUNDS = 5
ENDED_MAIN_THREAD = "the main thread of a process of the tree has ended while other threads run"


@pytest.mark.parametrize("seed", range(0, SEEDS, 2))
def test_incremental_images_contain_no_wrong_page(churn: Path, criu: Path, tmp_path: Path, seed: int) -> None:
    with churning(churn, tmp_path / "work", seed, CHANGES_BETWEEN_DUMPS[seed // 2 % len(CHANGES_BETWEEN_DUMPS)]) as pid:
        oracle = Oracle(criu, pid, tmp_path / "work")
        with closing(oracle.tracker):
            for number in range(ROUNDS):
                # Half of the trees are copied in one or more rounds before the dump.
                for _ in range(number % 3 if seed // 2 % 2 else 0):
                    oracle.copy_round()
                counted = bool(oracle.dump_round())
                assert counted or number == 0 or oracle.began_anew


class RecordingCriu:
    """A CRIU that leaves the memory of the tree that it dumped last in `seen`."""

    def __init__(self, criu: Path, work: Path) -> None:
        self.seen = work / "seen"
        script = seeing(work / "script", self.seen)
        self.path = work / "criu"
        # CRIU runs action scripts in the order of its options, so this one runs before the hold of crckpt.
        self.path.write_text(f'#!/bin/sh\n[ "$1" != dump ] || set -- "$@" --action-script {script}\nexec {criu} "$@"\n')
        self.path.chmod(0o755)

    def taken(self, to: Path) -> Path:
        """Move the memory that was left since the last call to `to`."""
        shutil.copytree(self.seen, to)
        for path in self.seen.iterdir():
            path.unlink()
        return to


@pytest.fixture(scope="module")
def wrapper(criu: Path, tmp_path_factory: pytest.TempPathFactory) -> RecordingCriu:
    work = tmp_path_factory.mktemp("seeing")
    made = RecordingCriu(criu, work)
    # doctor makes a trial dump with this CRIU.
    Crckpt(work / "store").run("doctor", "--criu", str(made.path))
    made.taken(work / "trial")
    return made


def dumped(crckpt: Crckpt, pid: int, wrapper: RecordingCriu, *words: str) -> tuple[dict[str, Any], bool]:
    """The result, and whether CRIU had refused before a dump that succeeded a moment later."""
    refusals = 0
    while True:
        process = crckpt.start("dump", str(pid), "job", *words, "--json", "--criu", str(wrapper.path))
        out, _ = process.communicate()
        document: dict[str, Any] = json.loads(out)
        if process.returncode == 0:
            return document["result"], refusals > 0
        if document["error"]["message"].startswith(ENDED_MAIN_THREAD):  # seen before CRIU dumped, maybe after rounds
            continue
        refusals += 1
        assert is_passing("\n".join(document["error"]["causes"]), pid), out
        for path in wrapper.seen.iterdir():
            path.unlink()


@pytest.mark.parametrize("seed", range(1, SEEDS, 2))
def test_stored_incremental_dumps_contain_no_wrong_page(
    crckpt: Crckpt, churn: Path, wrapper: RecordingCriu, tmp_path: Path, seed: int
) -> None:
    """A tracker tracks the tree, the parent is a checkpoint, and each checkpoint is compared alone."""
    kept: list[tuple[str, Path]] = []
    full: list[str] = []
    with churning(churn, tmp_path / "work", seed, CHANGES_BETWEEN_DUMPS[seed // 2 % len(CHANGES_BETWEEN_DUMPS)]) as pid:
        for number in range(ROUNDS):
            rounds = ("--pre-copy", "--max-rounds", str(number % 3)) if seed // 2 % 2 and number % 3 else ()
            result, is_anew = dumped(crckpt, pid, wrapper, *(rounds or ("--incremental",)))
            tracked = result["tracked"]
            # A dump is full after a refusal, or if the tracker answered late on a busy machine.
            if tracked["base"] is None:
                full.append(tracked["why_full"] or tracked["why"])
            else:
                assert (is_anew, tracked["base"]) == (False, kept[-1][0])
                assert bool(tracked["rounds"]) == bool(rounds)
            assert bool(result["checkpoint"]["statistics"]["inherited_pages"]) == bool(tracked["base"])
            kept.append((result["checkpoint"]["id"], wrapper.taken(tmp_path / f"seen-{number}")))
    assert len(full) <= ROUNDS // 2, full
    crckpt.run("rm", *(checkpoint for checkpoint, _ in kept[seed // 2 % 2 :: 2]))
    crckpt.run("gc")
    for checkpoint, had in kept[1 - seed // 2 % 2 :: 2]:
        repository = Repository.open(crckpt.store)
        images = tmp_path / checkpoint
        images.mkdir()
        materialise(repository, repository.get(CheckpointId(checkpoint)), images)
        wrong = wrong_pages(images, had)
        assert not wrong, f"{checkpoint}: {len(wrong)} wrong pages, the first of {wrong[0]}"
