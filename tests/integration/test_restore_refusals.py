"""Blockers of a restore are reported with their remedies before CRIU starts; with the remedy the restore works."""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from command import Crckpt
from stopped_trees import BY_NAME, JOB, detached_in_namespace, program, staging, stopped, taken
from trees import Tree, open_workdir, runs, started

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

FAILED = 23
REFUSED = 24


def test_restore_is_refused_while_the_pid_of_the_root_is_in_use(crckpt: Crckpt) -> None:
    """The owner is named. After it has ended, the restore works."""
    with stopped(crckpt, BY_NAME["counter"]) as tree:
        before = tree.counters()
        with taken(tree.pid, "PID"):
            assert f"PID {tree.pid} is in use by python3" in _refused(crckpt)
            forced = crckpt.run("restore", JOB, "--detach", "--no-preflight", status=FAILED)
            assert "the restore failed: " in forced.err
            assert psutil.pid_exists(tree.pid), "whoever has its PID is left alone"
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


def test_pid_in_use_as_thread_group_or_session_is_reported(crckpt: Crckpt) -> None:
    """A thread, a group or a session with the number also prevents the restore, unless the tree has its own PIDs."""
    with stopped(crckpt, BY_NAME["counter"]) as tree:
        before = tree.counters()
        for kind in ("thread", "group", "session"):
            with taken(tree.pid, kind) as holder:
                output = _refused(crckpt)
                assert f"{kind} {tree.pid} is in use by python3 (PID {holder})" in output
                assert "--new-pid-namespace" in output
        with taken(tree.pid, "session"), detached_in_namespace(crckpt):
            tree.wait_growth(before)


def test_restore_is_refused_while_the_pid_of_a_thread_or_grandchild_is_in_use(crckpt: Crckpt) -> None:
    """The PID of a thread, or of a grandchild that leads a group, counts like that of the root."""
    with started(BY_NAME["family"]) as tree:
        leader, elder = (tree.parts()[name].pid for name in ("leader", "elder"))
        thread = max(task.id for task in psutil.Process(leader).threads())
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        for number in (thread, elder):
            with taken(number, "PID"):
                assert f"PID {number} is in use by python3" in _refused(crckpt)


@dataclass(frozen=True)
class Damage:
    """A change of a file, the words of its refusal, and its repair if putting the file back is not enough."""

    name: str
    do: Callable[[Path], object]
    says: str
    remedy: str
    undo: Callable[[Path], object] | None = None


def _append(path: Path) -> None:
    with path.open("a") as file:
        file.write("more\n")


def _make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = (
    Damage("read.txt", Path.unlink, "{path} is missing (fd 3 of python3, PID {pid})", "put it back"),
    Damage("read.txt", lambda path: os.truncate(path, 7), "{path} has 7 bytes since", "put back"),
    Damage("read.txt", _append, "{path} grew from 1700 to 1705 bytes since the checkpoint, last at ", "--grown rewind"),
    Damage(
        "write.txt", _append, "{path} grew from 1800 to 1805 bytes since the checkpoint, last at ", "--grown rewind"
    ),
    Damage("mode.txt", lambda path: path.chmod(0o600), "{path} has mode 0600 since ", "chmod 0640"),
    Damage("read.txt", _make_directory, "{path} is a directory since ", "put back", Path.rmdir),
    Damage(
        "libheld.so",
        lambda path: _build(path, 43),
        "{path} is a different build than at the checkpoint, since ",
        "install",
    ),
    Damage("libheld.so", Path.unlink, "{path} is missing (mapped by python3, PID {pid})", "put it back"),
)


@pytest.fixture
def tree(crckpt: Crckpt) -> Iterator[Tree]:
    """A program that held files, checkpointed and ended."""
    with open_workdir() as place:
        library = place / "libheld.so"
        _build(library, 42)
        with stopped(crckpt, program("held_files", str(library))) as tree:
            yield tree


def test_restore_reports_a_changed_file_with_its_remedy(crckpt: Crckpt, tree: Tree) -> None:
    """The message names the file, its holder and the remedy. With all files repaired the restore works."""
    before = tree.counters()
    for damage in DAMAGES:
        path = _held(tree, damage.name)
        with _put_back(path, damage.undo):
            damage.do(path)
            output = _refused(crckpt)
            assert damage.says.format(path=path, pid=tree.pid) in output
            assert damage.remedy in output
    crckpt.run("restore", JOB, "--detach")
    tree.wait_growth(before)
    assert tree.facts()[""]["answer"] == 42


