"""Names of checkpoints."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from image_sets import ImageSet, described, manifest_path, open_store, store

from crckpt.errors import IntegrityError, NoSuchCheckpoint, UsageError
from crckpt.model import CheckpointId, JobName
from crckpt.store import Checkpoint, Repository, Tag, check_name
from crckpt.store.backend.local import Backend
from crckpt.store.refs import RefTargets, resolve
from crckpt.store.repository import read_store_id

START = datetime(2026, 1, 1, tzinfo=UTC)
IDS = tuple(CheckpointId(digits.ljust(64, "0")) for digits in ("abcd1", "abcd2", "beef", "1234"))
KNOWN = RefTargets(
    {JobName("trainer"): IDS[:3], JobName("beef"): IDS[3:]},
    (*IDS, CheckpointId("dead".ljust(64, "0"))),
    (Tag(JobName("trainer"), "good", IDS[1]), Tag(JobName("trainer"), "gone", CheckpointId("f" * 64))),
)


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("trainer", IDS[2]),
        ("trainer~0", IDS[2]),
        ("trainer~2", IDS[0]),
        ("trainer:good", IDS[1]),
        ("abcd1", IDS[0]),
        (IDS[1], IDS[1]),
        ("1234", IDS[3]),
        ("beef", IDS[3]),
        ("beef0", IDS[2]),
        ("dead", "dead".ljust(64, "0")),
    ],
)
def test_ref_is_resolved_to_its_checkpoint(ref: str, expected: str) -> None:
    assert resolve(ref, KNOWN) == expected


@pytest.mark.parametrize(
    ("ref", "hint"),
    [
        ("trainer~3", "trainer~2"),
        (
            "trianer",
            "did you mean trainer or trainer:good? jobs in the store: beef, trainer; all checkpoints: crckpt list",
        ),
        ("trianer~1", "trainer"),
        ("trainer:god", "trainer:good"),
        ("trainer:gone", "its tags: good;"),
        ("abc", "list"),
        ("ffff", "list"),
        ("ABCD1", "list"),
        ("", "list"),
        ("trainer~", "trainer"),
        ("trainer~-1", "trainer"),
        ("../../etc/passwd", "list"),
        ("trainer:../../x", "its tags: good; its checkpoints: crckpt list trainer"),
        ("beef:good", "it has no tags; its checkpoints: crckpt list beef"),
        ("nope", "jobs in the store: beef, trainer; all checkpoints: crckpt list"),
        ("nope:good", "jobs in the store: beef, trainer; all checkpoints: crckpt list"),
    ],
)
def test_unknown_ref_lists_similar_names(ref: str, hint: str) -> None:
    with pytest.raises(NoSuchCheckpoint) as refusal:
        resolve(ref, KNOWN)
    assert hint in refusal.value.hint
    assert "gone" not in refusal.value.hint


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("nope", "there is no job 'nope'"),
        ("nope:good", "there is no job 'nope'"),
        ("nope~1", "there is no job 'nope'"),
        ("trainer:nope", "job 'trainer' has no tag 'nope'"),
        ("ffff", "there is no checkpoint 'ffff'"),
    ],
)
def test_message_for_a_ref_names_the_part_that_is_missing(ref: str, message: str) -> None:
    with pytest.raises(NoSuchCheckpoint) as refusal:
        resolve(ref, KNOWN)
    assert refusal.value.message == message


def test_long_list_of_similar_jobs_is_shortened() -> None:
    jobs = {JobName(f"job{number:02}"): IDS[:1] for number in range(12)}
    with pytest.raises(NoSuchCheckpoint) as refusal:
        resolve("xyzzy", RefTargets(jobs, IDS, ()))
    assert refusal.value.hint.startswith("jobs in the store: job00, ")
    assert "job07, and 4 more; " in refusal.value.hint


def test_ref_of_ambiguous_digits_is_refused() -> None:
    with pytest.raises(UsageError, match="abcd is the start of 2 ids") as refusal:
        resolve("abcd", KNOWN)
    assert refusal.value.causes == ("abcd10000000", "abcd20000000")


def test_ref_in_an_empty_store_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NoSuchCheckpoint) as refusal:
        open_store(tmp_path).resolve("anything")
    assert "empty" in refusal.value.hint


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Three checkpoints of `one`, stored in another order than they were made, and one of `two`."""
    made = open_store(tmp_path)
    for job, day in (("one", 3), ("one", 1), ("one", 2), ("two", 4)):
        new = described(job, created=START + timedelta(days=day))
        store(made, tmp_path, ImageSet(files={"a.img": b"%d" % day}), new)
    return made


