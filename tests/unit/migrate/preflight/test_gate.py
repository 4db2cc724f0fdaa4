"""The gate: each finding with a real cause, on this host or in namespaces of the answerer."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import pytest
from command import WITHOUT_CRIU
from control_groups import make_group
from gates import HOST, NEW_PIDS, answer_here, answer_in, ask_about, keys, report, target_at, warned
from image_sets import described, of_pages, store
from msgspec.structs import replace
from target_processes import PROGRAMS, StatementRunner, running, wait_for

from crckpt.causes import cause
from crckpt.errors import PreflightRefused
from crckpt.host.observe.sockets import find_port_release
from crckpt.images.sockets import InetSocket
from crckpt.migrate.preflight.answers import answer
from crckpt.migrate.preflight.questions import AskedName
from crckpt.migrate.preflight.report import judge_growth, judge_store_space
from crckpt.migrate.wire.messages import RestoreOptions
from crckpt.ops.context import Context
from crckpt.ops.dump.forecast import try_growth
from crckpt.store import Repository

pytestmark = pytest.mark.usefixtures("is_root")

_CONTENT: Final = b"0123456789"
_LARGE: Final = (64 << 20) + 1


def test_destination_like_the_source_with_free_pids_accepts_the_move(
    target: StatementRunner, destination_store: Path
) -> None:
    dump_target = target_at(target.pid, destination_store)
    questions = ask_about(dump_target)
    answers = answer_in(NEW_PIDS, questions, destination_store)
    assert answers.blockers == ()
    assert answers.lacking == ()
    assert report(dump_target, questions, answers).blockers == ()
    report(dump_target, questions, answers).check()
    assert not destination_store.exists()


def test_pids_in_use_are_the_only_blockers_of_a_move_to_the_same_host(
    target: StatementRunner, destination_store: Path
) -> None:
    dump_target = target_at(target.pid, destination_store)
    questions = ask_about(dump_target)
    answers = answer_here(questions, destination_store)
    assert keys(answers) == ["pid-taken"]
    with pytest.raises(PreflightRefused) as refused:
        report(dump_target, questions, answers).check()
    assert refused.value.message == f"{HOST}: PID {target.pid} is in use by python3"
    assert refused.value.hint.startswith("end it there, ")
    assert refused.value.is_in_use


Change = Callable[[Path], object]


def _rewrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("key", "change", "words"),
    [
        ("file-missing", Path.unlink, "--send-files"),
        ("file-differs", lambda path: _rewrite(path, b"9876543210"), "its content differs"),
        ("file-differs", lambda path: _rewrite(path, b"0"), "it has 1 bytes, but here 10"),
        ("file-differs", lambda path: _rewrite(path, _CONTENT + b"1"), "it has 11 bytes, but here 10"),
        ("file-differs", lambda path: path.chmod(0o600), "chmod 0644 "),
        # A process that opens a FIFO would wait forever.
        ("file-differs", _make_fifo, "it is a device, socket or named pipe, but here a regular file"),
    ],
)
def test_file_that_differs_at_the_destination_is_a_blocker(
    target: StatementRunner, destination_store: Path, tmp_path: Path, key: str, change: Change, words: str
) -> None:
    path = tmp_path / "data"
    path.write_bytes(_CONTENT)
    path.chmod(0o644)
    target.do(f"held = open({str(path)!r})")
    questions = ask_about(target_at(target.pid, destination_store))
    assert keys(answer_here(questions, destination_store)) == ["pid-taken"]
    change(path)
    answers = answer_here(questions, destination_store)
    assert keys(answers) == ["pid-taken", key]
    found = answers.blockers[-1].word_for("there", peer=HOST)
    assert str(path) in found.what
    assert words in str(found)
    assert "checkpoint" not in str(found)
    named = {file.id: file.name for file in questions.files}
    assert [named[number] for number in answers.lacking] == [str(path)] * (key == "file-missing")


def test_file_of_another_owner_is_a_warning(target: StatementRunner, destination_store: Path, tmp_path: Path) -> None:
    """The file belongs to a user at the source and to root at the destination."""
    path = tmp_path / "data"
    path.write_bytes(_CONTENT)
    os.chown(path, 12345, 12345)
    target.do(f"held = open({str(path)!r})")
    questions = ask_about(target_at(target.pid, destination_store))
    os.chown(path, 0, 0)
    answers = answer_here(questions, destination_store)
    assert keys(answers) == ["pid-taken"]
    assert "owner-differs" in warned(answers)


@pytest.mark.parametrize("which", ["data", "inner"])
def test_file_owned_by_another_user_is_a_blocker(
    target: StatementRunner, destination_store: Path, tmp_path: Path, which: str
) -> None:
    """The owner of a file in a directory like /tmp may change the content at any time."""
    path = tmp_path / "inner" / "data"
    path.parent.mkdir()
    path.write_bytes(_CONTENT)
    target.do(f"held = open({str(path)!r})")
    plan = target_at(target.pid, destination_store)
    questions = ask_about(plan)
    os.chown(path if which == "data" else path.parent, 12345, 12345)
    answers = answer_here(questions, destination_store)
    assert keys(answers) == ["pid-taken", "file-of-another"]
    with pytest.raises(PreflightRefused, match="could replace"):
        report(plan, questions, answers).check(preflight=False)
    assert f"user 12345 could replace {path} there" in answers.blockers[-1].what
    allowed = answer_here(replace(questions, allows_weaker=True), destination_store)
    assert (keys(allowed), "file-of-another" in warned(allowed)) == (["pid-taken"], True)
    # The file belongs to the same user as at the source, or to the program's user.
    os.chown(path, 12345, 12345)
    assert "file-of-another" not in keys(answer_here(ask_about(plan), destination_store))


def test_large_file_is_compared_by_size_and_time(
    target: StatementRunner, destination_store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    path.touch()
    os.truncate(path, _LARGE)
    target.do(f"held = open({str(path)!r})")
    questions = ask_about(target_at(target.pid, destination_store))
    answers = answer_here(questions, destination_store)
    assert keys(answers) == ["pid-taken"]
    assert "file-size-only" in warned(answers)
    os.utime(path, (1, 1))
    changed = answer_here(questions, destination_store)
    assert keys(changed) == ["pid-taken", "file-differs"]
    assert "time of last change differs" in changed.blockers[-1].what


def test_file_open_for_writing_needs_a_copy(target: StatementRunner, destination_store: Path, tmp_path: Path) -> None:
    """Writes after the copy would be missing. Without the option to copy, the file is not sent."""
    path = tmp_path / "data"
    path.write_bytes(_CONTENT)
    target.do(f"held = open({str(path)!r}, 'r+')")
    questions = ask_about(target_at(target.pid, destination_store))
    assert "file-in-use" in warned(answer_here(questions, destination_store))
    path.unlink()
    found = answer_here(questions, destination_store).blockers[-1].word_for("there", peer=HOST)
    assert found.key == "file-missing"
    assert "storage that both hosts mount" in found.remedy
    assert "--send-files" not in found.remedy


def test_named_shared_memory_is_a_blocker(target: StatementRunner, destination_store: Path) -> None:
    """CRIU takes the memory for a file, whose content it does not save."""
    path = Path(f"/dev/shm/crckpt-gate-{os.getpid()}")
    path.write_bytes(_CONTENT)
    try:
        target.do(f"import mmap; held = open({str(path)!r}, 'r+b'); area = mmap.mmap(held.fileno(), 10); held.close()")
        questions = ask_about(target_at(target.pid, destination_store))
    finally:
        path.unlink()
    found = answer_here(questions, destination_store).blockers[-1].word_for("there", peer=HOST)
    assert (found.key, str(path) in found.what) == ("file-missing", True)
    assert "share memory without a name" in found.remedy


def test_lost_cgroup_limits_are_reported(target: StatementRunner, destination_store: Path) -> None:
    """The limits are lost if the group does not exist."""
    directory = next((each for each in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")) if each.is_dir()), None)
    if directory is None or not os.access(directory, os.W_OK):
        pytest.skip("no control group can be made here")
    group = make_group(directory)
    try:
        if not (group / "pids.max").exists():
            pytest.skip("control groups do not limit tasks here")
        (group / "pids.max").write_text("7")
        (group / "cgroup.procs").write_text(str(target.pid))
        questions = ask_about(target_at(target.pid, destination_store))
        assert "group-limits-lost" not in warned(answer_here(questions, destination_store))
        (directory / "cgroup.procs").write_text(str(target.pid))
    finally:
        group.rmdir()
    answers = answer_here(questions, destination_store)
    assert "group-limits-lost" in warned(answers)
    assert keys(answers) == ["pid-taken"]


def test_log_with_appended_lines_must_have_the_same_size_at_the_destination(
    target: StatementRunner, destination_store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_bytes(_CONTENT)
    target.do(f"held = open({str(path)!r}, 'a')")
    questions = ask_about(target_at(target.pid, destination_store))
    path.write_bytes(b"9876543210")
    assert keys(answer_here(questions, destination_store)) == ["pid-taken"]
    path.write_bytes(b"9")
    assert keys(answer_here(questions, destination_store)) == ["pid-taken", "file-differs"]
    path.write_bytes(_CONTENT + _CONTENT)
    assert keys(answer_here(questions, destination_store)) == ["pid-taken", "file-differs"]


def test_library_of_another_build_is_a_blocker(destination_store: Path, tmp_path: Path) -> None:
    """Here the program itself has other content of the same size, with another build-id."""
    path = tmp_path / "program"
    path.write_bytes(Path("/bin/sleep").resolve().read_bytes())
    path.chmod(0o755)
    with running(str(path), "infinity", ready="") as process:
        questions = ask_about(target_at(process.pid, destination_store))
        (program,) = (file for file in questions.files if file.name == str(path))
        assert program.is_executed
        if not program.build_id:
            pytest.skip("sleep has no build-id here")
        assert not program.digest
        content = path.read_bytes().replace(bytes.fromhex(program.build_id), bytes(len(program.build_id) // 2))
        path.unlink()
        path.write_bytes(content)
        path.chmod(0o755)
        found = answer_here(questions, destination_store).blockers[-1]
        assert found.key == "file-differs"
        assert found.remedy == "install the same version there"


def test_removed_file_with_another_name_is_a_blocker(
    target: StatementRunner, destination_store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    path.write_bytes(_CONTENT)
    (tmp_path / "other").hardlink_to(path)
    target.do(f"held = open({str(path)!r})")
    path.unlink()
    assert "removed-name" in keys(answer_here(ask_about(target_at(target.pid, destination_store)), destination_store))


def test_removed_file_without_another_name_can_be_moved(
    target: StatementRunner, destination_store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    path.write_bytes(_CONTENT)
    target.do(f"held = open({str(path)!r})")
    path.unlink()
    assert keys(answer_here(ask_about(target_at(target.pid, destination_store)), destination_store)) == ["pid-taken"]


def test_file_name_that_is_not_unicode_is_checked(
    target: StatementRunner, destination_store: Path, tmp_path: Path
) -> None:
    path = tmp_path / os.fsdecode(b"\xff\xfe\n")
    path.write_bytes(_CONTENT)
    target.do(f"held = open({os.fsencode(path)!r})")
    questions = ask_about(target_at(target.pid, destination_store))
    assert keys(answer_here(questions, destination_store)) == ["pid-taken"]
    path.unlink()
    assert keys(answer_in(NEW_PIDS, questions, destination_store)) == ["file-missing"]


def test_port_in_use_is_a_blocker(target: StatementRunner, destination_store: Path) -> None:
    port = target.do("import socket; s = socket.create_server(('127.0.0.1', 0)); result = s.getsockname()[1]")
    dump_target = target_at(target.pid, destination_store)
    questions = ask_about(dump_target)
    answers = answer_in(NEW_PIDS, questions, destination_store)
    assert keys(answers) == ["port-taken"]
    blocker = report(dump_target, questions, answers).blockers[0]
    assert blocker.what.startswith(f"{HOST}: TCP port 127.0.0.1:{port} is taken")
    assert blocker.remedy.startswith(f"on {HOST}: find it: ss ")


def test_port_of_closed_connections_is_a_blocker(target: StatementRunner, destination_store: Path) -> None:
    port = target.do("import socket; s = socket.create_server(('127.0.0.1', 0)); result = s.getsockname()[1]")
    questions = ask_about(target_at(target.pid, destination_store))
    target.do("s.close()")
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        client.connect(("127.0.0.1", port))
        listener.accept()[0].close()
        assert client.recv(1) == b""
    wait_for(lambda: find_port_release(port) is not None, "the connection to be closed")
    (found,) = answer_in(NEW_PIDS, questions, destination_store).blockers
    assert found.key == "port-closing"


def test_missing_address_is_a_blocker_unless_it_moves(target: StatementRunner, destination_store: Path) -> None:
    target.do("import socket; s = socket.create_server(('127.0.0.1', 0))")
    dump_target = target_at(target.pid, destination_store)
    questions = ask_about(dump_target)
    (found,) = questions.sockets
    assert isinstance(found, InetSocket)
    sockets = (replace(found, source=replace(found.source, host="192.0.2.7")),)
    elsewhere = replace(questions, sockets=sockets)
    answers = answer_in(NEW_PIDS, elsewhere, destination_store)
    assert keys(answers) == ["address-missing"]
    remedy = report(dump_target, elsewhere, answers).blockers[0].remedy
    assert remedy.startswith("move the address with the program: --move-ip ADDRESS/LENGTH@DEVICE; or ")
    assert remedy.endswith(f"on {HOST}: ip addr add 192.0.2.7 dev INTERFACE")
    blocker = report(dump_target, elsewhere, answers).blockers[0]
    assert blocker.what.startswith(f"{HOST}: it does not have the TCP address 192.0.2.7:")
    answers_of_this_host = replace(answers, blockers=tuple(each.fill(host="127.0.0.1") for each in answers.blockers))
    assert "--move-ip 127.0.0.1/8@lo; or " in report(dump_target, elsewhere, answers_of_this_host).blockers[0].remedy
    assert (
        keys(answer_in(NEW_PIDS, replace(elsewhere, moved_addresses=("192.0.2.7/24@eth0",)), destination_store)) == []
    )


def test_move_to_the_source_host_is_refused(target: StatementRunner, destination_store: Path) -> None:
    """All resources of the tree are in use there: no other finding is useful."""
    questions = ask_about(target_at(target.pid, destination_store))
    assert keys(answer(questions, Context(destination_store), shares_kernel=True)) == ["same-host"]
    assert "same-host" not in keys(answer(questions, Context(destination_store)))


def test_connection_to_a_program_that_stays_is_a_blocker(target: StatementRunner, destination_store: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        target.do(f"import socket; s = socket.create_connection(('127.0.0.1', {port}))")
        kept = answer_in(NEW_PIDS, ask_about(target_at(target.pid, destination_store, "keep")), destination_store)
        assert keys(kept) == ["connection-stays"]
        assert (
            keys(answer_in(NEW_PIDS, ask_about(target_at(target.pid, destination_store, "close")), destination_store))
            == []
        )


def test_connection_within_the_tree_moves(target: StatementRunner, destination_store: Path) -> None:
    target.do(
        "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); "
        "a, _ = s.accept(); s.close()"
    )
    assert (
        keys(answer_in(NEW_PIDS, ask_about(target_at(target.pid, destination_store, "keep")), destination_store)) == []
    )


def test_missing_interface_is_a_blocker(target: StatementRunner, destination_store: Path) -> None:
    target.do("import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo')")
    questions = ask_about(target_at(target.pid, destination_store))
    assert keys(answer_in(NEW_PIDS, questions, destination_store)) == []
    (bound,) = questions.sockets
    assert isinstance(bound, InetSocket)
    found = answer_in(
        NEW_PIDS, replace(questions, sockets=(replace(bound, interface="wan7"),)), destination_store
    ).blockers
    assert [each.key for each in found] == ["interface-missing"]
    assert "wan7" in found[0].what


def test_lock_of_another_program_is_a_blocker(target: StatementRunner, destination_store: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.touch()
    target.do(f"import fcntl; held = open({str(path)!r}); fcntl.flock(held, fcntl.LOCK_EX)")
    assert keys(answer_here(ask_about(target_at(target.pid, destination_store)), destination_store)) == [
        "pid-taken",
        "lock-taken",
    ]


def test_terminal_in_use_is_a_blocker(target: StatementRunner, destination_store: Path) -> None:
    number = target.do("import os; m, s = os.openpty(); result = int(os.ttyname(s).rpartition('/')[2])")
    answers = answer_here(ask_about(target_at(target.pid, destination_store)), destination_store)
    assert keys(answers) == ["pid-taken", "terminal-taken"]
    assert f"/dev/pts/{number}" in answers.blockers[1].what


def test_terminal_outside_the_tree_is_a_blocker(target: StatementRunner, destination_store: Path) -> None:
    master, slave = os.openpty()
    try:
        target.do(f"import os; terminal = os.open({os.ttyname(slave)!r}, os.O_RDWR | os.O_NOCTTY)")
    finally:
        os.close(slave)
    dump_target = target_at(target.pid, destination_store)
    questions = ask_about(dump_target)
    answers = answer_in(NEW_PIDS, questions, destination_store)
    assert keys(answers) == ["terminal"]
    assert (
        report(dump_target, questions, answers).blockers[-1].remedy.endswith("--tty new; if it only prints: --tty null")
    )
    chosen: tuple[Literal["new", "null"], ...] = ("new", "null")
    for tty in chosen:
        assert keys(answer_in(NEW_PIDS, ask_about(dump_target, RestoreOptions(tty=tty)), destination_store)) == []
    os.close(master)


def test_users_and_groups_with_other_names_are_warnings(target: StatementRunner, destination_store: Path) -> None:
    questions = ask_about(target_at(target.pid, destination_store))
    assert AskedName("user", 0, "root") in questions.names
    other = (AskedName("user", 0, "toor"), AskedName("group", 4_000_000_000, "team"))
    answers = answer_in(NEW_PIDS, replace(questions, names=other), destination_store)
    assert keys(answers) == []
    assert warned(answers)[-2:] == ["user-differs", "user-missing"]
    assert "user 0 is toor here and root there" in answers.warnings[-2].what
    assert "group 4000000000, here team, does not exist there" in answers.warnings[-1].what


def test_program_does_not_get_the_rights_of_another_user(target: StatementRunner, destination_store: Path) -> None:
    """At the destination, a number may belong to another user, or to a group like docker's."""
    target.do("os.setgroups([12345]); os.setgid(65534); os.setresuid(65534, 65534, 4242)")
    questions = ask_about(target_at(target.pid, destination_store))
    rights = [(name.kind, name.number) for name in questions.names if name.gives_rights]
    assert rights == [("user", 4242), ("user", 65534), ("group", 12345), ("group", 65534)]
    other = tuple(replace(name, name="ada" if name.number == 65534 else name.name) for name in questions.names)
    answers = answer_in(NEW_PIDS, replace(questions, names=other), destination_store)
    assert warned(answers) == []
    assert keys(answers) == ["rights-of-another", "rights-of-another"]
    assert "user 65534 is ada here and nobody there" in answers.blockers[0].what
    assert "--allow-weaker" in answers.blockers[0].remedy
    allowed = answer_in(NEW_PIDS, replace(questions, names=other, allows_weaker=True), destination_store)
    assert keys(allowed) == []
    assert [key for key in warned(allowed) if key == "rights-of-another"] == ["rights-of-another"] * 2