def test_dry_run_of_a_restore_reports_the_same_refusal_and_changes_nothing(crckpt: Crckpt, tree: Tree) -> None:
    """Neither the file to cut back nor the store changes."""
    path = _held(tree, "write.txt")
    with _put_back(path):
        _append(path)
        changed = _state(path)
        assert _refused(crckpt, "--dry-run") == _refused(crckpt)
        output = crckpt.run("restore", JOB, "--dry-run", "--grown", "rewind").out
        assert " can be restored\nits data was not read; to check it: crckpt verify " in output
        assert f"{path} grew from 1800 to 1805 bytes" in output
        assert _state(path) == changed
        assert not runs(tree.pid)


def test_restore_reports_all_changed_files_at_once(crckpt: Crckpt, tree: Tree) -> None:
    """One attempt reports all changed files."""
    paths = [_held(tree, name) for name in ("read.txt", "write.txt", "mode.txt")]
    with _put_back(paths[0]), _put_back(paths[1]), _put_back(paths[2]), taken(tree.pid, "PID"):
        paths[0].unlink()
        _append(paths[1])
        paths[2].chmod(0o600)
        output = _refused(crckpt)
    assert "refused for 4 reasons:" in output
    for words in (f"PID {tree.pid} is in use", *(f"  - {path} " for path in paths)):
        assert words in output


def test_restore_reports_a_file_that_was_rewritten_in_place(crckpt: Crckpt, tree: Tree) -> None:
    """CRIU does not compare contents. The program would overwrite the new content in place."""
    before = tree.counters()
    written, read = _held(tree, "write.txt"), _held(tree, "read.txt")
    for path in (written, read):
        path.write_bytes(path.read_bytes().upper())
    for words in ((), ("--dry-run",)):
        output = _refused(crckpt, *words)
        assert f"{written} was written after the checkpoint" in output
        assert "--written keep" in output
        assert str(read) not in output
    result = crckpt.run("restore", JOB, "--detach", "--written", "keep", "--json")
    for path in (written, read):
        assert any(f"{path} was written after the checkpoint" in note for note in result.document["result"]["warnings"])
    tree.wait_growth(before)


def test_library_that_became_longer_by_an_upgrade_is_not_cut_back(crckpt: Crckpt, tree: Tree) -> None:
    """The library is reported as another build, not as a file that grew."""
    path = _held(tree, "libheld.so")
    with _put_back(path):
        _build(path, 43, more="int more[] = {" + "1," * 5000 + "};\n")
        content = path.read_bytes()
        assert f"{path} is a different build" in _refused(crckpt, "--grown", "rewind")
        assert path.read_bytes() == content
    crckpt.run("restore", JOB, "--detach")


def test_symbolic_link_that_is_itself_open_may_dangle_but_not_be_missing(crckpt: Crckpt, tree: Tree) -> None:
    """A dangling link is accepted; a missing link is not."""
    before = tree.counters()
    link = tree.workdir / "link"
    link.rename(link.with_name("aside"))
    assert f"{link} is missing (fd " in _refused(crckpt)
    link.with_name("aside").rename(link)
    crckpt.run("restore", JOB, "--detach")
    tree.wait_growth(before)


def test_restore_is_refused_while_a_port_of_the_tree_is_in_use(crckpt: Crckpt) -> None:
    """The listening program must end first."""
    with stopped(crckpt, BY_NAME["tcp-listen"]) as tree:
        before = tree.counters()
        port = int((tree.workdir / "ports").read_text().split()[0])
        with socket.create_server(("127.0.0.1", port)):
            output = _refused(crckpt)
        assert f"TCP port 127.0.0.1:{port} is taken" in output
        assert f"find it: ss -ltnp 'sport = :{port}' (package iproute2); then end it" in output
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


