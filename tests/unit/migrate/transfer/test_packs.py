"""Packs and manifests go from one store to another: only what is lacking, and only what is undamaged."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from connections import connected, in_thread
from image_sets import (
    ONE_PROCESS,
    flip,
    manifest_path,
    of_pages,
    open_store,
    pack_path,
    packs,
    restore_files,
    store,
    with_changed_manifest,
)
from small_disk import mounted_disk

from crckpt.errors import CrckptError, IntegrityError, RemoteError, StoreUnusable
from crckpt.migrate.transfer.receive_packs import Receiver
from crckpt.migrate.transfer.send_packs import send_packs
from crckpt.migrate.wire.connection import AbortReceived, Connection, ProtocolError
from crckpt.migrate.wire.messages import Aborted, Failed, Lacking, Offer, PackMessage, Sent, make_failed
from crckpt.model import CheckpointId, PackId
from crckpt.store import Checkpoint, Repository, collect_garbage, verify
from crckpt.store.layout import fingerprints_name


def digests(checkpoint: Checkpoint) -> tuple[PackId, ...]:
    """The packs of a checkpoint."""
    return tuple(use.digest for use in checkpoint.packs)


@dataclass
class Move:
    """A source and a destination with their stores, connected; the destination answers offers in a thread."""

    source: Repository
    destination: Repository
    here: Connection
    there: Connection
    receiver: Receiver
    errors: list[BaseException] = field(default_factory=list)

    def send(self, *checkpoints: Checkpoint) -> int:
        """Send the packs of checkpoints; return how many bytes."""
        with self.answering():
            return send_packs(self.here, self.source.backend, [use for found in checkpoints for use in digests(found)])

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let the destination answer an offer while the block runs."""
        thread = in_thread(self._answer)
        try:
            yield
        finally:
            # Before the connection is closed: a thread that still sends would raise what nobody expects.
            thread.join()

    def _answer(self) -> None:
        try:
            self.receiver.answer_offer(self.there, self.there.receive(Offer))
        except (CrckptError, OSError) as error:
            self.errors.append(error)
            with suppress(RemoteError):
                self.there.send(make_failed(error))

    def receive_checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        """Send packs and manifest."""
        self.send(checkpoint)
        return self.receiver.store_checkpoint(manifest_path(self.source, checkpoint.id).read_bytes(), checkpoint.id)


@pytest.fixture
def move(tmp_path: Path) -> Iterator[Move]:
    """A move between two empty stores."""
    (tmp_path / "there").mkdir()
    source, destination = open_store(tmp_path), open_store(tmp_path / "there")
    with connected() as (here, there), destination.transaction() as begun:
        yield Move(source, destination, here, there, Receiver(destination, begun))


def test_moved_checkpoint_is_the_same_in_both_stores(move: Move, tmp_path: Path) -> None:
    checkpoint = store(move.source, tmp_path, ONE_PROCESS)
    assert move.send(checkpoint) == sum(pack_path(move.source, digest).stat().st_size for digest in digests(checkpoint))
    assert move.destination.ids() == ()
    assert move.receive_checkpoint(checkpoint) == checkpoint
    assert move.destination.resolve("job") == checkpoint.id
    assert restore_files(move.destination, checkpoint, tmp_path) == restore_files(move.source, checkpoint, tmp_path)
    assert verify(move.destination).damages == ()
    sizes = [sum(path.stat().st_size for path in packs(store)) for store in (move.source, move.destination)]
    assert sizes[0] == sizes[1]


def test_second_transfer_of_a_job_sends_only_new_packs(move: Move, tmp_path: Path) -> None:
    first = store(move.source, tmp_path, of_pages(*range(1, 500)))
    assert move.send(first) > 0
    assert move.send(first) == 0
    second = store(move.source, tmp_path, of_pages(*range(1, 505)))
    new = set(digests(second)) - set(digests(first))
    assert move.send(first, second) == sum(pack_path(move.source, digest).stat().st_size for digest in new) > 0
    # A later move sends nothing either: the destination's store already has these packs.
    with connected() as (here, there):
        again = Move(move.source, move.destination, here, there, Receiver(move.destination, tmp_path))
        assert again.send(first, second) == 0


