"""Image directories to store, made here, and what to do with them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from crckpt.images.pagemap import IN_PARENT, PRESENT, Entry, PageMap, write_pagemap
from crckpt.model import PAGE_SIZE, CheckpointId, DumpOptions, Host, JobName, PackId, RunId, Task
from crckpt.store import (
    Checkpoint,
    NewCheckpoint,
    Repository,
    ingest,
    materialise,
)
from crckpt.store.layout import manifest_name, pack_name

HOST = Host("here", "6.18", "x86_64", PAGE_SIZE, ("avx2", "sse4_2"), "4.2.1", "0" * 64)
TREE = (Task(100, 1, "program", (100, 101)), Task(102, 100, "child", (102,)))


@dataclass(frozen=True)
class Area:
    """Pages from an address on. Without content they are in the set before."""

    address: int
    pages: tuple[bytes, ...]
    inherited: int = 0


@dataclass(frozen=True)
class ImageSet:
    """The images of a dump: page maps by their names with the areas of each, and other files."""

    maps: Mapping[str, Sequence[Area]] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


def page(number: int) -> bytes:
    """A page that differs from that of any other number; number 0 is all zeros. A third of it does not compress."""
    if number == 0:
        return bytes(PAGE_SIZE)
    return random.Random(number).randbytes(1400) + number.to_bytes(4, "big") * 674


def area(address: int, *numbers: int) -> Area:
    """An area with the pages of these numbers. `address` counts in pages."""
    return Area(address * PAGE_SIZE, tuple(page(number) for number in numbers))


def parent_area(address: int, pages: int) -> Area:
    """An area whose pages lie in the set before. `address` counts in pages."""
    return Area(address * PAGE_SIZE, (), pages)


def write_set(directory: Path, images: ImageSet, parent: str | None = None) -> Path:
    """Write a set as CRIU does; `parent` is where the symlink of that name leads."""
    directory.mkdir()
    for number, (name, areas) in enumerate(images.maps.items(), 1):
        entries = (
            Entry(part.address, part.inherited or len(part.pages), IN_PARENT if part.inherited else PRESENT)
            for part in areas
        )
        (directory / name).write_bytes(write_pagemap(PageMap.of(number, entries)))
        (directory / f"pages-{number}.img").write_bytes(b"".join(b"".join(part.pages) for part in areas))
    for name, content in images.files.items():
        (directory / name).write_bytes(content)
    if parent is not None:
        (directory / "parent").symlink_to(parent)
    return directory


def files_of(directory: Path) -> dict[str, bytes]:
    """The files of a directory by name."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if not path.is_symlink()}


def open_store(base: Path) -> Repository:
    """The store in `base`, made if it is not there."""
    return Repository.open(base / "store", create=True)


def described(job: str = "job", details: bytes = b"{}", created: datetime | None = None) -> NewCheckpoint:
    """A description of a checkpoint to be made, now if not said."""
    return NewCheckpoint(
        job=JobName(job),
        created=created or datetime.now(UTC),
        host=HOST,
        options=DumpOptions(tcp="keep", external=("pipe:[1]",)),
        tree=TREE,
        frozen_ms=1.5,
        dump_ms=2.5,
        details=details,
        note="a note",
        run_id=RunId("cafe"),
    )


def store(
    repository: Repository, base: Path, images: ImageSet, new: NewCheckpoint | None = None, *, dedup: bool = True
) -> Checkpoint:
    """Write a set below `base` and store it."""
    number = sum(1 for path in base.iterdir() if path.name.startswith("images-"))
    return ingest(repository, write_set(base / f"images-{number}", images), new or described(), dedup=dedup)


def restore_files(repository: Repository, checkpoint: Checkpoint, base: Path) -> dict[str, bytes]:
    """The files that the store gives back."""
    number = sum(1 for path in base.iterdir() if path.name.startswith("out-"))
    directory = base / f"out-{number}"
    directory.mkdir()
    materialise(repository, checkpoint, directory)
    return files_of(directory)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Turn one bit of a file around; doing it again puts it back."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)


def pack_path(repository: Repository, digest: str) -> Path:
    """The path of the pack of that digest."""
    return repository.root / pack_name(PackId(digest))


def manifest_path(repository: Repository, checkpoint_id: str) -> Path:
    """The path of the manifest of that checkpoint."""
    return repository.root / manifest_name(CheckpointId(checkpoint_id))


def packs(repository: Repository) -> list[Path]:
    """The pack files of a store."""
    return sorted((repository.root / "packs").glob("*/*.pack"))


def of_pages(*numbers: int) -> ImageSet:
    """A set of one process with these pages."""
    return ImageSet({"pagemap-1.img": [area(0, *numbers)]})


ONE_PROCESS = ImageSet({"pagemap-100.img": [area(10, *range(1, 100))]}, {"core-100.img": b"registers" * 99})
"""Pages and registers of one process."""


def seal_manifest(repository: Repository, manifest: bytes) -> CheckpointId:
    """A manifest that some other crckpt might have written, under its right id."""
    checkpoint_id = CheckpointId(hashlib.sha256(manifest).hexdigest())
    (repository.root / "checkpoints" / checkpoint_id).mkdir()
    (repository.root / "checkpoints" / checkpoint_id / "manifest.json").write_bytes(manifest)
    return checkpoint_id


def with_changed_manifest(repository: Repository, checkpoint: Checkpoint, **entries: object) -> CheckpointId:
    """A copy of the checkpoint whose manifest has these entries."""
    manifest = json.loads((repository.root / "checkpoints" / checkpoint.id / "manifest.json").read_bytes())
    return seal_manifest(repository, json.dumps({**manifest, **entries}).encode())
