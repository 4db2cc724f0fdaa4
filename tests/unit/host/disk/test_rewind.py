"""A log that is cut back, and put back; and what its owner may do meanwhile."""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from listing import mode, names

from crckpt.errors import RestoreFailed
from crckpt.host import steps
from crckpt.host.disk.files import name_with_ending
from crckpt.host.disk.rewind import restored_on_failure
from crckpt.host.syscalls.openat2 import file_rights_of

pytestmark = pytest.mark.usefixtures("wide_umask")


def test_cut_off_part_of_a_log_is_kept_in_another_file(log: Path, tmp_path: Path) -> None:
    with restored_on_failure(log, 4, "kept") as kept:
        assert log.read_bytes() == b"old "
    assert kept == tmp_path / "kept"
    assert (log.read_bytes(), mode(log)) == (b"old ", 0o644)
    assert ((tmp_path / "kept").read_bytes(), mode(tmp_path / "kept")) == (b"new lines", 0o600)


def test_failed_restore_puts_the_cut_off_lines_of_a_log_back(log: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), restored_on_failure(log, 4, "kept"):
        raise KeyboardInterrupt
    assert log.read_bytes() == b"old new lines"
    assert names(tmp_path) == ["log"]


@pytest.mark.parametrize("has_cut", [True, False])
def test_interruption_while_a_log_is_cut_back_loses_no_line(log: Path, tmp_path: Path, *, has_cut: bool) -> None:
    def interrupt(name: str, _operands: tuple[object, ...]) -> None:
        if name == "rewound.resize":
            steps.watch(None)
            if has_cut:
                os.truncate(log, 4)  # the interruption comes when this is done
            raise KeyboardInterrupt

    steps.watch(interrupt)
    with pytest.raises(KeyboardInterrupt), restored_on_failure(log, 4, "kept"):
        pytest.fail("it was interrupted")
    assert log.read_bytes() == b"old new lines"
    assert names(tmp_path) == ["log"]


def test_lines_put_back_into_a_log_are_durable_before_their_copy_is_removed(log: Path, tmp_path: Path) -> None:
    taken: list[str] = []
    steps.watch(lambda name, _operands: taken.append(name))
    try:
        with pytest.raises(KeyboardInterrupt), restored_on_failure(log, 4, "kept"):
            raise KeyboardInterrupt
    finally:
        steps.watch(None)
    assert taken[-4:] == ["rewound.resize", "rewound.write", "rewound.sync", "tail.unlink"]


def test_log_cut_back_again_leaves_the_lines_kept_before(log: Path, tmp_path: Path) -> None:
    """The same checkpoint may be restored, and its logs cut back, more than once."""
    for _ in range(3):
        with restored_on_failure(log, 4, "kept"):
            pass
        with log.open("ab") as file:
            file.write(b"more")
    with pytest.raises(ValueError, match="x"), restored_on_failure(log, 4, "kept"):
        raise ValueError("x")
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == {
        "kept": b"new lines",
        "kept.2": b"more",
        "kept.3": b"more",
        "log": b"old more",
    }


def test_rest_of_a_log_with_the_longest_name_is_kept(log: Path, tmp_path: Path) -> None:
    kept = name_with_ending("\U0001f600" * 63, ".after-0123456789ab")
    (tmp_path / kept).touch()
    with restored_on_failure(log, 4, kept) as other:
        assert other.read_text()
    assert other.name.endswith(".2")


def test_log_that_cannot_be_cut_loses_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(IsADirectoryError),
        restored_on_failure(tmp_path, 4, "kept"),
    ):
        pytest.fail("there was nothing to cut")
    assert names(tmp_path) == []


def test_link_in_the_place_of_a_log_is_not_followed(log: Path, tmp_path: Path) -> None:
    """The owner of the directory chooses the target, which we may cut although the owner may not."""
    (tmp_path / "link").symlink_to(log)
    with (
        pytest.raises(RestoreFailed, match="replaced or truncated"),
        restored_on_failure(tmp_path / "link", 4, "kept"),
    ):
        pytest.fail("it was cut")
    (tmp_path / "below").mkdir(0o700)
    log.rename(tmp_path / "below/log")
    (tmp_path / "there").symlink_to("below")
    linked_log = tmp_path / "there/log"
    with pytest.raises(RestoreFailed, match="replaced or truncated"), restored_on_failure(linked_log, 4, "kept"):
        pytest.fail("it was cut")
    assert linked_log.read_bytes() == b"old new lines"
    assert names(tmp_path) == ["below", "link", "there"]


