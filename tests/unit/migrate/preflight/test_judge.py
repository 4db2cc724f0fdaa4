"""Network and silent file systems, which no test host has. The survey is handmade."""

from __future__ import annotations

from pathlib import Path

import pytest
from gates import ask_about, target_at
from msgspec.structs import replace
from target_processes import StatementRunner

from crckpt.causes import cause
from crckpt.causes.catalogue import CATALOGUE
from crckpt.migrate.preflight.answers import look_for_files
from crckpt.migrate.preflight.judge import plan_restore
from crckpt.migrate.preflight.judge_files import JudgedFiles, LocalFile, judge_files
from crckpt.migrate.preflight.questions import MoveQuestions
from crckpt.preflight.restore.host import HostResources, HostState

pytestmark = pytest.mark.usefixtures("is_root")

_RESOURCES = HostResources("x86_64", frozenset(), (), 1 << 22, None, 0, 1, (), ())


@pytest.fixture
def move_questions(target: StatementRunner, destination_store: Path, tmp_path: Path) -> MoveQuestions:
    """The questions about a program that reads and writes a file on a network file system."""
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    target.do(f"held = open({str(path)!r}, 'r+')")
    questions = ask_about(target_at(target.pid, destination_store))
    files = tuple(replace(file, shared_by="nfs4") if file.path.endswith(b"/data") else file for file in questions.files)
    return replace(questions, files=files)


def _judge(questions: MoveQuestions, **changes: object) -> JudgedFiles:
    """The judgement of a host that has all files, and that with the name `data` with these changes."""
    found = look_for_files(questions.files)
    for file in questions.files:
        if file.path.endswith(b"/data"):
            found[file.id] = replace(found[file.id], **changes)
    files = {file.name: found[file.id].state for file in questions.files}
    host = HostState((), files, {}, _RESOURCES)
    return judge_files(questions, plan_restore(questions, "4.2"), host, found)


def _keys(judged: JudgedFiles) -> list[str]:
    """The keys of what is found of the file; the program's output may be a file, too."""
    return [found.key for found in (*judged.blockers, *judged.warnings) if "/data " in found.what]


def test_file_on_shared_storage_is_the_same(move_questions: MoveQuestions) -> None:
    """The size of the file does not matter, because the program writes to it."""
    (data,) = (file for file in move_questions.files if file.shared_by)
    assert _keys(_judge(move_questions)) == ["file-in-use"]
    assert _keys(_judge(move_questions, shared_by="nfs4")) == []
    assert _keys(_judge(move_questions, shared_by="nfs4", digest="", modified=1)) == []
    assert _keys(_judge(move_questions, shared_by="cifs")) == ["file-in-use"]
    other = _judge(move_questions, shared_by="nfs4", inode=data.inode + 1, digest="0" * 64)
    assert _keys(other) == ["file-differs"]
    assert "storage that both hosts mount" in other.blockers[0].remedy


def test_file_shared_by_two_containers_is_recognized(move_questions: MoveQuestions) -> None:
    """On one kernel, device and inode identify a file."""
    (number,) = (file.id for file in move_questions.files if file.shared_by)
    assert not look_for_files(move_questions.files)[number].is_same
    assert look_for_files(move_questions.files, shares_kernel=True)[number].is_same
    files = tuple(replace(file, inode=file.inode + 1) if file.id == number else file for file in move_questions.files)
    assert not look_for_files(files, shares_kernel=True)[number].is_same
    assert _keys(_judge(move_questions, is_same=True, digest="", modified=1)) == []


@pytest.mark.parametrize(("call", "kind"), [("flock", "flock"), ("lockf", "POSIX")])
def test_lock_on_a_network_file_system_is_a_blocker(
    target: StatementRunner, move_questions: MoveQuestions, destination_store: Path, call: str, kind: str
) -> None:
    """The restore would wait for the lock while the tree is frozen at the source."""
    target.do(f"import fcntl; fcntl.{call}(held, fcntl.LOCK_EX)")
    locks = ask_about(target_at(target.pid, destination_store)).locks
    # The numbers of files may differ from question to question; those of descriptors do not.
    locked = replace(move_questions, locks=locks)
    assert _keys(_judge(locked, shared_by="nfs4")) == ["lock-everywhere"]
    assert _keys(_judge(locked, shared_by="nfs4", local_locks=frozenset({kind}))) == []
    assert _keys(_judge(locked, is_same=True)) == ["lock-everywhere"]
    assert "lock-everywhere" not in _keys(_judge(locked))


