"""`--send-files`: what is lacking is put where it belongs, whole or not at all, and nothing is replaced."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from connections import PackCollector, connected, in_thread
from gates import HOST, NEW_PIDS, answer_here, answer_in, ask_about, report, target_at
from msgspec.structs import replace
from target_processes import StatementRunner

from crckpt.causes import Refusal
from crckpt.errors import CrckptError, DumpFailed, IntegrityError, PreflightRefused
from crckpt.host.disk import placed_files
from crckpt.host.disk.placed_files import Ownership
from crckpt.migrate.preflight.questions import AskedFile
from crckpt.migrate.preflight.report import find_sendable, plan_sending
from crckpt.migrate.transfer import send_files as module
from crckpt.migrate.transfer.send_files import receive_files, send_files
from crckpt.migrate.transfer.sent_files import SentFile, decode_files
from crckpt.migrate.wire.messages import Files, Lacking, Sent, encode, make_failed

pytestmark = pytest.mark.usefixtures("is_root")

_CONTENT = b"content of a file\n" * 1000
_OWNER = 4321


def _asked(path: Path, number: int = 1) -> AskedFile:
    """The question about an existing file."""
    found = path.stat()
    return AskedFile(
        number,
        os.fsencode(path),
        found.st_mode,
        size=0 if path.is_dir() else found.st_size,
        modified=found.st_mtime_ns,
        uid=found.st_uid,
        gid=found.st_gid,
        inode=found.st_ino,
        device=found.st_dev,
    )


def _make(path: Path, content: bytes = _CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o640)
    os.chown(path, _OWNER, _OWNER)
    return path


def _move(asked_files: list[AskedFile], remove: Callable[[], object]) -> BaseException | None:
    """Send files; they are removed once they are read, as if the destination never had them. Return its failure."""
    failures: list[BaseException] = []
    with connected() as (source, destination):

        def receive() -> None:
            message = destination.receive(Files)
            remove()
            try:
                receive_files(destination, message)
            except (CrckptError, OSError) as error:
                failures.append(error)
                destination.send(make_failed(error))

        thread = in_thread(receive)
        reported: list[tuple[int, int]] = []
        try:
            send_files(source, asked_files, lambda *progress: reported.append(progress))
            total = sum(file.size for file in asked_files)
            assert (reported or [(0, 0)])[-1] == (total, total)
        except CrckptError:
            assert failures
        thread.join()
    return failures[0] if failures else None


@pytest.fixture
def source_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose files the source reads from a copy: so the two hosts can have different files here."""
    copy = tmp_path / "copy"

    def open_copy(path: str) -> tuple[int | None, int]:
        return os.open(path.replace(str(tmp_path / "place"), str(copy)), os.O_RDONLY), 0

    monkeypatch.setattr(module, "open_regular", open_copy)
    return tmp_path / "place"


def _prepare(place: Path, *names: str) -> list[AskedFile]:
    """Make these files at their places; and copies, which remain when the places are removed."""
    copy = place.with_name("copy")
    asked_files = []
    for number, name in enumerate(names, 1):
        path = _make(place / name)
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).hardlink_to(path)
        asked_files.append(_asked(path, number))
    return asked_files


def test_files_arrive_with_owner_mode_and_time(source_directory: Path) -> None:
    asked_files = _prepare(source_directory, "one", "inner/two")
    inner = source_directory / "inner"
    inner.chmod(0o751)

    def remove() -> None:
        (source_directory / "one").unlink()
        (inner / "two").unlink()
        inner.rmdir()

    assert _move(asked_files, remove) is None
    for file, path in zip(asked_files, (source_directory / "one", inner / "two"), strict=True):
        found = path.stat()
        assert path.read_bytes() == _CONTENT
        assert found.st_ino != file.inode
        assert (found.st_mode, found.st_uid, found.st_gid) == (stat.S_IFREG | 0o640, _OWNER, _OWNER)
        assert found.st_mtime_ns == file.modified
    assert stat.S_IMODE(inner.stat().st_mode) == 0o751
    assert sorted(path.name for path in source_directory.iterdir()) == ["inner", "one"]


