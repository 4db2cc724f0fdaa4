"""A file that was removed from a lower layer of overlayfs, as by an upgrade in a container."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import Crckpt
from stopped_trees import JOB, program
from trees import Tree, open_workdir

# More than CRIU copies of a removed file by default.
SIZE = 3 << 20


@contextmanager
def layers(place: Path) -> Iterator[None]:
    """PLACE/layers: an overlay with one file in its lower layer."""
    for name in ("lower", "upper", "work", "layers"):
        (place / name).mkdir()
    (place / "lower/file").write_bytes(os.urandom(SIZE))
    options = ",".join(f"{name}dir={place}/{name}" for name in ("lower", "upper", "work"))
    mounted = subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", str(place / "layers")], check=False)
    if mounted.returncode:
        pytest.skip("no overlay can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place / "layers")], check=True)


@pytest.mark.usefixtures("orphans_are_reaped")
def test_file_removed_from_a_lower_layer_is_restored(crckpt: Crckpt) -> None:
    """The file seems to have a link, but cannot be linked again: its content is saved."""
    with open_workdir() as place, layers(place), Tree(program("removed_layer"), place) as tree:
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        before = tree.counters()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
