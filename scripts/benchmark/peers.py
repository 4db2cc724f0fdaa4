"""Run the peers: bare CRIU, and backups of its image directories."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmark.commands import run
from benchmark.setting import Setting


def bare_dump(setting: Setting, pid: int, images: Path) -> None:
    """Run `criu dump` into a new directory; the process keeps running."""
    images.mkdir()
    run([setting.criu, "dump", "--tree", str(pid), "--leave-running", *_common(images)])


def bare_restore(setting: Setting, images: Path) -> None:
    """Run `criu restore`; return when the process runs."""
    run([setting.criu, "restore", "--restore-detached", *_common(images)])


@dataclass(frozen=True)
class Peer:
    """A tool that saves directories. `prepare` fills the directory of a new repository.

    `save` gets repository, directory and the number of the backup. When it returns, the backup is durable.
    """

    name: str
    prepare: Callable[[Path], None]
    save: Callable[[Path, Path, int], None]


def _common(images: Path) -> list[str]:
    return ["--images-dir", str(images), "--work-dir", str(images), "--log-file", "criu.log", "--manage-cgroups=ignore"]


def _nothing(repository: Path) -> None:
    repository.mkdir()


def _tar(repository: Path, images: Path, number: int) -> None:
    archive = repository / f"{number}.tar.zst"
    run(["tar", "-C", images, "--use-compress-program", "zstd -T2 -1", "-cf", archive, "."])
    # The other tools sync what they write.
    for path in (archive, repository):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _restic(repository: Path, *words: str | Path) -> None:
    environment = {"RESTIC_PASSWORD": "-", "RESTIC_CACHE_DIR": str(repository.with_name("restic-cache"))}
    run(["restic", "--quiet", "--repo", repository, *words], environment)


def _borg(repository: Path, *words: str | Path) -> None:
    environment = {
        "BORG_BASE_DIR": str(repository.with_name("borg-base")),
        "BORG_REPO": str(repository),
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    }
    run(["borg", *words], environment)


PEERS = (
    Peer("tar|zstd", _nothing, _tar),
    Peer("restic", lambda repository: _restic(repository, "init"), lambda r, images, _: _restic(r, "backup", images)),
    Peer(
        "borg",
        lambda repository: _borg(repository, "init", "--encryption", "none"),
        lambda r, images, number: _borg(r, "create", "--compression", "zstd,1", f"::{number}", images),
    ),
)
CHUNKING = PEERS[1:]
"""The peers with deduplication."""
