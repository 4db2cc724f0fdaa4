"""The newest checkpoint is the one that was committed last, whatever the clock says."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from checkout import SUPPORT
from image_sets import ImageSet, area, described, manifest_path, open_store, store

from crckpt.errors import StoreUnusable
from crckpt.model import CheckpointId, JobName
from crckpt.store import Checkpoint, Repository
from crckpt.store.backend.flock import turn_taken
from crckpt.store.format.manifest import next_sequence
from crckpt.store.repository import TIMEOUT_S

NOW = datetime.now(UTC)
IN_TWO_DAYS = NOW + timedelta(days=2)
CRCKPT = Path(sys.executable).with_name("crckpt")


def _stored(repository: Repository, base: Path, created: datetime, job: str = "job") -> CheckpointId:
    number = len(list(base.iterdir()))
    return store(repository, base, ImageSet({"pagemap-1.img": [area(1, number)]}), described(job, created=created)).id


def _order(repository: Repository, job: JobName | None = None) -> list[CheckpointId]:
    return [checkpoint.id for checkpoint in repository.checkpoints(job)]


def _rewritten(repository: Repository, checkpoint_id: CheckpointId, **changes: object) -> CheckpointId:
    """Replace entries of a checkpoint's manifest; None removes an entry."""
    path = manifest_path(repository, checkpoint_id)
    left = {key: value for key, value in json.loads(path.read_bytes()).items() if key not in changes}
    changed = {key: value for key, value in changes.items() if value is not None}
    manifest = json.dumps({**left, **changed}).encode()
    found = CheckpointId(hashlib.sha256(manifest).hexdigest())
    path.write_bytes(manifest)
    path.parent.rename(path.parent.with_name(found))
    return found


