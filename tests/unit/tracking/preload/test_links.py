"""Files that CRIU makes by a path in directories of others (links.c, ghosts.c), for a program that makes such."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from forbidden_calls import TRIED_FUNCTION

from crckpt.tracking.preload.library import RESTORE_LIBRARY

LINKING_PROGRAM = (
    TRIED_FUNCTION
    + """
import json, os, sys
root = os.open(sys.argv[1], os.O_RDONLY)
print(json.dumps({
    f"{what} {name}": tried(
        (lambda: os.link("file", name, src_dir_fd=root, dst_dir_fd=root)) if what == "link"
        else (lambda: os.unlink(name, dir_fd=root))
    )
    for what in ("link", "unlink")
    for name in sys.argv[2:]
}))
"""
)


GHOST_PROGRAM = (
    TRIED_FUNCTION
    + """
import json, os, sys
os.chdir(sys.argv[1])
def create(name):
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
root = os.open(".", os.O_RDONLY)
own, other = "own/file.cr.1.ghost", "to-roots/file.cr.1.ghost"
results = {"create": tried(create, own), "create through link": tried(create, other)}
results["chown"] = tried(os.chown, own, 65534, 65534, dir_fd=root, follow_symlinks=False)
results["chmod"] = tried(os.chmod, own, 0o640, dir_fd=root)
results["mode"] = os.stat(own).st_mode & 0o7777
os.rename(own, "own/kept")
os.symlink("../roots/secret", own)
results["chmod of a link"] = tried(os.chmod, own, 0o4777, dir_fd=root)
os.unlink(own)
os.link("roots/secret", own)
results["chown of a hard link"] = tried(os.chown, own, 65534, 65534, dir_fd=root, follow_symlinks=False)
results["chmod of a hard link"] = tried(os.chmod, own, 0o4777, dir_fd=root)
os.unlink(own)
create(own)
os.rename(own, "own/kept")
with open("roots/exchanged", "w"):
    os.rename("roots/exchanged", own)
results["chown of a file of root's"] = tried(os.chown, own, 65534, 65534, dir_fd=root, follow_symlinks=False)
os.unlink(own)
create(own)
results["chmod of another file"] = tried(os.chmod, own, 0o4777, dir_fd=root)
results["link"] = tried(os.link, own, "own/evil", src_dir_fd=root, dst_dir_fd=root)
results["link through link"] = tried(os.link, own, "to-roots/evil", src_dir_fd=root, dst_dir_fd=root)
results["unlink through link"] = tried(os.unlink, "to-roots/secret", dir_fd=root)
results["mkdir through link"] = tried(os.mkdir, "to-roots/directory", dir_fd=root)
results["unlink"] = tried(os.unlink, "own/evil", dir_fd=root)
removed, full = "own/removed.cr.1.ghost", "own/full.cr.1.ghost"
os.mkdir(removed)
results["chown of a directory"] = tried(os.chown, removed, 65534, 65534, dir_fd=root, follow_symlinks=False)
os.rename("own/full", full)
results["chown of another directory"] = tried(os.chown, full, 65534, 65534, dir_fd=root, follow_symlinks=False)
print(json.dumps(results))
"""
)


def test_symlink_does_not_redirect_a_link_of_criu(library: Path, tmp_path: Path) -> None:
    """The user of a directory may exchange it for a symlink at any moment."""
    (tmp_path / "own/inner").mkdir(parents=True)
    (tmp_path / "roots/inner").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "to-roots").symlink_to("roots")
    (tmp_path / "absolute").symlink_to(tmp_path / "roots")
    tried = tries(
        library,
        tmp_path,
        "link_remap.1",
        "./own/link_remap.2",
        "own//inner/link_remap.3",
        str(tmp_path / "own/link_remap.4"),
        "to-roots/link_remap.5",
        "./to-roots/inner/link_remap.6",
        "absolute/link_remap.7",
        str(tmp_path / "to-roots/link_remap.8"),
        "nowhere/link_remap.9",
    )
    for number, expected in enumerate((0, 0, 0, 0, *(errno.ENOTDIR,) * 4, errno.ENOENT), start=1):
        found = {key: results for key, results in tried.items() if key.endswith(f"link_remap.{number}")}
        assert set(found.values()) == {expected}, found
    assert sorted(path.name for path in tmp_path.rglob("*remap*")) == []


def test_links_other_than_those_for_removed_names_are_created_normally(library: Path, tmp_path: Path) -> None:
    """Other links of CRIU follow the kernel's rules."""
    (tmp_path / "roots").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "to-roots").symlink_to("roots")
    results = tries(library, tmp_path, "to-roots/other", "link_remap")
    assert (results["link to-roots/other"], results["link link_remap"], results["unlink link_remap"]) == (0, 0, 0)


