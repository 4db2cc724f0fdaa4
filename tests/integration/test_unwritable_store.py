"""A store that cannot be written is read as any other: a mounted snapshot, a backup, root's store in a user's hands."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cases import CASES
from command import PROGRAM, Crckpt
from stopped_trees import JOB, stopped
from trees import Tree, runs

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

STORE, LOCKED = 10, 11
COUNTER = next(case for case in CASES if case.name == "counter")
NOBODY = 65534
IN_PRIVATE_MOUNTS = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
_BIND = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
_LOCK_HOLDER = """
import sys
from pathlib import Path
from crckpt.store import Repository
with Repository.open(Path(sys.argv[1])).shared():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="crckpt-test-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def user(place: Path) -> tuple[str, ...]:
    """Words before a command that is to run as another user than root, with a home of its own."""
    words = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", f"HOME={place}/home")
    if subprocess.run([*words, "test", "-x", str(PROGRAM)], check=False).returncode:
        pytest.skip(f"other users cannot run {PROGRAM}: the checkout lies in a private directory")
    (place / "home").mkdir()
    os.chown(place / "home", NOBODY, NOBODY)
    return words


@pytest.fixture
def tree(place: Path) -> Iterator[Tree]:
    """A program that was checkpointed twice in the store below `place`, and ended."""
    crckpt = Crckpt(place / "store")
    with stopped(crckpt, COUNTER) as tree:
        crckpt.run("restore", JOB, "--detach")
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        yield tree


def read_only(place: Path) -> Crckpt:
    """The command, for which the store is on a read-only mount."""
    store = place / "store"
    return Crckpt(store, (*IN_PRIVATE_MOUNTS, _BIND, str(store)))


def files(store: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in (store, *store.rglob("*"))}