def test_checkpoint_from_the_future_does_not_stay_the_newest(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    ahead = _stored(repository, tmp_path, IN_TWO_DAYS)
    assert repository.resolve("job") == ahead
    second, third = (_stored(repository, tmp_path, NOW + timedelta(seconds=number)) for number in range(2))
    assert [repository.resolve(ref) for ref in ("job", "job~1", "job~2")] == [third, second, ahead]
    assert [repository.get(found).parent for found in (third, second)] == [second, ahead]
    assert [found.id for found in repository.back_from(repository.get(second))] == [second, ahead]
    assert _order(repository) == [ahead, second, third]


def test_checkpoints_are_in_the_order_of_commits_if_the_clock_goes_back(tmp_path: Path) -> None:
    """With several jobs, `list` shows the last stored checkpoint at the end."""
    repository = open_store(tmp_path)
    ids = [_stored(repository, tmp_path, NOW - timedelta(days=number), "ab"[number % 2]) for number in range(6)]
    assert _order(repository) == ids
    assert _order(repository, JobName("a")) == ids[::2]


def test_order_of_checkpoints_survives_removals(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    ahead, second, third = (_stored(repository, tmp_path, when) for when in (IN_TWO_DAYS, NOW, NOW))
    repository.remove([second])
    assert _order(repository) == [ahead, third]
    repository.remove([third])
    fourth = _stored(repository, tmp_path, NOW)
    assert _order(repository) == [ahead, fourth]
    repository.remove([ahead, fourth])
    assert _order(repository) == []
    assert repository.get(_stored(repository, tmp_path, NOW)).sequence == 1


def test_checkpoints_without_a_sequence_number_are_older(tmp_path: Path) -> None:
    """Manifests without a number stay in the order of their times."""
    repository = open_store(tmp_path)
    times = (NOW, IN_TWO_DAYS, NOW - timedelta(days=1))
    ids = [_rewritten(repository, _stored(repository, tmp_path, when), sequence=None) for when in times]
    without = [ids[2], ids[0], ids[1]]
    assert _order(repository) == without
    assert [*_order(repository), _stored(repository, tmp_path, NOW)] == [*without, repository.resolve("job")]


@pytest.mark.parametrize("number", [-1, 1 << 54, 1 << 80, 1.5, "7", True])
def test_invalid_sequence_number_is_refused(tmp_path: Path, number: object) -> None:
    repository = open_store(tmp_path)
    bad = _rewritten(repository, _stored(repository, tmp_path, NOW), sequence=number)
    good = _stored(repository, tmp_path, NOW, "other")
    assert _order(repository) == [good]
    with pytest.raises(StoreUnusable, match="written by another version"):
        repository.get(bad)


def test_checkpoint_with_the_highest_possible_number_does_not_stay_the_newest(tmp_path: Path) -> None:
    """A checkpoint that is reported as stored is the one that `crckpt restore job` restores."""
    repository = open_store(tmp_path)
    first = _stored(repository, tmp_path, NOW)
    changes = {"sequence": 1 << 53, "created": "9999-01-01T00:00:00+00:00"}
    highest = _rewritten(repository, _stored(repository, tmp_path, NOW), **changes)
    with pytest.raises(
        StoreUnusable, match=f"checkpoint {highest[:12]} has sequence number 9007199254740992"
    ) as refusal:
        _stored(repository, tmp_path, NOW)
    assert f"crckpt rm {highest[:12]}" in refusal.value.hint
    assert set(repository.ids()) == {first, highest}
    repository.remove([highest])
    assert _stored(repository, tmp_path, NOW) == repository.resolve("job")


def test_checkpoint_of_another_host_does_not_exhaust_the_sequence_numbers(tmp_path: Path) -> None:
    """Other hosts refuse a checkpoint with a high number."""
    repository = open_store(tmp_path)
    _stored(repository, tmp_path, NOW)
    checkpoints = repository.checkpoints()
    assert next_sequence(checkpoints, 1 << 40) == 1 << 40
    for number in ((1 << 40) + 2, (1 << 52) - 1, (1 << 63) - 1):
        with pytest.raises(StoreUnusable, match=f"with sequence number {number - 1}: too few numbers are left"):
            next_sequence(checkpoints, number)


_COMMITS = """
import sys
from datetime import datetime, UTC
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from image_sets import ImageSet, described, write_set
from crckpt.store import Repository, ingest
repository = Repository.open(Path(sys.argv[1], "store"))
for number in range(8):
    directory = write_set(Path(sys.argv[1], f"{sys.argv[3]}-{number}"), ImageSet(files={"core-1.img": b"x"}))
    ingest(repository, directory, described(sys.argv[3]))
"""


def test_concurrent_commits_get_different_sequence_numbers(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    words = [sys.executable, "-c", _COMMITS, str(tmp_path), str(SUPPORT)]
    running = [subprocess.Popen([*words, job]) for job in ("one", "two", "three")]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert [checkpoint.sequence for checkpoint in repository.checkpoints()] == list(range(1, 25))


def test_other_dumps_commit_while_one_waits_for_its_tree(tmp_path: Path) -> None:
    """A rehearsal or a move may take minutes."""
    repository = open_store(tmp_path)
    meanwhile: list[CheckpointId] = []

    def commit_another(_checkpoint: Checkpoint, _manifest: bytes) -> None:
        began = time.monotonic()
        meanwhile.append(_stored(repository, tmp_path, NOW, "other"))
        assert time.monotonic() - began < TIMEOUT_S

    draft = repository.get(_stored(repository, tmp_path, NOW, "held"))
    held = repository.add_checkpoint(draft, before=commit_another)
    assert repository.resolve("held") == held.id
    assert repository.resolve("other") == meanwhile[0]


def test_wait_for_a_lock_that_is_never_released_ends_at_the_timeout(tmp_path: Path) -> None:
    held = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with turn_taken(tmp_path, timeout=0.05):
            pass
    finally:
        os.close(held)


def _listed(repository: Repository, *words: str) -> str:
    command = (str(CRCKPT), "list", "--store", str(repository.root), *words)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_checkpoint_from_the_future_is_marked(tmp_path: Path) -> None:
    """`list` marks it. Differences of seconds between two hosts' clocks do not count."""
    repository = open_store(tmp_path)
    times = (IN_TWO_DAYS, datetime.now(UTC) + timedelta(seconds=30), NOW)
    ids = [_stored(repository, tmp_path, when) for when in times]
    document = json.loads(_listed(repository, "--json"))["result"]["checkpoints"]
    assert [(entry["id"], entry["in_future"]) for entry in document] == [
        (ids[0], True),
        (ids[1], False),
        (ids[2], False),
    ]
    lines = _listed(repository).splitlines()[1:]
    assert ["(in the future)" in line for line in lines] == [True, False, False]
    assert [line.split()[0] for line in lines] == [found[:12] for found in ids]


def test_checkpoint_less_than_a_minute_ahead_is_not_from_the_future(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint: Checkpoint = repository.get(_stored(repository, tmp_path, NOW))
    assert not checkpoint.is_in_future(NOW - timedelta(seconds=59))
    assert checkpoint.is_in_future(NOW - timedelta(seconds=61))