def test_many_files_in_use_at_the_destination_are_counted(
    target: StatementRunner, destination_store: Path, tmp_path: Path
) -> None:
    """A database has hundreds of open files: they are not listed individually."""
    target.do(f"held = [open({str(tmp_path)!r} + f'/{{number}}', 'w') for number in range(70)]")
    warnings = _judge(ask_about(target_at(target.pid, destination_store))).warnings
    named = [found.what for found in warnings if found.key == "file-in-use"]
    (counted,) = (found.what for found in warnings if found.key == "files-in-use")
    assert len(named) == 3
    assert int(counted.split()[0]) >= 67


@pytest.mark.parametrize(
    ("problem", "key", "is_blocker"),
    [("silent", "file-silent", True), ("refused", "file-refused", True), ("unmounted", "file-unmounted", False)],
)
def test_file_that_cannot_be_examined_is_reported(
    move_questions: MoveQuestions, problem: str, key: str, *, is_blocker: bool
) -> None:
    judged = _judge(move_questions, problem=problem, state=None, why="Permission denied")
    assert key in [found.key for found in (judged.blockers if is_blocker else judged.warnings)]


def test_files_that_the_destination_did_not_examine_are_counted(move_questions: MoveQuestions) -> None:
    """crckpt does not examine further files of a file system that does not answer."""
    judged = _judge(move_questions, problem="unasked", state=None)
    warnings = [str(warning) for warning in judged.warnings]
    assert "crckpt did not look for 1 more files, because of that file system" in warnings


def test_file_about_which_nothing_was_answered_is_not_reported_missing(move_questions: MoveQuestions) -> None:
    host = HostState((), {}, {}, _RESOURCES)
    judged = judge_files(move_questions, plan_restore(move_questions, "4.2"), host, {})
    assert [found.key for found in (*judged.blockers, *judged.warnings)] == ["files-unasked"]
    assert not LocalFile(problem="unasked").is_missing


@pytest.mark.parametrize("key", sorted(entry.key for entry in CATALOGUE if entry.move or entry.move_says))
def test_move_findings_do_not_mention_restore(key: str) -> None:
    worded = cause(key).finding().word_for("there", peer="db2", ours="4.2", theirs="4.1")
    # What only the source has is not said of the destination.
    assert worded.what.startswith("db2: ") == (key not in {"stopped-job", "terminal"})
    assert "crckpt restore" not in worded.remedy
    assert "--new-pid-namespace" not in worded.remedy
    assert not set("{}") & set(str(worded))


@pytest.mark.parametrize(
    "key",
    [
        *("maker-is-another", "memory", "outside-pipe", "outside-pipe-read", "packet-ring", "peer-of-another"),
        *("tcp-keys", "untested-kind"),
    ],
)
def test_finding_of_a_move_does_not_suggest_options_of_dump(key: str) -> None:
    """A move ends the tree and restores it detached: it has no --stop, --force or --detach."""
    found = cause(key).finding(fd=3, pid=7).word_for("move")
    assert found.key == key
    for words in ("--stop", "--force", "--staging", "--detach", "crckpt restore", "after a restore"):
        assert words not in str(found)
    if key == "outside-pipe":
        assert found.what.endswith("; after the move it leads to /dev/null")


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("device-unlinked", "on db2: connect its cable"),
        ("device-port", "name the other host's device, too: --move-ip 10.0.0.5/24@DEV:ens3"),
        ("lazy-refused", "leave out --lazy and --local-lazy"),
        ("address-of-connection", "connect from another address: BindAddress in ssh_config(5)"),
        (
            "address-missing",
            "move the address with the program: --move-ip 10.0.0.5/24@eth0; or on db2: ip addr add ? dev INTERFACE",
        ),
    ],
)
def test_remedy_of_a_move_names_the_host_where_to_do_it(key: str, remedy: str) -> None:
    found = cause(key).finding(interface="10.0.0.5/24", there="ens3", own="10.0.0.5/24@eth0")
    assert found.word_for("there", peer="db2").remedy == remedy


def test_finding_of_a_move_names_the_destination() -> None:
    found = cause("cpus-missing").finding(missing=3, tid=7, left=1)
    assert found.what.startswith("this host has no CPU 3")
    assert found.word_for("there", peer="db2").what.startswith("db2: it has no CPU 3")
    assert "db2: this kernel" in cause("clocks-jump").finding().word_for("there", peer="db2").what