def test_log_shorter_than_at_the_checkpoint_is_not_cut_back(log: Path, tmp_path: Path) -> None:
    with pytest.raises(RestoreFailed, match="replaced or truncated"), restored_on_failure(log, 40, "kept"):
        pytest.fail("the log was resized")
    assert (log.read_bytes(), names(tmp_path)) == (b"old new lines", ["log"])


def test_lines_appended_to_a_log_while_it_is_copied_are_kept(log: Path, tmp_path: Path) -> None:
    def append(name: str, _operands: object) -> None:
        if name == "tail.sync-directory":
            with log.open("ab") as file:
                file.write(b", and more")

    steps.watch(append)
    try:
        with restored_on_failure(log, 4, "kept"):
            assert log.read_bytes() == b"old "
    finally:
        steps.watch(None)
    assert (tmp_path / "kept").read_bytes() == b"new lines, and more"


_USER = 65534


@pytest.fixture
def directory_of_a_user(tmp_path: Path) -> Path:
    """A directory of an ordinary user's, with a log of theirs, next to `victim`, a directory of root's."""
    for above in (tmp_path, tmp_path.parent, tmp_path.parents[1]):
        above.chmod(0o711)
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim").chmod(0o700)
    directory = tmp_path / "theirs"
    directory.mkdir()
    directory.chmod(0o755)
    (directory / "log").write_bytes(b"old new lines")
    (directory / "log").chmod(0o644)
    for path in (directory, directory / "log"):
        os.chown(path, _USER, _USER)
    return directory


@pytest.mark.parametrize("moment", ["rewound.open", "tail.create", "tail.sync-directory", "rewound.resize"])
def test_directory_of_a_log_that_was_replaced_by_a_link_is_not_followed(directory_of_a_user: Path, moment: str) -> None:
    """The owner of a directory can replace it at any time: root would create files in the target of the link."""
    victim = directory_of_a_user.with_name("victim")

    def exchange(name: str, _operands: object) -> None:
        if name == moment:
            steps.watch(None)
            directory_of_a_user.rename(directory_of_a_user.with_name("moved"))
            directory_of_a_user.symlink_to(victim)

    (victim / "log").write_bytes(b"all of this is of root")
    steps.watch(exchange)
    try:
        with restored_on_failure(directory_of_a_user / "log", 4, "kept"):
            assert (directory_of_a_user.with_name("moved") / "log").read_bytes() == b"old "
    finally:
        steps.watch(None)
    assert (names(victim), (victim / "log").read_bytes()) == (["log"], b"all of this is of root")
    assert names(directory_of_a_user.with_name("moved")) == ["kept", "log"]


def test_kept_lines_belong_to_the_owner_of_the_log(directory_of_a_user: Path) -> None:
    with restored_on_failure(directory_of_a_user / "log", 4, "kept"):
        pass
    kept = (directory_of_a_user / "kept").stat()
    assert (kept.st_uid, kept.st_gid, stat.S_IMODE(kept.st_mode)) == (_USER, _USER, 0o600)


def test_lines_are_kept_where_the_owner_may_create_no_file(directory_of_a_user: Path) -> None:
    """In /var/log, for example, only root may create files."""
    os.chown(directory_of_a_user, 0, 0)
    with restored_on_failure(directory_of_a_user / "log", 4, "kept"):
        pass
    assert ((directory_of_a_user / "kept").read_bytes(), (directory_of_a_user / "kept").stat().st_uid) == (
        b"new lines",
        _USER,
    )
    with pytest.raises(KeyError), restored_on_failure(directory_of_a_user / "log", 1, "kept"):
        raise KeyError
    assert ((directory_of_a_user / "log").read_bytes(), names(directory_of_a_user)) == (b"old ", ["kept", "log"])