def test_fingerprints_of_received_packs_are_known(move: Move, tmp_path: Path) -> None:
    """So a dump at the destination finds these pages, and the next move does not read the packs again."""
    checkpoint = store(move.source, tmp_path, of_pages(*range(1, 500)))
    move.receive_checkpoint(checkpoint)
    assert not move.destination.backend.exists(fingerprints_name(PackId(digests(checkpoint)[0])))
    move.receiver.cache_fingerprints()
    assert all(move.destination.backend.exists(fingerprints_name(PackId(digest))) for digest in digests(checkpoint))
    (tmp_path / "again").mkdir()
    assert set(digests(store(move.destination, tmp_path / "again", of_pages(*range(1, 400))))) & set(
        digests(checkpoint)
    )
    assert verify(move.destination).damages == ()


def test_unwritable_store_fails_the_move_and_stores_nothing(
    move: Move, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = store(move.source, tmp_path, ONE_PROCESS)
    monkeypatch.setattr(move.destination.backend, "find_write_refusal", lambda: "it is on a read-only mount")
    with pytest.raises(RemoteError, match="cannot be written: it is on a read-only mount"):
        move.send(checkpoint)
    assert isinstance(move.errors[0], StoreUnusable)
    assert nothing_is_left(move.destination)


def test_aborted_transfer_leaves_no_pack(move: Move) -> None:
    def answer() -> None:
        with pytest.raises(AbortReceived, match="source aborted the move: interrupted") as caught:
            move.receiver.answer_offer(move.there, move.there.receive(Offer))
        assert caught.value.why == "interrupted"
        move.there.send(Aborted())

    thread = in_thread(answer)
    move.here.send(Offer((DIGEST,)))
    move.here.receive(Lacking)
    move.here.send(PackMessage(0, DIGEST, 1000))
    move.here.send_data(0, b"x" * 500)
    move.here.abort("interrupted", 60)
    thread.join()
    assert nothing_is_left(move.destination)


def test_many_packs_of_one_transfer_arrive_unchanged(move: Move, tmp_path: Path) -> None:
    made = [store(move.source, tmp_path, of_pages(*range(number * 100, number * 100 + 70))) for number in range(12)]
    assert len(packs(move.source)) >= 12
    move.send(*made)
    assert {path.name for path in packs(move.destination)} == {path.name for path in packs(move.source)}
    for path in packs(move.source):
        assert pack_path(move.destination, path.stem).read_bytes() == path.read_bytes()


def test_checkpoint_without_missing_packs_needs_no_data(move: Move, tmp_path: Path) -> None:
    with move.answering():
        assert send_packs(move.here, move.source.backend, ()) == 0


def test_damaged_pack_of_the_destination_is_replaced(move: Move, tmp_path: Path) -> None:
    checkpoint = store(move.source, tmp_path, of_pages(*range(1, 500)))
    move.receive_checkpoint(checkpoint)
    damaged = packs(move.destination)[0]
    for offset in (100, -30, -1000):
        flip(damaged, offset)
        with connected() as (here, there), move.destination.transaction() as begun:
            again = Move(move.source, move.destination, here, there, Receiver(move.destination, begun))
            assert again.send(checkpoint) == damaged.stat().st_size
        assert verify(move.destination).damages == ()


def test_pack_known_to_be_damaged_is_replaced_although_its_fingerprints_exist(move: Move, tmp_path: Path) -> None:
    checkpoint = store(move.destination, tmp_path, of_pages(*range(1, 500)))
    (digest,) = digests(checkpoint)
    assert move.destination.backend.exists(fingerprints_name(PackId(digest)))
    flip(pack_path(move.destination, digest), 100)
    assert verify(move.destination).damages
    assert not move.destination.backend.exists(fingerprints_name(PackId(digest)))
    same = store(move.source, tmp_path, of_pages(*range(1, 500)))
    assert digests(same) == (digest,)
    assert move.send(same) > 0
    assert verify(move.destination).damages == ()


@pytest.mark.parametrize("where", [20, -30, -1000])
def test_pack_damaged_at_the_source_is_not_stored(move: Move, tmp_path: Path, where: int) -> None:
    checkpoint = store(move.source, tmp_path, of_pages(*range(1, 500)))
    flip(packs(move.source)[0], where)
    with pytest.raises(RemoteError, match="damaged in the store of the source, or was changed on the way"):
        move.send(checkpoint)
    assert isinstance(move.errors[0], IntegrityError)
    assert nothing_is_left(move.destination)


def test_pack_missing_at_the_source_is_named(move: Move, tmp_path: Path) -> None:
    checkpoint = store(move.source, tmp_path, ONE_PROCESS)
    path = packs(move.source)[0]
    path.unlink()
    thread = in_thread(lambda: move.there.send(Lacking(move.there.receive(Offer).digests)))
    with pytest.raises(IntegrityError, match=f"pack {path.stem[:12]} is missing"):
        send_packs(move.here, move.source.backend, digests(checkpoint))
    thread.join()


def nothing_is_left(repository: Repository) -> bool:
    """Whether nothing entered a store, and nothing is left of what came."""
    scratch = [path.name for path in repository.backend.scratch.rglob("*") if path.is_file()]
    return not packs(repository) and scratch == ["owner.json"]


CONTENT = os.urandom(5000)
DIGEST = hashlib.sha256(b"").hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()


def announce_less(here: Connection) -> None:
    """Send more data than announced."""
    here.send(PackMessage(0, DIGEST, 1000))
    here.send_data(0, CONTENT)


def announce_nothing(here: Connection) -> None:
    """Send data of nothing."""
    here.send_data(0, CONTENT)


def announce_more(here: Connection) -> None:
    """Send less data than announced."""
    here.send(PackMessage(0, DIGEST, 1 << 30))
    here.send_data(0, CONTENT)
    here.send(Sent())


def use_a_channel_twice(here: Connection) -> None:
    """Begin a pack on a channel that already has one."""
    here.send(PackMessage(0, DIGEST, 1000))
    here.send(PackMessage(0, OTHER, 1000))


def send_a_pack_twice(here: Connection) -> None:
    """Begin a pack again."""
    here.send(PackMessage(0, DIGEST, len(CONTENT)))
    here.send(PackMessage(1, DIGEST, len(CONTENT)))


def send_another(here: Connection) -> None:
    """Begin a pack that was not requested."""
    here.send(PackMessage(0, "cd" * 32, len(CONTENT)))


def send_an_endless_one(here: Connection) -> None:
    """Begin a pack that is larger than any pack may be."""
    here.send(PackMessage(0, DIGEST, 1 << 50))


def send_noise(here: Connection) -> None:
    """Send what is no pack."""
    for channel, digest in enumerate((DIGEST, OTHER)):
        here.send(PackMessage(channel, digest, len(CONTENT)))
        here.send_data(channel, CONTENT)
    here.send(Sent())


def send_nothing(here: Connection) -> None:
    """Send no pack."""
    here.send(Sent())


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (announce_less, "more data of Pack"),
        (announce_nothing, "data on channel 0, where no pack has begun"),
        (announce_more, "was not sent whole"),
        (use_a_channel_twice, "on channel 0, which is in use"),
        (send_a_pack_twice, "which was not asked for"),
        (send_another, "Pack cdcdcdcdcdcd, which was not asked for"),
        (send_an_endless_one, "of 1125899906842624 bytes, which no pack has"),
        (send_noise, "its header is damaged"),
        (send_nothing, "was not sent whole"),
    ],
)
def test_source_that_sends_other_packs_than_offered_stores_nothing(
    move: Move, lie: Callable[[Connection], None], words: str
) -> None:
    with move.answering():
        move.here.send(Offer((DIGEST, OTHER)))
        move.here.receive(Lacking)
        with suppress(RemoteError):
            lie(move.here)
    assert words in str(move.errors[0])
    assert isinstance(move.errors[0], ProtocolError | IntegrityError)
    assert nothing_is_left(move.destination)