def test_removed_file_is_restored_only_as_itself(tmp_path: Path) -> None:
    """The owner of the directory can replace the file between two steps of a restore."""
    if not RESTORE_LIBRARY.exists():
        pytest.skip("there was no C compiler")
    (tmp_path / "own/full/inner").mkdir(parents=True)
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots/secret").touch(mode=0o600)
    (tmp_path / "to-roots").symlink_to("roots")
    environment = os.environ | {"LD_PRELOAD": str(RESTORE_LIBRARY)}
    words = [sys.executable, "-S", "-c", GHOST_PROGRAM, str(tmp_path)]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == {
        "create": 0,
        "create through link": errno.ENOTDIR,
        "chown": 0,
        "chmod": 0,
        "mode": 0o640,
        "chmod of a link": errno.EPERM,
        "chown of a hard link": errno.EPERM,
        "chmod of a hard link": errno.EPERM,
        "chown of a file of root's": errno.EPERM,
        "chmod of another file": errno.EPERM,
        "link": 0,
        "link through link": errno.ENOTDIR,
        "unlink through link": errno.ENOTDIR,
        "mkdir through link": errno.ENOTDIR,
        "unlink": 0,
        "chown of a directory": 0,
        "chown of another directory": errno.EPERM,
    }
    secret = (tmp_path / "roots/secret").stat()
    assert (secret.st_mode & 0o7777, secret.st_uid) == (0o600, os.geteuid())
    assert [path.name for path in (tmp_path / "roots").iterdir()] == ["secret"]


FORMATTING_PROGRAM = """
import ctypes, json, sys
libc, text = ctypes.CDLL(None), ctypes.create_string_buffer(4096)
def format(with_, *values):
    assert libc.snprintf(text, len(text), with_, *values) == len(text.value)
    return text.value.decode()
print(json.dumps([
    format(b"link_remap.%d", 7), format(b"%s.cr.%x.ghost", b"/x/file", 7),
    format(b"%s.cr.%x.ghost", b"/x/" + b"n" * 240, 7), format(b"%s.%d", b"link_remap", 7),
]))
"""


def test_two_runs_of_criu_use_different_names_for_removed_files(library: Path) -> None:
    """No name exceeds the limit."""
    for preloaded in (library, RESTORE_LIBRARY):
        words = [sys.executable, "-S", "-c", FORMATTING_PROGRAM]
        environment = os.environ | {"LD_PRELOAD": str(preloaded)}
        runs = [
            json.loads(subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout)
            for _ in range(2)
        ]
        for link, ghost, long, other in runs:
            assert re.fullmatch(r"link_remap\.7\.[0-9a-f]{16}", link)
            assert re.fullmatch(r"/x/file\.cr\.7\.[0-9a-f]{16}\.ghost", ghost)
            assert (long, other) == (f"/x/{'n' * 240}.cr.7.ghost", "link_remap.7")
        assert runs[0][:2] != runs[1][:2]


def tries(library: Path, root: Path, *names: str) -> dict[str, int]:
    """Link to `file` by each name, then unlink each: the errors, or 0."""
    result = subprocess.run(
        [sys.executable, "-S", "-c", LINKING_PROGRAM, str(root), *names],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, int] = json.loads(result.stdout)
    return found