@pytest.mark.parametrize("other", ["flock", "POSIX", "OFD"])
def test_file_lock_held_by_another_program_is_reported(crckpt: Crckpt, other: str) -> None:
    """CRIU would wait for the lock forever. POSIX and OFD locks conflict where their bytes overlap."""
    with stopped(crckpt, BY_NAME["locks"]) as tree:
        before = tree.counters()
        wanted = {"flock": ("flock",), "POSIX": ("posix", "ofd"), "OFD": ("posix", "ofd", "child")}[other]
        paths = [tree.workdir / f"{name}.lock" for name in wanted]
        with ExitStack() as held:
            for path in paths:
                _lock(held, path, other)
            output = _refused(crckpt)
            for path, name in zip(paths, wanted, strict=True):
                kind = {"flock": "flock ", "ofd": "OFD lock "}.get(name, "POSIX lock ")
                assert f"the {kind}on {path} (fd " in output
            assert f" is held by {psutil.Process().name()} (PID {os.getpid()}) now" in output
            assert "lslocks" in output
        with ExitStack() as harmless:
            _lock(harmless, tree.workdir / "child.lock", "POSIX", fcntl.F_RDLCK)
            _lock(harmless, tree.workdir / "posix.lock", "OFD", start=150)
            _lock(harmless, tree.workdir / "posix.lock", "flock")
            crckpt.run("restore", JOB, "--detach")
            tree.wait_growth(before)


def test_lock_left_by_an_ended_process_names_its_present_holder(crckpt: Crckpt) -> None:
    """flock(1) takes a lock in a program that ends: the kernel still reports the PID of the process that took it."""
    with stopped(crckpt, BY_NAME["locks"]) as tree, (tree.workdir / "flock.lock").open() as file:
        taker = os.fork()
        if not taker:
            fcntl.flock(file, fcntl.LOCK_SH)
            os._exit(0)
        os.waitpid(taker, 0)
        assert f"(PID {os.getpid()}) now" in _refused(crckpt)


def _lock(held: ExitStack, path: Path, kind: str, how: int = fcntl.F_WRLCK, start: int = 0) -> None:
    file = held.enter_context(path.open("r+"))
    if kind == "flock":
        fcntl.flock(file, fcntl.LOCK_EX)
    else:
        wanted = struct.pack("hhqqi4x", how, os.SEEK_SET, start, 0, 0)
        fcntl.fcntl(file, fcntl.F_SETLK if kind == "POSIX" else fcntl.F_OFD_SETLK, wanted)


def _refused(crckpt: Crckpt, *words: str) -> str:
    result = crckpt.run("restore", JOB, "--detach", *words, status=REFUSED)
    assert result.out == ""
    assert not staging(crckpt)
    assert not _working_in(crckpt.store), "the CRIU that waited for its images has ended"
    return result.err


def _working_in(store: Path) -> list[str]:
    """The running programs that have a path in the store as an argument."""
    lines = (" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
    return [line for line in lines if str(store) in line]


def _held(tree: Tree, name: str) -> Path:
    return Path(tree.case.argv[-1]) if name.endswith(".so") else tree.workdir / name


def _state(path: Path) -> tuple[int, int, int] | None:
    found = path.lstat() if path.exists() else None
    return found and (found.st_size, found.st_mode, found.st_mtime_ns)


@contextmanager
def _put_back(path: Path, undo: Callable[[Path], object] | None = None) -> Iterator[None]:
    """Restore the file after the block, which repairs every damage."""
    aside, copy = path.with_name(f"{path.name}.aside"), path.with_name(f"{path.name}.copy")
    shutil.copy2(path, copy)
    # The same file, even if it was removed.
    aside.hardlink_to(path)
    try:
        yield
    finally:
        if undo is not None:
            undo(path)
        shutil.copyfile(copy, aside)
        shutil.copystat(copy, aside)
        copy.unlink()
        path.unlink(missing_ok=True)
        aside.rename(path)


def _build(library: Path, answer: int, more: str = "") -> None:
    source = library.with_suffix(".c")
    source.write_text(f"int answer(void) {{ return {answer}; }}\n{more}")
    built = library.with_suffix(".new")
    argv = ["gcc", "-shared", "-fPIC", "-Wl,--build-id", "-o", str(built), str(source)]
    subprocess.run(argv, check=True)
    built.rename(library)
