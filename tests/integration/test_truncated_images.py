"""Images from elsewhere of which one is cut short: the import refuses them, or the restore ends, and leaves nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest
from command import CommandResult, Crckpt, network_locks
from effort import some
from oracle import find_criu
from stopped_trees import BY_NAME, staging
from trees import Tree, started

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

ACCEPTED, REFUSALS = 0, (2, 13, 20, 23, 24)
HARMLESS_IMAGES = frozenset({"stats-dump", "seccomp.img", "timens-0.img"})
"""What no restore needs: statistics, and what says only that there is nothing."""


def test_restore_of_truncated_images_fails_cleanly(
    crckpt: Crckpt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRCKPT_QUIET_S", "3")
    intact = tmp_path / "whole"
    intact.mkdir()
    with started(BY_NAME["threads"]) as tree:
        words = ("dump", "-t", str(tree.pid), "-D", str(intact))
        subprocess.run([find_criu(), *words], check=True, stdin=subprocess.DEVNULL)
        tree.wait_gone()
        before = tree.counters()
        sizes = {path.name: path.stat().st_size for path in sorted(intact.glob("*.img"))}
        cases = [(name, length) for name, size in sizes.items() if size for length in (0, size // 2)]
        accepted = {case for case in some(cases) if restored(crckpt, tree, intact, *case)}
        assert {name for name, _ in accepted} <= HARMLESS_IMAGES, accepted
        crckpt.run("import", str(intact), "whole")
        crckpt.run("restore", "whole", "--detach")
        tree.wait_growth(before)


def restored(crckpt: Crckpt, tree: Tree, whole: Path, name: str, length: int) -> bool:
    """Return whether the tree was restored from a copy in which that image has this length. If not, nothing is left."""
    job = f"{name}-{length}"
    images = whole.parent / job
    shutil.copytree(whole, images)
    os.truncate(images / name, length)
    result = ended(crckpt, "import", str(images), job)
    if result.status == ACCEPTED:
        result = ended(crckpt, "restore", job, "--detach")
    shutil.rmtree(images)
    if result.status == ACCEPTED:
        tree.end()
    else:
        assert result.status in REFUSALS, (job, result)
        assert result.err.startswith("crckpt: "), (job, result)
        assert "Traceback" not in result.err
    tree.wait_gone()
    assert not (crckpt.store / "tmp").exists() or staging(crckpt) == ()
    assert not network_locks()
    left = [process.info for process in psutil.process_iter(["pid", "cmdline"]) if _is_of(process, whole.parent)]
    assert not left, (job, left)
    return result.status == ACCEPTED


def _is_of(process: psutil.Process, directory: Path) -> bool:
    return any(word.startswith(str(directory)) for word in process.info["cmdline"] or ())


def ended(crckpt: Crckpt, *words: str) -> CommandResult:
    """The exit status and output of a command."""
    done = crckpt.start(*words)
    out, err = done.communicate(timeout=60)
    return CommandResult(done.returncode, out, err)