@pytest.mark.parametrize(("ahead", "difference"), [(90.0, "90 s ahead of"), (-90.0, "90 s behind"), (1.0, "")])
def test_clock_difference_is_a_warning(
    target: StatementRunner, destination_store: Path, ahead: float, difference: str
) -> None:
    dump_target = target_at(target.pid, destination_store)
    questions = ask_about(dump_target)
    found = report(dump_target, questions, answer_here(questions, destination_store), ahead).warnings
    differs = [each.what for each in found if each.key == "clock-differs"]
    assert differs == (
        [f"{HOST}: its clock is {difference} the clock of this host: the program sees the time jump"] * bool(difference)
    )


def test_unsuitable_machine_is_a_blocker(target: StatementRunner, destination_store: Path) -> None:
    """The host is real, and the tree asks for another CPU, a newer CRIU or more memory."""
    dump_target = target_at(target.pid, destination_store)
    questions = ask_about(dump_target)
    more = replace(
        questions,
        host=replace(questions.host, cpu_features=(*questions.host.cpu_features, "3dnow"), criu_version="99.0"),
        memory=1 << 60,
    )
    answers = answer_in(NEW_PIDS, more, destination_store)
    expected = ["older-criu", "cpu", "tree-memory"]
    if "3dnow" in questions.host.cpu_features or not questions.host.cpu_features:
        expected.remove("cpu")
    assert keys(answers) == expected
    assert "move-space" in warned(answers)
    blockers = report(dump_target, more, answers).blockers
    assert blockers[0].what.startswith(f"{HOST}: CRIU ")
    assert "there is older than CRIU 99.0 here" in blockers[0].what