def readable(store: Path) -> None:
    for path in (store, *store.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def test_store_on_a_read_only_mount_is_readable(place: Path, tree: Tree) -> None:
    """Commands that add and remove nothing work, including `restore` and `rehearse`, and leave nothing behind."""
    crckpt, before = read_only(place), files(place / "store")
    assert len(crckpt.run("list", "--json").document["result"]["checkpoints"]) == 2
    crckpt.run("show", JOB)
    crckpt.run("diff", f"{JOB}~1", JOB)
    crckpt.run("verify")
    crckpt.run("export", JOB, str(place / "exported"))
    crckpt.run("core", JOB, "--output", str(place / "core"))
    assert "can be restored" in crckpt.run("rehearse", JOB, "--seconds", "0").out
    crckpt.run("restore", JOB, "--dry-run")
    crckpt.run("restore", JOB, "--detach")
    assert runs(tree.pid)
    left = [path for name in ("restoring", "restores") for path in Path("/run/crckpt", name).glob(f"*{JOB}*")]
    assert left == []
    assert files(place / "store") == before


@pytest.mark.parametrize("command", ["restore", "rehearse"])
def test_restore_can_stage_in_another_directory(place: Path, tree: Tree, command: str) -> None:
    crckpt, staging = read_only(place), place / "staging"
    assert "--staging" in crckpt.run(command, JOB, "--staging", str(staging), status=2).err
    staging.mkdir(mode=0o700)
    words = ("--detach", "--verbose") if command == "restore" else ("--seconds", "0")
    result = crckpt.run(command, JOB, "--staging", str(staging), *words)
    if command == "restore":
        assert str(staging) in result.out
        assert runs(tree.pid)
    assert list(staging.iterdir()) == []


def test_commands_that_write_report_that_the_store_is_not_writable(place: Path, tree: Tree) -> None:
    """The commands exit with the code of an unusable store before they start."""
    Crckpt(place / "store").run("export", JOB, str(place / "exported"))
    crckpt, pid = read_only(place), str(os.getppid())
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        pid = str(process.pid)
        for words in (
            ("dump", pid, JOB),
            ("dump", pid, JOB, "--dry-run"),
            ("dump", pid, JOB, "--stop"),
            ("pre-dump", pid, JOB),
            ("import", str(place / "exported"), "imported"),
            ("tag", JOB, "good"),
            ("rm", JOB),
            ("gc",),
            ("verify", "--repair"),
        ):
            error = crckpt.run(*words, "--json", status=STORE).document["error"]
            assert error["message"] == f"the store {place}/store cannot be written: it is on a read-only mount", words
            assert "--store DIR" in error["hint"]
        process.kill()


def test_new_store_on_a_read_only_mount_is_refused(place: Path) -> None:
    """The store cannot be created."""
    (place / "store").mkdir(mode=0o700)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        words = ("dump", str(process.pid), JOB, "--json")
        error = read_only(place).run(*words, status=STORE).document["error"]
        process.kill()
    assert f"the store {place}/store cannot be made: {place}/store is on a read-only mount" in error["message"]


def test_backup_of_a_store_without_its_empty_directories_is_readable(place: Path, tree: Tree) -> None:
    """The lock file is missing, too. The backup belongs to the reader, is readable for all, and stays so."""
    store = place / "store"
    for name in ("cache", "tmp", "locks", "refs", "pending"):
        shutil.rmtree(store / name, ignore_errors=True)
    (store / "lock").unlink()
    readable(store)
    crckpt = read_only(place)
    crckpt.run("list")
    crckpt.run("verify")
    crckpt.run("restore", JOB, "--detach")
    assert runs(tree.pid)
    for path in store.iterdir():
        path.chmod(0o777)
    store.chmod(0o777)
    assert "open to other users" in crckpt.run("list", status=STORE).err


def test_user_can_read_a_store_of_another_user_that_is_readable(place: Path, tree: Tree, user: tuple[str, ...]) -> None:
    store, exported = place / "store", str(place / "home/exported")
    readable(store)
    reader = replace(Crckpt(store), before=user)
    before = files(store)
    reader.run("list")
    reader.run("show", JOB)
    reader.run("verify")
    reader.run("diff", f"{JOB}~1", JOB)
    reader.run("export", JOB, exported)
    for words in (("tag", JOB, "good"), ("rm", JOB), ("gc",), ("import", exported, "imported")):
        error = reader.run(*words, "--json", status=STORE).document["error"]
        message, hint = error["message"], error["hint"]
        again = shlex.join((f"CRCKPT_STORE={store}", "crckpt", *words, "--json"))
        assert hint == f"sudo {again}; or name another store: --store DIR"
        assert f"the store {store} cannot be written: user nobody has no permission to write to {store}" in message
    assert files(store) == before


def test_reader_without_write_permission_keeps_other_commands_from_changing_the_store(
    place: Path, tree: Tree, user: tuple[str, ...]
) -> None:
    """The reader locks the store although it cannot write a lock file, so that its owner waits."""
    store = place / "store"
    readable(store)
    words = (*user, sys.executable, "-c", _LOCK_HOLDER, str(store))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        store.chmod(0o700)
        owner = Crckpt(store)
        owner.run("list")
        assert f"the store {store} is locked" in owner.run("gc", status=LOCKED, CRCKPT_LOCK_S="0.2").err
        holder.communicate()
    owner.run("gc")


def test_store_that_only_root_can_read_suggests_sudo(place: Path, tree: Tree, user: tuple[str, ...]) -> None:
    """The hint is the command to type."""
    store = place / "store"
    reader = replace(Crckpt(store), before=user)
    for command in ("list", "show job", "verify", "diff job~1 job", "gc", "rm job", "tag job x", "core job"):
        error = reader.run(*command.split(), "--json", status=STORE).document["error"]
        assert error["message"] == f"the store {store} can be read by root only"
        assert error["hint"] == f"sudo CRCKPT_STORE={store} crckpt {shlex.join(command.split())} --json"
    reader = replace(reader, before=(*user, "env", "-u", "CRCKPT_STORE"))
    assert f"  hint: sudo crckpt list --store {store}\n" in reader.run("list", "--store", str(store), status=STORE).err


def test_user_without_a_store_is_pointed_to_that_of_root(user: tuple[str, ...], place: Path) -> None:
    reader = replace(Crckpt(place / "none"), before=(*user, "env", "-u", "CRCKPT_STORE"))
    error = reader.run("list", status=STORE).err
    assert f"there is no store at {place}/home/.local/share/crckpt" in error
    assert "for root's store: sudo crckpt list; or name another: --store DIR" in error