def test_pack_under_another_name_is_not_stored(move: Move, tmp_path: Path) -> None:
    checkpoint = store(move.source, tmp_path, ONE_PROCESS)
    content = pack_path(move.source, digests(checkpoint)[0]).read_bytes()
    with move.answering():
        move.here.send(Offer((DIGEST,)))
        assert move.here.receive(Lacking).digests == (DIGEST,)
        move.here.send(PackMessage(0, DIGEST, len(content)))
        move.here.send_data(0, content)
        move.here.send(Sent())
        assert "the SHA-256 of its frame table differs from its name" in move.here.receive(Failed).message
    assert nothing_is_left(move.destination)


def test_destination_can_request_only_offered_packs(move: Move, tmp_path: Path) -> None:
    checkpoint = store(move.source, tmp_path, ONE_PROCESS)
    for wanted in (("cd" * 32,), digests(checkpoint) * 2):
        with connected() as (here, there):
            thread = in_thread(lambda: there.send(Lacking(wanted)))  # noqa: B023
            with pytest.raises(ProtocolError, match="Lacking with packs that were not offered"):
                send_packs(here, move.source.backend, digests(checkpoint))
            thread.join()


def test_transfer_with_a_lost_connection_leaves_no_pack(move: Move) -> None:
    with move.answering():
        move.here.send(Offer((DIGEST,)))
        move.here.receive(Lacking)
        move.here.send(PackMessage(0, DIGEST, 1000))
        move.here.send_data(0, b"x" * 500)
        move.here.close()
    assert nothing_is_left(move.destination)