def test_too_small_store_is_refused(target: StatementRunner, destination_store: Path) -> None:
    """A store that is surely too small is refused; one that may be too small is a warning."""
    dump_target = target_at(target.pid, destination_store)
    memory = dump_target.observed.memory
    questions = ask_about(dump_target)
    answers = answer_in(NEW_PIDS, questions, destination_store)
    assert answers.store_free is not None
    assert answers.store == str(destination_store)

    def judge(free: int | None) -> tuple[list[str], list[str]]:
        tight = (cause("move-space").finding(needed="", free="", directory=""),)
        changed_answers = replace(answers, warnings=tight, store_free=free)
        found = judge_store_space(report(dump_target, questions, changed_answers), dump_target, changed_answers, HOST)
        return [each.key for each in found.blockers], [each.key for each in found.warnings if each.key == "move-space"]

    assert judge(4096) == (["move-full"], [])
    # The memory of Python compresses well.
    assert judge(memory - 1) == ([], [])
    assert judge(memory) == judge(None) == ([], ["move-space"])
    growth = try_growth(dump_target.observed, dump_target.job, dump_target.context, memory)
    assert growth is not None
    assert growth.least < growth.likely
    between = replace(growth, least=1000, likely=3000)
    assert judge_growth(between, 999) == "full"
    assert judge_growth(between, 2999) == "tight"
    assert judge_growth(between, 3000) == ""


