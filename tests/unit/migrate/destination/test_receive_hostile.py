"""A source that is hostile: it names what it must not touch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from image_sets import of_pages, open_store, store

from crckpt.migrate.destination import receive
from crckpt.migrate.destination.receive import Destination
from crckpt.migrate.wire import messages
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.connection_errors import ConnectionLost
from crckpt.model import JobName, MoveId
from crckpt.ops.context import Context
from crckpt.store import Checkpoint, Repository
from crckpt.store.layout import manifest_name
from crckpt.store.moves import read_move

MOVE = MoveId("0123456789abcdef")


@pytest.fixture(autouse=True)
def in_our_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests in their session."""
    monkeypatch.setattr(receive, "leave_session", lambda _name, _description: "")


def serve(repository: Repository, *sent: messages.MoveMessage) -> list[object]:
    """Serve a source that sends these messages, and then is lost; return the answers."""
    answers: list[object] = []
    left = list(sent)

    def receive_next(*_kinds: type) -> messages.MoveMessage:
        if not left:
            raise ConnectionLost("the connection was lost")
        return left.pop(0)

    connection = SimpleNamespace(receive=receive_next, send=answers.append)
    hello = SimpleNamespace(hostname="hostile", store="its store", boot_id="")
    Destination(
        cast(Context, SimpleNamespace()), repository, cast(Connection, connection), cast(messages.Hello, hello)
    ).serve()
    return answers


def prepare(job: str, checkpoint: Checkpoint, manifest: bytes) -> messages.Prepare:
    return messages.Prepare(MOVE, JobName(job), checkpoint.id, manifest, messages.RestoreOptions())


@pytest.mark.parametrize("ending", [(), (messages.Abort("why not"),)], ids=["lost", "aborted"])
def test_hostile_source_of_a_move_cannot_remove_an_existing_checkpoint(
    tmp_path: Path, ending: tuple[messages.Abort, ...]
) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, of_pages(1, 2))
    (failed, *_) = serve(repository, prepare("job", checkpoint, b"not one"), *ending)
    assert isinstance(failed, messages.Failed)
    assert repository.get(checkpoint.id) == checkpoint
    move = read_move(repository.backend, JobName("job"))
    assert move is not None
    assert move.state == "aborted"


def test_hostile_source_of_a_move_cannot_send_a_checkpoint_of_another_job(tmp_path: Path) -> None:
    """The other job may be in the middle of its own move."""
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, of_pages(1, 2))
    name = manifest_name(checkpoint.id)
    manifest = repository.backend.read(name, 1 << 20)
    repository.remove([checkpoint.id])
    (failed,) = serve(repository, prepare("another", checkpoint, manifest))
    assert isinstance(failed, messages.Failed)
    assert "is of job, not of another" in failed.message
    assert not repository.backend.exists(name)