def test_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    source = open_store(tmp_path)
    checkpoint = store(source, tmp_path, of_pages(*range(1, 3000)))
    with mounted_disk(tmp_path / "small", "3m") as small:
        destination = open_store(small)
        with connected() as (here, there), destination.transaction() as begun:
            move = Move(source, destination, here, there, Receiver(destination, begun))
            with pytest.raises(RemoteError, match="No space left on device"):
                move.send(checkpoint)
            (error,) = move.errors
            assert isinstance(error, OSError)
            assert error.errno == errno.ENOSPC
            assert error.filename == str(destination.root)
            assert nothing_is_left(destination)


def test_manifest_with_missing_packs_is_not_written(move: Move, tmp_path: Path) -> None:
    checkpoint = store(move.source, tmp_path, ONE_PROCESS)
    manifest = manifest_path(move.source, checkpoint.id).read_bytes()
    with pytest.raises(IntegrityError, match=f"needs pack {digests(checkpoint)[0][:12]}, which was not sent"):
        move.receiver.store_checkpoint(manifest, checkpoint.id)
    assert move.destination.ids() == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"packs": "more frames"}, "uses more of pack"),
        ({"index": {"bytes": 5, "extents": [[0, 1, 0, 1 << 30]]}}, "is damaged"),
        ({"index": {"bytes": 5, "extents": [[0, 1, 7, 0]]}}, "is damaged"),
        ({"index": {"bytes": 5, "extents": [[0, 1, 0, 0]]}}, "is damaged"),
        ({"sequence": (1 << 52) + 1}, "too few numbers would be left"),
        # Some more such moves would use up all numbers.
        ({"sequence": (1 << 52)}, "too few numbers would be left"),
        ({"sequence": (1 << 40) + 1}, "too few numbers would be left"),
        ({"schema": 2}, "knows schema 1"),
    ],
)
def test_manifest_that_contradicts_its_packs_is_not_written(
    move: Move, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    checkpoint = store(move.source, tmp_path, ONE_PROCESS)
    move.send(checkpoint)
    if "packs" in change:
        change = {"packs": [{"digest": digests(checkpoint)[0], "frames": 100_000, "pages": 1}]}
    forged = with_changed_manifest(move.source, checkpoint, **change)
    with pytest.raises((IntegrityError, StoreUnusable), match=words):
        move.receiver.store_checkpoint(manifest_path(move.source, forged).read_bytes(), forged)
    assert move.destination.ids() == ()


def test_manifest_with_another_id_is_not_written(move: Move, tmp_path: Path) -> None:
    checkpoint = store(move.source, tmp_path, ONE_PROCESS)
    move.send(checkpoint)
    with pytest.raises(IntegrityError, match="SHA-256 is not its id"):
        move.receiver.store_checkpoint(manifest_path(move.source, checkpoint.id).read_bytes(), CheckpointId("ab" * 32))


def test_gc_removes_packs_of_an_aborted_move(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    source, destination = open_store(tmp_path), open_store(tmp_path / "there")
    checkpoint = store(source, tmp_path, ONE_PROCESS)
    with connected() as (here, there), destination.transaction() as begun:
        Move(source, destination, here, there, Receiver(destination, begun)).send(checkpoint)
        assert packs(destination)
    collect_garbage(destination)
    assert not packs(destination)