def test_other_architecture_is_a_blocker(target: StatementRunner, destination_store: Path) -> None:
    questions = ask_about(target_at(target.pid, destination_store))
    strange = replace(questions, host=replace(questions.host, arch="s390"))
    assert keys(answer_in(NEW_PIDS, strange, destination_store)) == ["images-arch"]


def test_host_without_criu_is_a_blocker(target: StatementRunner, destination_store: Path) -> None:
    dump_target = target_at(target.pid, destination_store)
    questions = ask_about(dump_target)
    answers = answer_in((*NEW_PIDS, *WITHOUT_CRIU), questions, destination_store)
    assert keys(answers) == ["no-criu"]
    assert report(dump_target, questions, answers).blockers[0].what.startswith(f"{HOST}: no CRIU works there: ")


@pytest.mark.parametrize(("executable", "is_other"), [("/usr/bin/another", True), ("/usr/bin/python3", False)])
def test_job_of_another_program_is_a_blocker(
    target: StatementRunner, repository: Repository, tmp_path: Path, executable: str, *, is_other: bool
) -> None:
    script = str(PROGRAMS / "statements.py") if executable.endswith("python3") else ""
    details = {"program": {"executable": executable, "called": "x", "script": script, "unit": ""}}
    store(repository, tmp_path, of_pages(1), described(details=json.dumps(details).encode()))
    directory = Path(repository.backend.location)
    found = answer_in(NEW_PIDS, ask_about(target_at(target.pid, directory)), directory)
    assert keys(found) == ["job-there"] * is_other
    assert all("/usr/bin/another" in each.what for each in found.blockers)


