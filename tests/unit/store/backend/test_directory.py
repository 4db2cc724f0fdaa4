"""Directories that are stores, their users, and their creation."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_sets import ImageSet, area, open_store, store

from crckpt.errors import StoreUnusable
from crckpt.store import Repository, collect_garbage, verify


@pytest.fixture(params=[0o000, 0o077, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Each of some umasks, while the test runs."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_files_of_the_store_are_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    repository = Repository.open(tmp_path / "a" / "store", create=True)
    os.umask(0o022)
    (tmp_path / "b").mkdir()
    os.umask(umask)
    checkpoint = store(repository, tmp_path / "b", ImageSet({"pagemap-1.img": [area(1, 1)]}))
    repository.tag(checkpoint.id, "good")
    for path in (repository.root, *repository.root.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path} has mode {mode:o}"


def test_missing_and_empty_directories_become_stores_only_on_request(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="there is no store"):
        Repository.open(tmp_path / "new")
    (tmp_path / "empty").mkdir(mode=0o755)
    with pytest.raises(StoreUnusable, match=r"there is no store at .+: the directory is empty"):
        Repository.open(tmp_path / "empty")
    for name in ("new", "empty"):
        first = Repository.open(tmp_path / name, create=True)
        assert Repository.open(tmp_path / name).id == first.id
        assert Repository.open(tmp_path / name, create=True).id == first.id


def test_empty_mounted_file_system_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "store" / "lost+found").mkdir(parents=True)
    assert open_store(tmp_path).checkpoints() == ()


def test_directory_with_other_files_does_not_become_a_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o755)
    (tmp_path / "store" / "letter.txt").write_text("dear")
    with pytest.raises(StoreUnusable, match="is not a store"):
        open_store(tmp_path)
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["letter.txt"]
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o755


def test_directory_writable_by_others_does_not_become_a_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o1777)
    with pytest.raises(StoreUnusable, match="mode 777"):
        open_store(tmp_path)
    assert list((tmp_path / "store").iterdir()) == []


def test_path_of_a_file_is_refused_as_a_store(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(StoreUnusable, match="is not a store"):
        open_store(tmp_path)
    with pytest.raises(StoreUnusable, match="cannot be used"):
        Repository.open(tmp_path / "store" / "below", create=True)


def test_interrupted_creation_of_a_store_is_completed(tmp_path: Path) -> None:
    root = open_store(tmp_path).root
    (root / "store.json").rename(root / ".store.json.123-abc")
    (root / "cache/fingerprints").rmdir()
    with pytest.raises(StoreUnusable, match="is not a store"):
        Repository.open(root)
    assert open_store(tmp_path).checkpoints() == ()


def test_directories_of_a_store_missing_from_a_backup_are_recreated(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    checkpoint = store(repository, tmp_path, ImageSet(files={"core-1.img": b"x"}))
    for name in ("cache", "tmp", "locks", "refs"):
        shutil.rmtree(repository.root / name)
    again = Repository.open(repository.root)
    collect_garbage(again)
    again.tag(checkpoint.id, "good")
    store(again, tmp_path, ImageSet(files={"core-1.img": b"y"}))
    assert len(list((repository.root / "cache/fingerprints").iterdir())) == 2
    assert verify(again).damages == ()


def test_store_without_store_json_is_not_recreated(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    store(repository, tmp_path, ImageSet(files={"core-1.img": b"x"}))
    (repository.root / "store.json").unlink()
    with pytest.raises(StoreUnusable, match="is not a store"):
        open_store(tmp_path)


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o701])
def test_store_that_others_can_enter_is_refused_with_the_remedy(mode: int, tmp_path: Path) -> None:
    root = open_store(tmp_path).root
    root.chmod(mode)
    with pytest.raises(StoreUnusable, match="open to other users") as refusal:
        Repository.open(root)
    subprocess.run(refusal.value.hint.split(), check=True)
    assert Repository.open(root).checkpoints() == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_store_of_another_owner_is_refused_with_the_remedy(tmp_path: Path) -> None:
    root = open_store(tmp_path).root
    os.chown(root, 65534, 65534)
    with pytest.raises(StoreUnusable, match=r"belongs to uid 65534.* a restore would run what .* as root") as refusal:
        Repository.open(root)
    subprocess.run(refusal.value.hint.split(), check=True)
    assert Repository.open(root).checkpoints() == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("attack", ["theirs", "theirs further up", "open to all", "link of theirs"])
def test_replaceable_store_directory_is_refused(attack: str, tmp_path: Path) -> None:
    place = tmp_path / "a/b"
    place.mkdir(parents=True)
    root = open_store(place).root
    named = root
    if attack == "theirs":
        os.chown(place, 65534, 65534)
    elif attack == "theirs further up":
        os.chown(place.parent, 65534, 65534)
    elif attack == "open to all":
        place.chmod(0o777)
    else:
        named = tmp_path / "link"
        named.symlink_to(root)
        os.lchown(named, 65534, 65534)
    before = sorted(root.rglob("*"))
    for create in (False, True):
        with pytest.raises(StoreUnusable, match="another user can replace the store") as refused:
            Repository.open(named, create=create)
        assert refused.value.hint.endswith(": --store /var/lib/crckpt")
        if attack != "link of theirs":
            with pytest.raises(StoreUnusable, match="another user can replace the store"):
                Repository.open(place / "more/new", create=create)
    assert sorted(root.rglob("*")) == before
    assert list(place.iterdir()) == [root]


def test_store_may_be_in_tmp_and_behind_our_own_link(tmp_path: Path) -> None:
    place = tmp_path / "like-tmp"
    place.mkdir()
    place.chmod(0o1777)
    root = open_store(place).root
    (tmp_path / "link").symlink_to(root)
    assert Repository.open(tmp_path / "link").checkpoints() == ()


def test_processes_that_create_a_store_at_the_same_time_create_only_one(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from crckpt.store import Repository; sys.stdin.read(1);"
        "print(Repository.open(Path(sys.argv[1]), create=True).id)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "store")]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        assert process.stdin
        process.stdin.write("x")
        process.stdin.flush()
    assert len({process.communicate()[0] for process in processes}) == 1
    assert [process.returncode for process in processes] == [0, 0, 0]


def test_import_of_store_loads_no_large_modules() -> None:
    program = (
        "import sys, crckpt.store; print(*{'numpy', 'zstandard', 'cryptography', '_cffi_backend'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "\n"