@pytest.mark.parametrize("kind", ["link", "hard link", "fifo", "directory", "file of root's"])
def test_file_that_replaced_a_log_is_not_cut(directory_of_a_user: Path, kind: str) -> None:
    secret = directory_of_a_user.with_name("victim") / "secret"
    secret.write_bytes(b"a secret of root's")
    secret.chmod(0o600)

    def exchange(name: str, _operands: object) -> None:
        if name == "rewound.open":
            steps.watch(None)
            (directory_of_a_user / "log").unlink()
            match kind:
                case "link":
                    (directory_of_a_user / "log").symlink_to(secret)
                case "hard link":
                    (directory_of_a_user / "log").hardlink_to(secret)
                case "fifo":
                    os.mkfifo(directory_of_a_user / "log")
                case "directory":
                    (directory_of_a_user / "log").mkdir()
                case _:
                    (directory_of_a_user / "log").write_bytes(b"longer than it was before")

    steps.watch(exchange)
    try:
        with pytest.raises((RestoreFailed, OSError)), restored_on_failure(directory_of_a_user / "log", 4, "kept"):
            pytest.fail("it was cut")
    finally:
        steps.watch(None)
    assert (secret.read_bytes(), names(directory_of_a_user)) == (b"a secret of root's", ["log"])


def test_log_that_its_owner_may_not_write_is_not_cut(directory_of_a_user: Path) -> None:
    (directory_of_a_user / "log").chmod(0o444)
    with pytest.raises(PermissionError, match="log"), restored_on_failure(directory_of_a_user / "log", 4, "kept"):
        pytest.fail("it was cut")
    assert names(directory_of_a_user) == ["log"]
    assert os.geteuid() == 0
    (directory_of_a_user.with_name("victim") / "ours").touch(0o600)


def test_other_threads_of_crckpt_keep_their_rights_while_one_acts_as_a_user(directory_of_a_user: Path) -> None:
    entered, looked = threading.Event(), threading.Event()

    def work() -> None:
        with file_rights_of(_USER, _USER):
            entered.set()
            assert looked.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(60)
    os.close(os.open(directory_of_a_user.with_name("victim"), os.O_RDONLY))
    looked.set()
    thread.join()
    with file_rights_of(_USER, _USER), pytest.raises(PermissionError):
        os.open(directory_of_a_user.with_name("victim"), os.O_RDONLY)
    os.close(os.open(directory_of_a_user.with_name("victim"), os.O_RDONLY))


def test_sparse_log_takes_no_disk_space(log: Path, tmp_path: Path) -> None:
    """The owner can extend the log by a hole, which uses no disk space."""
    end, size = b"the end", 1 << 40
    with log.open("r+b") as file:
        file.seek(size)
        file.write(end)
    kept = tmp_path / "kept"
    with suppress(KeyboardInterrupt), restored_on_failure(log, 4, "kept"):
        assert (log.stat().st_size, kept.stat().st_size) == (4, size + len(end) - 4)
        assert kept.stat().st_blocks * 512 < 1 << 20
        with kept.open("rb") as file:
            assert file.read(10) == b"new lines\0"
            file.seek(size - 4)
            assert file.read() == end
        raise KeyboardInterrupt
    assert (log.stat().st_size, log.stat().st_blocks * 512 < 1 << 20) == (size + len(end), True)
    with log.open("rb") as file:
        assert file.read(14) == b"old new lines\0"


def test_cutting_a_log_back_ends_although_a_program_writes_endlessly(log: Path, tmp_path: Path) -> None:
    """After each write of crckpt, the owner of the log writes again to the log and to the kept part."""
    written = 0

    def append(name: str, _operands: tuple[object, ...]) -> None:
        nonlocal written
        if name in ("tail.write", "rewound.write"):
            written += 1
            assert written < 100
            for path in (log, tmp_path / "kept"):
                with path.open("ab") as file:
                    file.write(b"more")

    steps.watch(append)
    try:
        with pytest.raises(KeyboardInterrupt), restored_on_failure(log, 4, "kept"):
            raise KeyboardInterrupt
    finally:
        steps.watch(None)
    assert log.read_bytes().startswith(b"old ")
