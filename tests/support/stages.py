"""A store to do things to, the things that are done, and what the store is like before and after."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from image_sets import ImageSet, area, described, flip, manifest_path, open_store, pack_path, store, write_set

from crckpt.store import Checkpoint, Repository, collect_garbage, verify
from crckpt.store.layout import FINGERPRINT_KEY, KNOWN_DAMAGE, job_details_name, job_label, move_name, restored_name

ONE = ImageSet({"pagemap-100.img": [area(10, *range(1, 100))]}, {"core-100.img": b"registers" * 99})
TWO = ImageSet({"pagemap-100.img": [area(10, *range(1, 90), *range(200, 210))]}, {"core-100.img": b"changed" * 99})
NEXT = ImageSet({"pagemap-100.img": [area(10, *range(1, 80), *range(300, 400))]}, {"core-100.img": b"again" * 99})
SOLO = ImageSet({"pagemap-7.img": [area(0, *range(500, 520))]})
GONE = ImageSet({"pagemap-7.img": [area(0, *range(600, 620))]})


@dataclass(frozen=True)
class Act:
    """Something that is done to the store: arguments that begin with / are paths in the stage's directory.

    `adds`: how many checkpoints come; `removes`: how many go, the oldest first.
    """

    name: str
    act: str
    arguments: tuple[str, ...] = ()
    adds: int = 0
    removes: int = 0


ACTS = (
    Act("ingest", "ingest", ("/sets/next", "job"), adds=1),
    Act("ingest what another job has stored", "ingest", ("/sets/solo", "twin"), adds=1),
    Act("tag", "tag", ("job", "new")),
    Act("move the first tag of a job", "tag", ("solo", "new")),
    Act("untag", "untag", ("job", "good")),
    Act("rm", "rm", ("solo", "job~1"), removes=2),
    Act("gc", "gc"),
    Act("mark a checkpoint as restored, and remove the mark", "mark restored", ("job",)),
    Act("cache what the next dump checks", "cache details", ("job",)),
    Act("note what verify found damaged", "note damage", ("job",)),
    Act("record a move, and remove the record", "record move", ("job",)),
    Act("record the CRIU of a restore", "record builder"),
    Act("announce what is to be stored", "announce", ("job",)),
)

LOCK = Act("keep other restores out", "restoring", ("job",))
"""A lock, which is of no use after a power cut."""

REPAIR = Act("repair", "repair", ("/whole",))
"""Of what `spoil` leaves."""


@dataclass(frozen=True)
class Stage:
    """A directory with `store`, `sets` of images, and nothing else."""

    base: Path

    @property
    def root(self) -> Path:
        """The store."""
        return self.base / "store"

    def arguments(self, act: Act) -> tuple[str, ...]:
        """The arguments of an act, with paths in this stage."""
        return tuple(f"{self.base}{word}" if word.startswith("/") else word for word in act.arguments)

    @contextmanager
    def copy(self) -> Iterator[Stage]:
        """A copy to be spoilt."""
        with memory_directory() as base:
            shutil.copytree(self.root, base / "store")
            (base / "sets").symlink_to(self.base / "sets")
            yield Stage(base)


@contextmanager
def memory_directory() -> Iterator[Path]:
    """A directory in memory: a kill does not ask whether anything was synced."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def build(base: Path) -> Stage:
    """Two checkpoints of `job`, the older one tagged `good`, one of `solo`, a garbage pack, a dead transaction.

    Fingerprints of the older one, and the key, are lost: who needs them makes them anew.
    """
    repository = open_store(base)
    store(repository, base, SOLO, described("solo"))
    gone = store(repository, base, GONE, described("gone"))
    first = store(repository, base, ONE)
    store(repository, base, TWO)
    repository.tag(first.id, "good")
    repository.remove([gone.id])
    (repository.root / "cache/fingerprints" / first.packs[0].digest).unlink()
    (repository.root / FINGERPRINT_KEY).unlink()
    (repository.root / "tmp/1-dead/images/below/below").mkdir(parents=True)
    (repository.root / "tmp/1-dead/images/core-1.img").touch()
    (base / "sets").mkdir()
    write_set(base / "sets/next", NEXT)
    write_set(base / "sets/solo", SOLO)
    return Stage(base)


def spoil(stage: Stage) -> None:
    """Each checkpoint is lost in another way: by its manifest, a pack that is damaged, one that is not there.

    `whole` is a copy from before.
    """
    shutil.copytree(stage.root, stage.base / "whole")
    repository = Repository.open(stage.root)
    solo, first, second = repository.checkpoints()
    flip(manifest_path(repository, first.id), 20)
    (damaged,) = {use.digest for use in second.packs} - {use.digest for use in first.packs}
    flip(pack_path(repository, damaged), 100)
    lost = pack_path(repository, solo.packs[0].digest)
    lost.unlink()
    lost.parent.rmdir()


def check(root: Path, before: Sequence[Checkpoint], act: Act) -> None:
    """After an act that was cut short: what was there is whole, nothing half-done is seen, and gc leaves no trace."""
    repository = Repository.open(root)
    kept = {checkpoint.id for checkpoint in before[act.removes :]}
    listed = {checkpoint.id for checkpoint in repository.checkpoints()}
    assert kept <= listed
    assert len(listed - {checkpoint.id for checkpoint in before}) <= act.adds
    assert repository.unreadable() == ()
    assert {tag.id for tag in repository.tags()} <= listed
    collect_garbage(repository)
    assert superfluous(repository) == set()
    assert {checkpoint.id for checkpoint in repository.checkpoints()} == listed
    assert verify(repository).damages == ()


def superfluous(repository: Repository) -> set[str]:
    """The files in the store that it would not have if nothing had ever gone wrong."""
    root = repository.root
    found = repository.checkpoints()
    packs = {use.digest for checkpoint in found for use in checkpoint.packs}
    expected = {
        "store.json",
        "lock",
        "cache/fingerprints.key",
        KNOWN_DAMAGE,
        *(f"checkpoints/{checkpoint.id}/manifest.json" for checkpoint in found),
        *(f"checkpoints/{checkpoint.id}/{job_label(checkpoint.job)}" for checkpoint in found),
        *(f"packs/{digest[:2]}/{digest}.pack" for digest in packs),
        *(f"cache/fingerprints/{digest}" for digest in packs),
        *(f"refs/tags/{tag.job}/{tag.name}" for tag in repository.tags()),
        *(str(path.relative_to(root)) for path in root.glob("cache/samples/[0-9]*")),
        *(job_details_name(checkpoint.job) for checkpoint in found),
        *(restored_name(checkpoint.id) for checkpoint in found),
        *(move_name(checkpoint.job) for checkpoint in found),
    }
    files = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    directories = {str(path.relative_to(root)) for path in (*root.glob("tmp/*"), *root.glob("checkpoints/*"))}
    return files - expected | directories - {f"checkpoints/{checkpoint.id}" for checkpoint in found}