def _days(checkpoints: tuple[Checkpoint, ...]) -> list[int]:
    return [(checkpoint.created - START).days for checkpoint in checkpoints]


def test_checkpoints_are_listed_in_the_order_of_their_commits(repository: Repository) -> None:
    assert _days(repository.checkpoints()) == [3, 1, 2, 4]
    assert _days(repository.checkpoints(JobName("one"))) == [3, 1, 2]
    assert repository.checkpoints(JobName("three")) == ()
    assert [_days((repository.get(repository.resolve(f"one~{back}")),)) for back in range(3)] == [[2], [1], [3]]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT])
def test_lost_tag_does_not_hide_other_tags(repository: Repository, number: int) -> None:
    class Losing(Backend):
        def read(self, name: str, most: int) -> bytes:
            if name.endswith("/a"):
                raise OSError(number, os.strerror(number))
            return super().read(name, most)

    first = repository.checkpoints(JobName("one"))[0]
    for name in ("a", "b"):
        repository.tag(first.id, name)
    losing = Repository(Losing(repository.root), read_store_id(repository.backend))
    assert [tag.name for tag in losing.tags()] == ["b"]
    assert losing.resolve("one:b") == first.id


def test_tags_are_kept_moved_and_removed(repository: Repository) -> None:
    first, second, third, other = repository.checkpoints()
    repository.tag(first.id, "v1.0")
    repository.tag(other.id, "v1.0")
    assert repository.resolve("one:v1.0") == first.id
    assert repository.resolve("two:v1.0") == other.id
    repository.tag(second.id, "v1.0")
    repository.tag(third.id, "best")
    assert Repository.open(repository.root).tags() == (
        Tag(JobName("one"), "best", third.id),
        Tag(JobName("one"), "v1.0", second.id),
        Tag(JobName("two"), "v1.0", other.id),
    )
    repository.untag(JobName("one"), "v1.0")
    with pytest.raises(NoSuchCheckpoint):
        repository.resolve("one:v1.0")
    with pytest.raises(NoSuchCheckpoint) as refusal:
        repository.untag(JobName("one"), "bset")
    assert "one:best" in refusal.value.hint


@pytest.mark.parametrize("name", ["", ".", "..", "-x", ".hidden", "a/b", "a b", "a~1", "a:b", "ä", "x" * 101, "a\n"])
def test_invalid_names_are_refused(name: str, repository: Repository, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a valid tag name"):
        repository.tag(repository.checkpoints()[0].id, name)
    with pytest.raises(UsageError, match="is not a valid job name"):
        store(repository, tmp_path, ImageSet(), described(name))
    with pytest.raises(NoSuchCheckpoint):
        repository.untag(JobName("one"), name)


@pytest.mark.parametrize("name", ["a", "0", "redis-6.2_x", "x" * 100])
def test_valid_names_are_accepted(name: str) -> None:
    assert check_name(name, "job") == name


def test_unknown_checkpoint_cannot_be_tagged_or_read(repository: Repository) -> None:
    nobody = CheckpointId("0" * 64)
    with pytest.raises(NoSuchCheckpoint, match="000000000000"):
        repository.tag(nobody, "x")
    with pytest.raises(NoSuchCheckpoint, match="000000000000"):
        repository.get(nobody)


@pytest.mark.parametrize("at", ["note", "job"])
def test_damaged_manifest_refuses_its_job_name(repository: Repository, at: str) -> None:
    """The damaged checkpoint may have been the newest: the job's name is refused, ids and other jobs are not."""
    first, second, third, other = repository.checkpoints()
    manifest = manifest_path(repository, third.id)
    manifest.write_bytes(manifest.read_bytes().replace(f'"{at}": '.encode(), f'"{at}":~'.encode()))
    for ref in ("one", "one~1"):
        with pytest.raises(IntegrityError, match=third.id[:12]):
            repository.resolve(ref)
    assert repository.resolve("one", despite_damage=True) == second.id
    assert repository.resolve(first.id[:12]) == first.id
    if at == "note":
        assert repository.resolve("two") == other.id
