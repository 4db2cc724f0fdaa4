"""A dump knows before the freeze what will not fit, of the images and of what the store takes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import pytest
from command import Crckpt
from small_disk import store_on_disk
from trees import PYTHON, wait_for

STORE_UNUSABLE: Final = 10
REFUSED: Final = 24
FILLED_WITHIN_S: Final = 60

# The sample and the rest of the program vary.
ABOUT_50: Final = "(?:4[789]|5[0123]) MiB"

RANDOM_BYTES: Final = "os.urandom(48 << 20)"
COMPRESSIBLE_BYTES: Final = "bytes(range(256)) * (48 << 12)"
REPEATED_BYTES: Final = "os.urandom(16 << 20) * 3"


@contextmanager
def holding(memory: str, work: Path) -> Iterator[str]:
    """The PID of a program with this memory, which keeps running until the end of the block."""
    ready = work / "ready"
    words = (PYTHON, "-c", f"import os, time; memory = {memory}; open({str(ready)!r}, 'w'); time.sleep(1000)")
    null = subprocess.DEVNULL
    with subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True) as program:
        try:
            wait_for(ready.exists, FILLED_WITHIN_S, "its memory")
            yield str(program.pid)
            assert psutil.Process(program.pid).status() == psutil.STATUS_SLEEPING
        finally:
            program.kill()


@pytest.fixture
def staging_directory(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere"
    path.mkdir()
    return path


def is_empty(crckpt: Crckpt, elsewhere: Path | None = None) -> bool:
    """Return whether the dump has left nothing."""
    left = [*crckpt.store.glob("tmp/*"), *crckpt.store.glob("packs/*/*"), *crckpt.store.glob("crckpt-*")]
    return not left and not (elsewhere and list(elsewhere.iterdir()))


def test_images_and_growth_must_fit_together_on_one_disk(tmp_path: Path) -> None:
    with store_on_disk(tmp_path / "store", "80m") as crckpt, holding(RANDOM_BYTES, tmp_path) as pid:
        output = crckpt.run("doctor", pid, status=REFUSED).out
        assert output.startswith(f"PID {pid} cannot be checkpointed: 1 blocker\n")
        for words in (("--dry-run",), ()):
            error = crckpt.run("dump", pid, "--json", *words, status=REFUSED).document["error"]
            needs = rf"{ABOUT_50} of images until the checkpoint is stored, and {ABOUT_50} that it adds to the store"
            assert re.search(rf"\({needs}\), but {crckpt.store} has only 80 MiB free$", error["message"])
            assert error["hint"].endswith("or put the images on another disk: --staging DIR")
            assert is_empty(crckpt)


@pytest.mark.parametrize("memory", [COMPRESSIBLE_BYTES, REPEATED_BYTES], ids=["compressible", "repeated"])
def test_dump_with_sufficient_space_is_not_refused(tmp_path: Path, memory: str) -> None:
    """The store needs much less space than the images."""
    with store_on_disk(tmp_path / "store", "80m") as crckpt, holding(memory, tmp_path) as pid:
        assert crckpt.run("doctor", pid).out.startswith(f"PID {pid} can be checkpointed\n")
        crckpt.run("dump", pid, "job")
        crckpt.run("verify", "--all")


def test_store_too_small_for_the_packs_is_refused_with_staging_elsewhere(
    tmp_path: Path, staging_directory: Path
) -> None:
    with store_on_disk(tmp_path / "store", "20m") as crckpt, holding(RANDOM_BYTES, tmp_path) as pid:
        words = ("dump", pid, "--staging", str(staging_directory), "--json")
        for more in ((), ("--dry-run",), ("--stop",)):
            error = crckpt.run(*words, *more, status=REFUSED).document["error"]
            fact = rf"the checkpoint adds about {ABOUT_50} to the store, but {crckpt.store} has only 20 MiB free"
            assert re.fullmatch(fact, error["message"])
            assert error["hint"].endswith("use a store on a larger disk: --store DIR")
            assert is_empty(crckpt, staging_directory)
        error = crckpt.run(*words, "--no-preflight", status=STORE_UNUSABLE).document["error"]
        fact = f"the dump failed: no space is left in {crckpt.store}, the store"
        assert error["message"] == f"{fact}; no checkpoint was made; the tree keeps running"
        assert is_empty(crckpt, staging_directory)
        assert crckpt.run("list", "--json").document["result"]["checkpoints"] == []


def test_dump_is_tried_if_the_store_will_only_probably_be_full(tmp_path: Path, staging_directory: Path) -> None:
    """A sample cannot show that the store will surely be full."""
    with store_on_disk(tmp_path / "store", "44m") as crckpt, holding(RANDOM_BYTES, tmp_path) as pid:
        words = ("dump", pid, "job", "--staging", str(staging_directory))
        output = crckpt.run(*words, "--dry-run").out
        risk = f"the store will probably be full during the dump: the checkpoint adds about {ABOUT_50}, but "
        assert re.search(f"^note: {risk}", output, re.MULTILINE)
        assert output.endswith(f"PID {pid} can be checkpointed as job\n")
        output = crckpt.run(*words, status=STORE_UNUSABLE).err
        assert (
            f"no space is left in {crckpt.store}, the store; no checkpoint was made; the tree keeps running\n" in output
        )
        assert is_empty(crckpt, staging_directory)


def test_second_dump_needs_space_only_for_new_pages(tmp_path: Path, staging_directory: Path) -> None:
    with store_on_disk(tmp_path / "store", "64m") as crckpt, holding(RANDOM_BYTES, tmp_path) as pid:
        words = ("dump", pid, "job", "--staging", str(staging_directory))
        crckpt.run(*words)
        crckpt.run(*words)
        crckpt.run("verify", "--all")


def test_dump_raises_the_limit_of_file_sizes_or_is_refused(tmp_path: Path) -> None:
    """The limit would kill CRIU in the freeze. crckpt raises it, or refuses without the right to do so."""
    with holding(RANDOM_BYTES, tmp_path) as pid:
        Crckpt(tmp_path / "store", ("prlimit", "--fsize=8388608:")).run("dump", pid)
        unprivileged = (
            "prlimit",
            "--fsize=8388608",
            "setpriv",
            "--bounding-set=-sys_resource",
            "--inh-caps=-sys_resource",
        )
        error = Crckpt(tmp_path / "store", unprivileged).run("dump", pid, status=REFUSED).err
        assert "crckpt may write files of 8.0 MiB at most (ulimit -f)" in error