def test_other_move_of_the_job_is_a_blocker(target: StatementRunner, destination_store: Path) -> None:
    dump_target = target_at(target.pid, destination_store)
    questions = ask_about(dump_target)
    answers = answer_here(questions, destination_store, ("0123456789abcdef", "PREPARED"))
    assert keys(answers)[0] == "move-in-progress"
    assert "crckpt migrate --resume 0123456789abcdef" in answers.blockers[0].remedy


def test_stopped_process_without_a_shell_is_a_blocker(target: StatementRunner, destination_store: Path) -> None:
    """After ^Z the process leads no session, and the destination's kernel would end it by SIGHUP."""
    stopped = target.do(
        "import os, signal, subprocess; p = subprocess.Popen(['sleep', 'infinity']); result = p.pid; "
        "p.send_signal(signal.SIGSTOP); os.waitid(os.P_PID, p.pid, os.WSTOPPED | os.WNOWAIT)"
    )
    dump_target = target_at(stopped, destination_store)
    questions = ask_about(dump_target)
    assert [each.state for each in questions.processes] == ["stopped"]
    answers = answer_in(NEW_PIDS, questions, destination_store)
    target.do("p.kill(); p.wait()")
    assert keys(answers) == ["stopped-job"]
    assert report(dump_target, questions, answers).blockers[0].remedy == "continue it before the move: fg"


def test_every_process_and_thread_of_a_tree_is_asked_about(target: StatementRunner, destination_store: Path) -> None:
    target.do("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()")
    child = target.do("import subprocess; p = subprocess.Popen(['sleep', 'infinity']); result = p.pid")
    questions = ask_about(target_at(target.pid, destination_store))
    root, other = questions.processes
    assert (root.pid, other.pid, other.ppid) == (target.pid, child, target.pid)
    assert len(root.threads) == 2
    found = answer_here(questions, destination_store)
    assert keys(found) == ["pid-taken", "pid-taken"]
    target.do("p.kill(); p.wait()")