def test_empty_file_and_working_directory_are_sent(source_directory: Path) -> None:
    empty = _make(source_directory / "empty", b"")
    directory = source_directory / "work"
    directory.mkdir(mode=0o700)
    (source_directory.with_name("copy")).mkdir()
    (source_directory.with_name("copy") / "empty").hardlink_to(empty)
    asked_files = [_asked(empty), _asked(directory, 2)]

    def remove() -> None:
        empty.unlink()
        directory.rmdir()

    assert _move(asked_files, remove) is None
    assert empty.read_bytes() == b""
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_file_arrives_on_a_file_system_without_unnamed_files(
    source_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a file system refuses O_TMPFILE: the file has a temporary name until it is complete."""
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    asked_files = _prepare(source_directory, "one")
    assert _move(asked_files, (source_directory / "one").unlink) is None
    assert [path.name for path in source_directory.iterdir()] == ["one"]
    assert (source_directory / "one").read_bytes() == _CONTENT
    assert (source_directory / "one").stat().st_nlink == 1


def test_sent_file_does_not_replace_an_existing_one(source_directory: Path) -> None:
    """Other files of the same transfer are removed again."""
    asked_files = _prepare(source_directory, "inner/one", "two")

    def change() -> None:
        (source_directory / "inner/one").unlink()
        (source_directory / "inner").rmdir()
        (source_directory / "two").unlink()
        (source_directory / "two").write_bytes(b"mine")

    failure = _move(asked_files, change)
    assert isinstance(failure, PreflightRefused)
    assert "does not replace it" in failure.message
    assert (source_directory / "two").read_bytes() == b"mine"
    assert [path.name for path in source_directory.iterdir()] == ["two"]


def test_link_at_the_source_is_not_followed_when_files_are_sent(source_directory: Path, tmp_path: Path) -> None:
    asked_files = _prepare(source_directory, "inner/one")
    (tmp_path / "trap").mkdir()

    def change() -> None:
        (source_directory / "inner/one").unlink()
        (source_directory / "inner").rmdir()
        (source_directory / "inner").symlink_to(tmp_path / "trap")

    failure = _move(asked_files, change)
    assert isinstance(failure, PreflightRefused)
    assert "symbolic link" in failure.message
    assert not any((tmp_path / "trap").iterdir())


@pytest.mark.parametrize("change", [lambda path: path.chmod(0o777), lambda path: os.chown(path, 12345, 0)])
def test_file_is_not_sent_into_a_directory_writable_by_others(
    source_directory: Path, change: Callable[[Path], None]
) -> None:
    asked_files = _prepare(source_directory, "inner/one")

    def prepare() -> None:
        (source_directory / "inner/one").unlink()
        change(source_directory / "inner")

    failure = _move(asked_files, prepare)
    assert isinstance(failure, PreflightRefused)
    assert "other users can change" in failure.message
    assert not any((source_directory / "inner").iterdir())


def _make_secret(directory: Path, size: int) -> Path:
    secret = directory / "secret"
    secret.write_bytes(b"s" * size)
    secret.chmod(0o600)
    return secret


def _take_number(asked_file: AskedFile, other: Path) -> AskedFile:
    """The question about a file of another file system that has the number of `other`: its user can choose that."""
    return replace(asked_file, inode=other.stat().st_ino, device=asked_file.device + 1)


def _give_to_user(asked_file: AskedFile, other: Path) -> AskedFile:
    """The question about a file of the user's that now belongs to root."""
    found = other.stat()
    return replace(asked_file, inode=found.st_ino, device=found.st_dev)


@pytest.mark.parametrize("mislead", [_take_number, _give_to_user])
def test_link_to_a_file_of_root_is_not_followed(tmp_path: Path, mislead: Callable[..., AskedFile]) -> None:
    """The user of the tree replaces a file that the source has found sendable by the link."""
    secret = _make_secret(tmp_path, len(_CONTENT))
    path = _make(tmp_path / "library")
    asked_file = mislead(_asked(path), secret)
    path.unlink()
    path.symlink_to(secret)
    with connected() as (source, _), pytest.raises(DumpFailed, match=r"has changed since the check|was replaced since"):
        send_files(source, [asked_file])


def test_link_created_after_the_digest_is_not_followed(tmp_path: Path) -> None:
    secret = _make_secret(tmp_path, len(_CONTENT))
    path = _make(tmp_path / "library")
    asked_file, taken = _asked(path), PackCollector()

    def receive() -> None:
        digests = tuple(file.digest for file in decode_files(destination.receive(Files).content))
        path.unlink()
        path.symlink_to(secret)
        # The source may have ended the connection before `send` knows that all is sent.
        with destination.receiving(taken), suppress(CrckptError):
            destination.send(Lacking(digests))
            destination.receive(Sent)

    with connected() as (source, destination):
        thread = in_thread(receive)
        with pytest.raises(DumpFailed, match=r"has changed since the check|was replaced since"):
            send_files(source, [asked_file])
        source.close()
        thread.join()
    assert taken.content == b""


def test_access_control_list_does_not_widen_the_group(source_directory: Path) -> None:
    asked_files = _prepare(source_directory, "one")
    # For uid 4322 to read: the bits of the group are the mask then (acl(5), linux/posix_acl_xattr.h).
    entries = ((1, 6, -1), (2, 4, _OWNER + 1), (4, 0, -1), (0x10, 4, -1), (0x20, 0, -1))
    content = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(source_directory / "one", "system.posix_acl_access", content)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error.strerror}")
    assert stat.S_IMODE((source_directory / "one").stat().st_mode) == 0o640
    assert _move(asked_files, (source_directory / "one").unlink) is None
    assert stat.S_IMODE((source_directory / "one").stat().st_mode) == 0o600


