"""New lines of a log are appended to the same log of the other host, completely or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from connections import connected, in_thread
from msgspec.structs import replace

from crckpt.errors import CrckptError, DumpFailed, IntegrityError, PreflightRefused
from crckpt.host.disk.placed_files import Ownership, read_owners
from crckpt.migrate.preflight.questions import AskedFile
from crckpt.migrate.transfer import send_files
from crckpt.migrate.transfer.send_files import SentLogs, receive_tails
from crckpt.migrate.transfer.sent_files import SentFile, SentTail, decode_tails
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.messages import Lacking, PackMessage, Sent, Tails, encode, make_failed

pytestmark = pytest.mark.usefixtures("is_root")

_OWNER = 4321
_FIRST, _MORE = b"first\n" * 1000, b"more\n" * 500_000


class Logs:
    """The same log on two hosts: `here` on the source, `there` on the destination. Both have its path."""

    def __init__(self, directory: Path) -> None:
        self.here, self.there = directory / "here/log", directory / "there/log"
        for path in (self.here, self.there):
            path.parent.mkdir()
            path.write_bytes(_FIRST)
            path.chmod(0o640)
            os.chown(path, _OWNER, _OWNER)

    def append(self, content: bytes) -> None:
        """Write on the source."""
        with self.here.open("ab") as file:
            file.write(content)

    def asked(self) -> AskedFile:
        """The question about the log."""
        found = self.here.stat()
        return AskedFile(
            1,
            os.fsencode(self.there),
            found.st_mode,
            size=found.st_size,
            flags=os.O_WRONLY | os.O_APPEND,
            uid=found.st_uid,
            gid=found.st_gid,
            inode=found.st_ino,
            device=found.st_dev,
            is_written=True,
        )


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Logs:
    """A log of both hosts, which are one here."""
    found = Logs(tmp_path)

    def open_here(_path: str) -> tuple[int | None, int]:
        return os.open(found.here, os.O_RDONLY), 0

    monkeypatch.setattr(send_files, "open_regular", open_here)
    return found


def answered(work: Callable[[Connection], object], messages: int = 1) -> CrckptError | None:
    """Let the source do some work, while the destination answers so many lists of tails; return its failure."""
    failures: list[CrckptError] = []
    with connected() as (source, destination):

        def receive() -> None:
            for _ in range(messages):
                message = destination.receive(Tails)
                try:
                    receive_tails(destination, message)
                except CrckptError as error:
                    failures.append(error)
                    destination.send(make_failed(error))

        thread = in_thread(receive)
        try:
            work(source)
        except CrckptError:
            if not failures:
                raise
        thread.join()
    return failures[0] if failures else None


def test_only_lines_appended_to_a_log_are_sent_after_the_freeze(logs: Logs) -> None:
    sent = SentLogs([(logs.asked(), len(_FIRST))])

    def work(source: Connection) -> None:
        logs.append(_MORE)
        sent.send_gained(source)
        before = source.sent_bytes
        sent.send_gained(source)
        assert source.sent_bytes == before, "nothing was gained"
        logs.append(b"last\n")
        sent.send_gained(source)
        assert source.sent_bytes - before < 1000

    assert answered(work, 2) is None
    assert logs.there.read_bytes() == _FIRST + _MORE + b"last\n" == logs.here.read_bytes()
    assert logs.there.stat().st_mtime_ns == logs.here.stat().st_mtime_ns
    assert (logs.there.stat().st_uid, logs.there.stat().st_mode) == (_OWNER, logs.here.stat().st_mode)


def test_log_is_compared_up_to_its_size_before_the_freeze(logs: Logs) -> None:
    assert answered(SentLogs([(logs.asked(), len(_FIRST))]).send_gained) is None
    logs.there.write_bytes(_FIRST[::-1])
    failure = answered(SentLogs([(logs.asked(), len(_FIRST))]).send_gained)
    assert isinstance(failure, PreflightRefused)
    assert failure.message == f"{logs.there} is not the same log there: its content differs"
    assert logs.there.read_bytes() == _FIRST[::-1]


def _link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.chmod(0o644),
        lambda path: os.chown(path, 0, _OWNER),
        lambda path: path.with_name("second").hardlink_to(path),
        lambda path: path.write_bytes(_FIRST + b"x"),
        _link,
    ],
)
def test_different_file_at_the_destination_is_left_alone(logs: Logs, change: Callable[[Path], None]) -> None:
    asked = logs.asked()
    change(logs.there)
    content = logs.there.read_bytes()
    logs.append(_MORE)
    failure = answered(SentLogs([(asked, len(_FIRST))]).send_gained)
    assert isinstance(failure, PreflightRefused)
    assert f"{logs.there} is not the same log there" in failure.message
    assert logs.there.read_bytes() == content


def test_log_truncated_or_replaced_during_a_move_is_refused(logs: Logs) -> None:
    asked = logs.asked()
    with connected() as (source, _):
        os.truncate(logs.here, 10)
        with pytest.raises(DumpFailed, match="was cut or rewritten during the move"):
            SentLogs([(asked, len(_FIRST))]).send_gained(source)
        with pytest.raises(DumpFailed, match="was replaced since the check"):
            SentLogs([(replace(asked, inode=asked.inode + 1), 0)]).send_gained(source)


@pytest.mark.parametrize(
    "content", [b"other\n" * 2000, _FIRST.replace(b"first", b"other", 1) + _MORE, _FIRST[:-6] + b"other\n" + _MORE]
)
def test_log_truncated_and_grown_again_during_a_move_is_refused(logs: Logs, content: bytes) -> None:
    """The size does not show the truncation: the existing lines would be followed by the rest of another log."""
    sent = SentLogs([(logs.asked(), len(_FIRST))])

    def work(source: Connection) -> None:
        sent.send_gained(source)
        logs.here.write_bytes(content)
        with pytest.raises(DumpFailed, match="was cut or rewritten during the move"):
            sent.send_gained(source)

    assert answered(work) is None
    assert logs.there.read_bytes() == _FIRST


def test_log_removed_during_a_move_is_refused(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    asked = replace(logs.asked(), path=os.fsencode(logs.here))
    logs.here.rename(logs.here.with_suffix(".1"))
    with connected() as (source, _), pytest.raises(DumpFailed, match="log was removed or renamed since") as caught:
        SentLogs([(asked, 0)]).send_gained(source)
    assert "do not rotate the log" in caught.value.hint


@pytest.mark.parametrize("content", [b"other", b"gained", b""])
def test_log_content_beyond_the_announced_size_is_cut_off(logs: Logs, content: bytes) -> None:
    above = tuple(read_owners(logs.there))
    mode = logs.here.stat().st_mode
    digest = hashlib.sha256(b"gained").hexdigest()
    tail = SentTail(
        SentFile(os.fsencode(logs.there), mode, _OWNER, _OWNER, above, 0, len(b"gained"), digest), len(_FIRST)
    )

    def work(source: Connection) -> None:
        source.send(Tails(encode((tail,))))
        assert source.receive(Lacking).digests == (digest,)
        if content:
            source.send(PackMessage(0, digest, len(b"gained")))
            source.send_data(0, content)
        source.send(Sent())

    failure = answered(work)
    assert (failure is None) == (content == b"gained")
    assert failure is None or isinstance(failure, IntegrityError)
    assert logs.there.read_bytes() == _FIRST + (content if failure is None else b"")


def test_received_ends_of_logs_are_validated() -> None:
    path = SentFile(b"/srv/log", 0o100640, 0, 0, (Ownership(0o755, 0, 0),), 0, 1, "ab" * 32)
    assert decode_tails(encode((SentTail(path, 5),))) == (SentTail(path, 5),)
    for bad in (
        replace(path, path=b"/srv/../log", above=path.above * 2),
        replace(path, path=b"log"),
        replace(path, mode=0o40755, size=0),
        replace(path, mode=0o104755),
    ):
        with pytest.raises(IntegrityError):
            decode_tails(encode((SentTail(bad, 0),)))
    for content in (b"", b"\xc1", encode((SentTail(path, 5, "x"),)), bytes(17 << 20)):
        with pytest.raises(IntegrityError):
            decode_tails(content)
