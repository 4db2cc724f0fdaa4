"""Links that CRIU makes by a path in directories of others (links.c), as seen by a program that makes such."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from entering import preload_library

TRIES = """
import json, os, sys
root = os.open(sys.argv[1], os.O_RDONLY)
def tried(action):
    try:
        action()
    except OSError as error:
        return error.errno
    return 0
print(json.dumps({
    f"{what} {name}": tried(
        (lambda: os.link("file", name, src_dir_fd=root, dst_dir_fd=root)) if what == "link"
        else (lambda: os.unlink(name, dir_fd=root))
    )
    for what in ("link", "unlink")
    for name in sys.argv[2:]
}))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """crckpt's preload library."""
    return preload_library(tmp_path_factory.mktemp("library"))


def test_no_symlink_leads_to_a_link_of_criu(library: Path, tmp_path: Path) -> None:
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
        found = {key: said for key, said in tried.items() if key.endswith(f"link_remap.{number}")}
        assert set(found.values()) == {expected}, found
    assert sorted(path.name for path in tmp_path.rglob("*remap*")) == []


def test_other_links_are_made_as_they_were(library: Path, tmp_path: Path) -> None:
    """What else CRIU links, or removes, goes by the kernel's rules."""
    (tmp_path / "roots").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "to-roots").symlink_to("roots")
    assert set(tries(library, tmp_path, "to-roots/other", "link_remap").values()) == {0}


def tries(library: Path, root: Path, *names: str) -> dict[str, int]:
    """Link to `file` by each name, then unlink each: the errors, or 0."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", TRIES, str(root), *names],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found