def test_file_changed_while_it_is_sent_is_refused(source_directory: Path) -> None:
    asked_files = _prepare(source_directory, "one")

    def change() -> None:
        (source_directory / "one").unlink()
        (source_directory.with_name("copy") / "one").write_bytes(_CONTENT[::-1])

    failure = _move(asked_files, change)
    assert isinstance(failure, IntegrityError)
    assert not any(source_directory.iterdir())


def test_file_that_would_belong_to_another_user_is_refused(
    source_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user id belongs to another user at the destination."""
    asked_files = _prepare(source_directory, "one")
    names = iter(("ada", "bob"))
    monkeypatch.setattr(module, "find_user_name", lambda _uid: next(names))
    failure = _move(asked_files, (source_directory / "one").unlink)
    assert isinstance(failure, PreflightRefused)
    assert "belongs to the user ada on the source, whose number is that of bob here" in failure.message
    assert not any(source_directory.iterdir())


def _sent(path: bytes, **more: object) -> SentFile:
    above = (Ownership(0o755, 0, 0),) * (len(path.split(b"/")) - 2)
    file = SentFile(path, stat.S_IFREG | 0o644, 0, 0, above, size=1, digest=hashlib.sha256(b"x").hexdigest())
    return replace(file, **more)


@pytest.mark.parametrize(
    "file",
    [
        _sent(b"etc/passwd"),
        _sent(b"/etc/../root/x"),
        _sent(b"/etc//x"),
        _sent(b"/etc/./x"),
        _sent(b"/etc/a\0b"),
        _sent(b"/etc/x", above=()),
        _sent(b"/etc/x", mode=stat.S_IFREG | 0o4755),
        _sent(b"/etc/x", mode=stat.S_IFLNK | 0o777),
        _sent(b"/etc/x", mode=stat.S_IFBLK | 0o600),
        _sent(b"/etc/x", digest=""),
        _sent(b"/etc/x", mode=stat.S_IFDIR | 0o755),
    ],
    ids=repr,
)
def test_list_of_files_to_send_is_validated(file: SentFile) -> None:
    good = _sent(b"/etc/x")
    assert decode_files(encode((good,))) == (good,)
    with pytest.raises(IntegrityError):
        decode_files(encode((good, file)))


def test_files_in_system_directories_are_not_sent() -> None:
    with placed_files.Placement() as placement, pytest.raises(PreflightRefused, match="made by the kernel"):
        placement.open_directory(Path("/proc/self"), (), 0)


def test_move_that_lacks_only_files_is_possible_after_sending(
    target: StatementRunner, destination_store: Path, source_directory: Path
) -> None:
    asked_files = _prepare(source_directory, "one")
    target.do(f"held = open({str(source_directory / 'one')!r})")
    plan = target_at(target.pid, destination_store)
    questions = ask_about(plan)
    (source_directory / "one").unlink()
    found = report(plan, questions, answer_in(NEW_PIDS, questions, destination_store))
    assert [each.key for each in found.blockers] == ["file-missing"]
    (sent,) = plan_sending(questions, found)
    assert sent.path == asked_files[0].path
    (source_directory / "one").hardlink_to(source_directory.with_name("copy") / "one")
    assert _move([sent], (source_directory / "one").unlink) is None
    assert answer_in(NEW_PIDS, questions, destination_store).blockers == ()


def test_no_file_is_sent_if_the_move_has_another_blocker(
    target: StatementRunner, destination_store: Path, tmp_path: Path
) -> None:
    path = _make(tmp_path / "data")
    target.do(f"held = open({str(path)!r})")
    plan = target_at(target.pid, destination_store)
    questions = ask_about(plan)
    path.unlink()
    with pytest.raises(Refusal) as refused:
        plan_sending(questions, report(plan, questions, answer_here(questions, destination_store)))
    assert [found.what for found in refused.value.findings] == [f"{HOST}: PID {target.pid} is in use by python3"]


def test_files_that_can_be_sent_are_selected(target: StatementRunner, destination_store: Path, tmp_path: Path) -> None:
    read, written, special = (_make(tmp_path / name) for name in ("read", "written", "special"))
    special.chmod(0o4755)
    (tmp_path / "open").mkdir()
    (tmp_path / "work").mkdir()
    target.do(f"files = [open({str(read)!r}), open({str(written)!r}, 'r+'), open({str(special)!r})]")
    target.do(f"directory = os.open({str(tmp_path / 'open')!r}, os.O_RDONLY); os.chdir({str(tmp_path / 'work')!r})")
    questions = ask_about(target_at(target.pid, destination_store))
    own = [file for file in questions.files if file.name.startswith(str(tmp_path))]
    sendable, refused = find_sendable(questions, own)
    assert {Path(file.name).name for file in sendable} == {"read", "work"}
    assert {found.key for found in refused} == {"file-unsendable"}
    reasons = " ".join(found.what for found in refused)
    for why in ("the program writes to it", "set-user-id", "may read what is in it"):
        assert why in reasons
    network = replace(own[0], shared_by="nfs4")
    of_host = replace(next(file for file in own if file.name == str(read)), path=b"/etc/cron.d/daily", uid=0)
    assert find_sendable(questions, [replace(of_host, uid=_OWNER)])[1] == ()
    assert "configures the host" in find_sendable(questions, [of_host])[1][0].what
    assert "nfs4" in find_sendable(questions, [network])[1][0].what


def test_file_open_only_by_path_is_not_sent(target: StatementRunner, destination_store: Path, tmp_path: Path) -> None:
    """O_PATH needs no permission to read the file."""
    path = _make(tmp_path / "file")
    for program, is_sent in (("path", False), ("path, reader", True)):
        target.do(f"path = os.open({str(path)!r}, os.O_PATH)")
        target.do(f"reader = os.open({str(path)!r}, os.O_RDONLY)" if "reader" in program else "pass")
        questions = ask_about(target_at(target.pid, destination_store))
        own = [file for file in questions.files if file.name == str(path)]
        sendable, refused = find_sendable(questions, own)
        assert bool(sendable) == is_sent, refused
