"""A store from elsewhere: whatever lies in it, commands end soon, in little memory, and touch nothing outside of it.

Every attack is tried on every command. The ids of manifests are their SHA-256, so that whoever changes one can seal it
again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import hostile_runner
import numpy as np
import pytest
import zstandard
from checkout import TESTS
from image_sets import ImageSet, area, described, open_store, store

from crckpt.host import proc
from crckpt.images.framing import Image, Record, read_image, write_image
from crckpt.images.processes import read_ids
from crckpt.images.wire import encode, fields
from crckpt.model import PAGE_SIZE, CheckpointId
from crckpt.store import Repository
from crckpt.store.format.extents import EXTENT
from crckpt.store.format.pack import FOOTER, FRAME, FRAME_SIZE, MAGIC
from crckpt.store.owner import identify_owner

IMAGES = TESTS / "data/images/tree"
NOBODY = 65534
DEEP = 200_000
# Python 3.14 counts the bytes of the stack, not the calls: 200,000 levels of an unknown entry are no damage there.
DEEPER = 4_000_000
HUGE = 1 << 40
DOCUMENTED = {0, 2, 3, 10, 11, 12, 13, 20, 23, 24}
ZERO = 0xFFFFFFFF

Attack = Callable[["Store"], object]


class Store:
    """A store that is a copy, with one checkpoint `job`, tagged `good`; `canary` is outside."""

    def __init__(self, root: Path, canary: Path) -> None:
        self.root = root
        self.canary = canary
        (self.good,) = (CheckpointId(path.name) for path in (root / "checkpoints").iterdir())

    @property
    def manifest(self) -> dict[str, Any]:
        """The good checkpoint's."""
        content = (self.root / "checkpoints" / self.good / "manifest.json").read_bytes()
        document: dict[str, Any] = json.loads(content)
        return document

    def sealed(self, manifest: bytes) -> CheckpointId:
        """Add a checkpoint with this manifest."""
        identity = CheckpointId(hashlib.sha256(manifest).hexdigest())
        directory = self.root / "checkpoints" / identity
        directory.mkdir()
        (directory / "manifest.json").write_bytes(manifest)
        return identity

    def changed(self, **entries: object) -> CheckpointId:
        """Add a checkpoint like the good one, with these changed entries of its manifest."""
        return self.sealed(json.dumps({**self.manifest, "note": "made up", **entries}).encode())

    def linked(self, name: str) -> None:
        """Replace a directory by a link to the canary, or make such a link."""
        path = self.root / name
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(self.canary)

    def pack(self, frames: list[bytes], raw: int = FRAME_SIZE) -> str:
        """Add a pack of these stored frames: its digest."""
        table = np.zeros(len(frames), FRAME)
        table["stored"] = [len(frame) for frame in frames]
        table["offset"] = len(MAGIC) + np.cumsum([0, *table["stored"][:-1]])
        table["raw"] = raw
        for row, frame in zip(table, frames, strict=True):
            row["sha256"] = np.frombuffer(hashlib.sha256(frame).digest(), np.uint8)
        content = b"".join(frames)
        footer = FOOTER.pack(len(MAGIC) + len(content), len(frames), PAGE_SIZE, MAGIC)
        digest = hashlib.sha256(table.tobytes()).hexdigest()
        path = self.root / "packs" / digest[:2] / f"{digest}.pack"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(MAGIC + content + table.tobytes() + footer)
        return digest

    def with_index(self, header: object, columns: bytes) -> CheckpointId:
        """Add a checkpoint with this index, in a pack of its own."""
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        index = struct.pack("<I", len(text)) + text + columns
        pages = -(-len(index) // PAGE_SIZE)
        padded = index.ljust(-(-pages // 64) * FRAME_SIZE, b"\0")
        compress = zstandard.ZstdCompressor().compress
        frames = [compress(padded[at : at + FRAME_SIZE]) for at in range(0, len(padded), FRAME_SIZE)]
        packs = [{"digest": self.pack(frames), "frames": len(frames), "pages": pages}]
        return self.changed(packs=packs, index={"bytes": len(index), "extents": [[0, pages, 0, 0]]})


# --- Paths out of data.


def _absolute_digest(store: Store) -> CheckpointId:
    victim = str(store.canary / "victim")
    return store.changed(packs=[*store.manifest["packs"], {"digest": victim.ljust(64, "/"), "frames": 1, "pages": 1}])


def _digest_of_any_length(store: Store) -> CheckpointId:
    return store.changed(packs=[{"digest": str(store.canary / "victim"), "frames": 1, "pages": 1}])


def _digest_upwards(store: Store) -> CheckpointId:
    return store.changed(packs=[{"digest": "../../../" + "a" * 55, "frames": 1, "pages": 1}])


def _job_upwards(store: Store) -> CheckpointId:
    return store.changed(job="../../canary")


def _job_with_newline(store: Store) -> CheckpointId:
    return store.changed(job="job\n")


def _run_id_of_words(store: Store) -> CheckpointId:
    return store.changed(run_id="x; flush ruleset", stopped=True)


def _file_upwards(store: Store) -> CheckpointId:
    entry = {"name": f"{store.canary}/new.img", "kind": "file", "bytes": 0, "pagemap": "", "extents": 0}
    return store.with_index({"coding": "columns", "files": [entry]}, zstandard.ZstdCompressor().compress(b""))


# --- Links, and what else is no file or directory.


def _link(name: str) -> Attack:
    return lambda store: store.linked(name)


def _link_to_checkpoint(store: Store) -> CheckpointId:
    identity = CheckpointId("e" * 64)
    store.linked(f"checkpoints/{identity}")
    return identity


def _link_to_manifest(store: Store) -> CheckpointId:
    manifest = store.root / "checkpoints" / store.good / "manifest.json"
    shutil.move(manifest, store.canary / "manifest.json")
    manifest.symlink_to(store.canary / "manifest.json")
    return store.good


def _lock_is_link(store: Store) -> None:
    (store.root / "lock").unlink()
    (store.root / "lock").symlink_to(store.canary / "victim")


def _lock_creates(store: Store) -> None:
    (store.root / "lock").unlink()
    (store.root / "lock").symlink_to(store.canary / "created")


def _entry_is_link(name: str) -> Attack:
    def attack(store: Store) -> None:
        path = store.root / name
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(store.canary)

    return attack


def _log_is_link(store: Store) -> None:
    (store.root / "tmp/12-ab").mkdir()
    (store.root / "tmp/12-ab/dump.log").symlink_to(store.canary / "victim")


def _staging_leads_out(store: Store) -> None:
    """Make a link that looks like a directory of crckpt's whose owner is dead."""
    staging = store.canary / "crckpt-12-ab"
    (store.root / "tmp/12-ab").mkdir()
    (store.root / "tmp/12-ab/staging").symlink_to(staging)
    (store.root / "tmp/12-ab/owner.json").write_text("{}")


def _planted(name: str, plant: Callable[[Path], object]) -> Attack:
    def attack(store: Store) -> CheckpointId:
        path = store.root / name.replace("GOOD", store.good)
        if path.name == "PACK":
            (path,) = (store.root / "packs").glob("*/*.pack")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.unlink(missing_ok=True)
        plant(path)
        return store.good

    return attack


def _socket(path: Path) -> None:
    # Its address is shorter than its path may be.
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.open(path.parent, os.O_RDONLY)
        listening.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def _terabyte(path: Path) -> None:
    path.touch()
    os.truncate(path, HUGE)


def _zeros(path: Path) -> None:
    os.mknod(path, 0o20600, os.makedev(1, 5))


def _of_nobody(path: Path) -> None:
    path.write_text("{}")
    os.chown(path, NOBODY, NOBODY)


KINDS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": _socket,
    "zeros": _zeros,
    "terabyte": _terabyte,
    "nobody": _of_nobody,
}
FILES = (
    *("store.json", "checkpoints/GOOD/manifest.json", "PACK", "lock", "refs/tags/job/evil", "pending/12-ab"),
    *("locks/12-ab", "tmp/12-ab/owner.json", "cache/fingerprints/x", "checkpoints/" + "d" * 64),
)

# --- Documents.


def _brackets(store: Store) -> CheckpointId:
    return store.sealed(b"[" * DEEP)


def _nested(entry: str) -> Attack:
    def attack(store: Store) -> CheckpointId:
        nested = b"[" * DEEPER + b"]" * DEEPER
        text = json.dumps({**store.manifest, entry: "HERE"}).encode()
        return store.sealed(text.replace(b'"HERE"', nested))

    return attack


def _entry(**entries: object) -> Attack:
    return lambda store: store.changed(**entries)


def _raw_entry(entry: str, value: bytes) -> Attack:
    def attack(store: Store) -> CheckpointId:
        return store.sealed(json.dumps({**store.manifest, entry: "HERE"}).encode().replace(b'"HERE"', value))

    return attack


def _owner(**entries: object) -> dict[str, object]:
    owner: dict[str, object] = json.loads(identify_owner(1.0).encode())
    return {**owner, "boot_id": proc.boot_id(), **entries}


def _record(directory: str, document: object) -> Attack:
    def attack(store: Store) -> None:
        path = store.root / directory
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())

    return attack


def _pending(**entries: object) -> Attack:
    now = datetime.now(UTC).isoformat()
    return _record("pending/12-ab", {"job": "job", "created": now, "run_id": None, "owner": _owner(), **entries})


def _details(content: bytes) -> Attack:
    def attack(store: Store) -> CheckpointId:
        files = {path.name: path.read_bytes() for path in IMAGES.iterdir() if not path.name.startswith("pagemap-")}
        repository = Repository.open(store.root)
        base = store.root.parent / "more"
        base.mkdir()
        return _stored(repository, base, files, content)

    return attack


# --- Declared sizes.


@cache
def _zeros_of_4_gib() -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj(size=1 << 32)
    part = bytes(16 << 20)
    return b"".join([*(compressor.compress(part) for _ in range(256)), compressor.flush()])


def _frame_of_4_gib(store: Store) -> CheckpointId:
    """Store a frame of 131 KB that declares 4 GiB."""
    frame = _zeros_of_4_gib()
    assert len(frame) < 600_000
    packs = [{"digest": store.pack([frame[: 2 * FRAME_SIZE - 1]]), "frames": 1, "pages": 64}]
    return store.changed(packs=packs, index={"bytes": 9, "extents": [[0, 1, 0, 0]]})


def _columns_of_4_gib(store: Store) -> CheckpointId:
    entry = {"name": "pages-1.img", "kind": "pages", "bytes": HUGE, "pagemap": "pagemap-1.img", "extents": 1 << 27}
    return store.with_index({"coding": "columns", "files": [entry]}, _zeros_of_4_gib())


def _extents_beyond_number(store: Store) -> CheckpointId:
    entry = {"name": "a.img", "kind": "file", "bytes": 1, "pagemap": "", "extents": 10**30}
    return store.with_index({"coding": "columns", "files": [entry]}, b"")


def _bytes_beyond_number(store: Store) -> CheckpointId:
    entry = {"name": "a.img", "kind": "file", "bytes": 10**30, "pagemap": "", "extents": 1}
    return store.with_index({"coding": "columns", "files": [entry]}, zstandard.ZstdCompressor().compress(bytes(32)))


def _page_beyond_number(store: Store) -> CheckpointId:
    """A page with an address so high that the sum with its count overflows."""
    planes = np.zeros((4, 1), np.uint64)
    planes[2], planes[3] = 1, (1 << 64) - 2
    octets = planes.view(np.uint8).reshape(4, 1, 8).transpose(0, 2, 1).tobytes()
    entry = {"name": "inventory.img", "kind": "file", "bytes": 1, "pagemap": "", "extents": 1}
    columns = zstandard.ZstdCompressor().compress(octets)
    return store.with_index({"coding": "columns", "files": [entry]}, columns)


def _inventory_of_zeros(store: Store) -> CheckpointId:
    """An image of 16 TiB of zeros, which is the first that is read."""
    planes = np.zeros((4, 1), np.uint64)
    planes[1] = 0xFFFFFFFE
    octets = planes.view(np.uint8).reshape(4, 1, 8).transpose(0, 2, 1).tobytes()
    size = 0xFFFFFFFF * PAGE_SIZE
    entry = {"name": "inventory.img", "kind": "file", "bytes": size, "pagemap": "", "extents": 1}
    columns = zstandard.ZstdCompressor().compress(octets)
    return store.with_index({"coding": "columns", "files": [entry]}, columns)


def _index_of_zeros(store: Store) -> CheckpointId:
    return store.changed(index={"bytes": 0xFFFFFFFF * PAGE_SIZE, "extents": [[0, 0xFFFFFFFF, ZERO, 0]]})


def _index_beyond_pack(store: Store) -> CheckpointId:
    return store.changed(index={"bytes": 9, "extents": [[0, 1, 0, 1 << 62]]})


def _index_in_no_pack(store: Store) -> CheckpointId:
    return store.changed(index={"bytes": 9, "extents": [[0, 1, 99, 0]]})


def _many_frames(store: Store) -> CheckpointId:
    """A pack that is a sparse file with a frame table of 200 GB."""
    count = (1 << 32) - 1
    digest = "a" * 64
    path = store.root / "packs/aa" / f"{digest}.pack"
    path.parent.mkdir(exist_ok=True)
    end = len(MAGIC) + count
    with path.open("wb") as file:
        file.write(MAGIC)
        file.seek(end + count * FRAME.itemsize)
        file.write(FOOTER.pack(end, count, PAGE_SIZE, MAGIC))
    return store.changed(packs=[{"digest": digest, "frames": 1, "pages": 1}])


def _many_descriptors(store: Store) -> CheckpointId:
    """Hundreds of processes share one table of 20,000 descriptors; their images share the pages of the store."""
    files = {path.name: path.read_bytes() for path in IMAGES.iterdir() if not path.name.startswith("pagemap-")}
    pstree = read_image(files["pstree.img"], "pstree.img")
    root = list(fields(pstree.records[0].payload, "pstree.img"))
    records = [Record(encode(root))]
    for pid in range(100_000, 100_300):
        files |= {f"{kind}-{pid}.img": files[f"{kind}-7993.img"] for kind in ("core", "mm", "ids", "fs")}
        records.append(Record(encode((n, kind, {1: pid, 2: 7993, 5: pid}.get(n, was)) for n, kind, was in root)))
    files["pstree.img"] = write_image(Image(pstree.magic, tuple(records)))
    table = f"fdinfo-{read_ids(files['ids-7993.img']).files}.img"
    image = read_image(files[table], table)
    first = list(fields(image.records[0].payload, table))
    numbered = (Record(encode((n, kind, fd if n == 4 else was) for n, kind, was in first)) for fd in range(20_000))
    files[table] = write_image(Image(image.magic, tuple(numbered)))
    base = store.root.parent / "more"
    base.mkdir()
    return _stored(Repository.open(store.root), base, files)


ATTACKS: dict[str, Attack] = {
    "absolute digest": _absolute_digest,
    "digest of any length": _digest_of_any_length,
    "digest upwards": _digest_upwards,
    "job upwards": _job_upwards,
    "job with newline": _job_with_newline,
    "run id of words": _run_id_of_words,
    "file upwards": _file_upwards,
    **{
        f"{name} is a link": _link(name)
        for name in (
            *("tmp", "locks", "pending", "cache", "cache/fingerprints", "refs", "refs/tags", "refs/tags/job"),
            *("checkpoints", "packs"),
        )
    },
    "checkpoint is a link": _link_to_checkpoint,
    "manifest is a link": _link_to_manifest,
    "lock is a link": _lock_is_link,
    "lock creates a file": _lock_creates,
    **{
        f"{name} is a link": _entry_is_link(name)
        for name in (
            *("tmp/12-ab", "locks/12-ab", "pending/12-ab", "cache/fingerprints/12", "packs/ff", "refs/tags/more"),
            *(".store.json.12", "refs/tags/job/.12", "refs/tags/job/linked", "packs/ff/" + "f" * 64 + ".pack"),
        )
    },
    "log is a link": _log_is_link,
    "staging leads out": _staging_leads_out,
    **{
        f"{name}: {kind}": _planted(name, plant)
        for name in FILES
        for kind, plant in KINDS.items()
        if kind in ("fifo", "terabyte") or "GOOD" in name or name == "PACK"
    },
    "brackets": _brackets,
    **{f"{entry} is nested": _nested(entry) for entry in ("x", "tree", "note", "host", "index")},
    "time without zone": _entry(created="2026-01-01T00:00:00"),
    "time before time": _entry(created="0001-01-01T00:00:00+14:00"),
    "time after time": _entry(created="9999-12-31T23:59:59-14:00"),
    "pid beyond number": _entry(tree=[{"pid": 10**30, "ppid": 1, "comm": "x", "threads": [1]}]),
    "negative pid": _entry(tree=[{"pid": -1, "ppid": 1, "comm": "x", "threads": [-1]}]),
    "option with a zero byte": _entry(options={"external": ["pipe:[1]\0--exec-cmd"]}),
    "no number": _raw_entry("statistics", b'{"frozen_ms": NaN}'),
    "infinite": _raw_entry("statistics", b'{"frozen_ms": 1e999}'),
    "long number": _raw_entry("schema", b"1" * 100_000),
    "no text": _raw_entry("note", b'"\xff\xfe"'),
    "large manifest": _entry(note="x" * (40 << 20)),
    "pending is nested": _record("pending/12-ab", b"[" * DEEP),
    "pending without zone": _pending(created="2026-01-01T00:00:00"),
    "pending upwards": _pending(job="../../canary"),
    "pending of no process": _pending(owner=_owner(pid=10**30)),
    "lock record of no time": _record("locks/12-ab", _owner(since=1e300)),
    "lock record is nested": _record("locks/12-ab", b"[" * DEEP),
    "owner is nested": _record("tmp/12-ab/owner.json", b"[" * DEEP),
    "facts are nested": _record("store.json", b"[" * DEEP),
    "facts beyond number": _record("store.json", {"format": 1, "id": "x", "created": "x", "fingerprint_seed": 10**30}),
    "details are nested": _details(b"[" * DEEP),
    "details are a list": _details(b"[1]"),
    "details of no kind": _details(b'{"processes": 5, "append_sizes": 6}'),
    "details of odd processes": _details(b'{"processes": [{"pid": 7993, "command_line": 5}]}'),
    "frame of 4 GiB": _frame_of_4_gib,
    "columns of 4 GiB": _columns_of_4_gib,
    "extents beyond number": _extents_beyond_number,
    "bytes beyond number": _bytes_beyond_number,
    "page beyond number": _page_beyond_number,
    "inventory of zeros": _inventory_of_zeros,
    "index of zeros": _index_of_zeros,
    "index beyond its pack": _index_beyond_pack,
    "index in no pack": _index_in_no_pack,
    "many frames": _many_frames,
    "many descriptors": _many_descriptors,
}


def _stored(repository: Repository, base: Path, files: dict[str, bytes], details: bytes = b"{}") -> CheckpointId:
    images = ImageSet({"pagemap-7993.img": [area(10, *range(1, 100))]}, files)
    return store(repository, base, images, described(details=details)).id


@pytest.fixture(scope="module")
def intact_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one checkpoint of real images, to be copied."""
    base = tmp_path_factory.mktemp("whole")
    repository = open_store(base)
    files = {path.name: path.read_bytes() for path in IMAGES.iterdir() if not path.name.startswith("pagemap-")}
    repository.tag(_stored(repository, base, files), "good")
    return repository.root


class Runner:
    """Runs commands; see `hostile_runner`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, *words: str) -> tuple[int, str]:
        """The exit code of a command, or minus the signal that ended it, and its output."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(words), file=self._process.stdin, flush=True)
        code, output = json.loads(self._process.stdout.readline())
        return int(code), str(output)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    """What runs commands in little memory and time."""
    command = [sys.executable, hostile_runner.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Runner(process)
        process.kill()


def _canary(base: Path) -> Path:
    """What an attack would like to reach: files, and directories that look as the store's do."""
    canary = base / "canary"
    for name in ("job", "ab", "crckpt-12-ab", "fingerprints", "tags"):
        (canary / name).mkdir(parents=True)
    for path in (canary, canary / "job", canary / "ab", canary / "fingerprints"):
        (path / "victim").write_text("whole")
    (canary / "victim").chmod(0o640)
    (canary / "crckpt-12-ab").chmod(0o700)
    (canary / "crckpt-12-ab/victim").write_text("whole")
    (canary / "crckpt-12-ab/owner.json").write_text(json.dumps(_owner(boot_id="another")))
    return canary


def _picture(directory: Path) -> list[tuple[str, int, bytes]]:
    paths = sorted(directory.rglob("*"))
    return [(str(path), path.stat().st_mode, path.read_bytes() if path.is_file() else b"") for path in paths]


def commands(evil: str, out: Path) -> Iterator[tuple[str, ...]]:
    """All commands that read or change a store. Those that remove something come last."""
    yield ("list",)
    for ref in dict.fromkeys(("job", evil)):
        yield ("show", ref)
        yield ("export", ref, str(out / f"export-{ref}"))
        yield ("tag", ref, "more")
    yield ("verify", "--all")
    yield ("gc",)
    yield ("rm", evil)
    yield ("gc",)


@pytest.mark.parametrize("name", ATTACKS)
def test_commands_on_a_hostile_store_end_and_change_nothing_outside(
    name: str, intact_store: Path, runner: Runner, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    shutil.copytree(intact_store, root)
    canary = _canary(tmp_path)
    attacked = Store(root, canary)
    found = ATTACKS[name](attacked)
    evil = found if isinstance(found, str) else attacked.good
    before = _picture(canary)
    for words in commands(evil, tmp_path):
        code, output = runner.run(*words, "--store", str(root))
        assert code in DOCUMENTED, f"crckpt {' '.join(words)} ended with {code}: {output[-2000:]}"
        assert "this is a bug" not in output, output
        assert _picture(canary) == before, f"crckpt {' '.join(words)} touched what is outside"


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in ATTACKS
        if name in ("brackets", "time without zone", "absolute digest", "large manifest", "option with a zero byte")
    ]
    + [name for name in ATTACKS if name.endswith("nested") and not name.startswith(("facts", "details"))],
)
def test_hostile_entry_of_a_store_affects_no_other_checkpoint(
    name: str, intact_store: Path, runner: Runner, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    shutil.copytree(intact_store, root)
    attacked = Store(root, _canary(tmp_path))
    evil = ATTACKS[name](attacked)
    code, output = runner.run("list", "--json", "--store", str(root))
    listed = json.loads(output)["result"]
    assert code == 0
    assert [entry["id"] for entry in listed["checkpoints"]] == [attacked.good]
    assert runner.run("show", attacked.good, "--store", str(root))[0] == 0
    if isinstance(evil, str):
        assert [entry["id"] for entry in listed["unreadable"]] == [evil]
        assert listed["unreadable"][0]["why"]
        assert runner.run("rm", evil, "--store", str(root))[0] == 0
        assert not (root / "checkpoints" / evil).exists()
    assert runner.run("verify", "--all", "--store", str(root))[0] == 0
    assert runner.run("gc", "--store", str(root))[0] == 0


@pytest.mark.parametrize(
    "name", ["frame of 4 GiB", "columns of 4 GiB", "inventory of zeros", "index of zeros", "many descriptors"]
)
def test_huge_sizes_declared_in_a_store_are_integrity_errors(
    name: str, intact_store: Path, runner: Runner, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    shutil.copytree(intact_store, root)
    evil = ATTACKS[name](Store(root, _canary(tmp_path)))
    code, output = runner.run("show", str(evil), "--store", str(root))
    # An index that is too large is refused with its manifest.
    assert code in (10, 13), output
    assert "too little memory" not in output


def _pack_directory_is_link(store: Store) -> None:
    (directory,) = (store.root / "packs").iterdir()
    shutil.rmtree(directory)
    directory.symlink_to(store.canary)


REPAIRS: dict[str, Attack] = {
    "checkpoint is a link": lambda store: store.linked(f"checkpoints/{store.good}"),
    "pack directory is a link": _pack_directory_is_link,
    **{
        name: attack
        for name, attack in ATTACKS.items()
        if name.startswith(("PACK: ", "checkpoints/GOOD/manifest.json: "))
    },
}


@pytest.mark.parametrize("name", REPAIRS)
def test_repair_of_a_hostile_store_stays_inside_the_store(
    name: str, intact_store: Path, runner: Runner, tmp_path: Path
) -> None:
    """Either of the two stores may have been attacked."""
    for root in (tmp_path / "evil", tmp_path / "good"):
        shutil.copytree(intact_store, root)
    canary = _canary(tmp_path)
    evil, good = (str(tmp_path / name) for name in ("evil", "good"))
    REPAIRS[name](Store(tmp_path / "evil", canary))
    before = _picture(canary)
    assert runner.run("verify", "--repair", "--from", evil, "--store", good)[0] == 0
    code, output = runner.run("verify", "--repair", "--from", good, "--store", evil)
    assert code == (13 if "is a link" in name else 0), output
    assert _picture(canary) == before


def test_linked_dump_logs_are_not_reported(intact_store: Path, runner: Runner, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(intact_store, root)
    attacked = Store(root, _canary(tmp_path))
    _log_is_link(attacked)
    (root / "tmp/13-ab").symlink_to(attacked.canary)
    (attacked.canary / "dump.log").write_text("secret")
    code, output = runner.run("report", "--output", str(tmp_path / "report.tar.gz"), "--store", str(root))
    assert code == 0, output
    listed = subprocess.run(["tar", "tzf", tmp_path / "report.tar.gz"], capture_output=True, text=True, check=True)
    assert "logs/" not in listed.stdout


def test_export_into_a_directory_of_another_user_is_refused(intact_store: Path, runner: Runner, tmp_path: Path) -> None:
    for name, owner, mode in (("theirs", NOBODY, 0o777), ("open", os.geteuid(), 0o777), ("read", NOBODY, 0o755)):
        target = tmp_path / name
        target.mkdir()
        target.chmod(mode)
        os.chown(target, owner, -1)
        code, output = runner.run("export", "job", str(target), "--store", str(intact_store))
        assert (code, "others can change it" in output) == (2, True), output
        assert list(target.iterdir()) == []
    (tmp_path / "ours").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    assert runner.run("export", "job", str(tmp_path / "link"), "--store", str(intact_store))[0] == 2
    assert runner.run("export", "job", str(tmp_path / "ours"), "--store", str(intact_store))[0] == 0
    assert (tmp_path / "ours/inventory.img").exists()


@pytest.mark.parametrize("kind", ["fifo", "socket", "zeros", "terabyte", "nobody"])
def test_configuration_must_be_a_regular_file(kind: str, runner: Runner, tmp_path: Path) -> None:
    KINDS[kind](tmp_path / "crckpt.yaml")
    code, output = runner.run("list", "--config", str(tmp_path / "crckpt.yaml"), "--store", str(tmp_path / "none"))
    # The user has named it: so it may be another's.
    assert code == (10 if kind == "nobody" else 2), output


def test_deeply_nested_configuration_is_refused(runner: Runner, tmp_path: Path) -> None:
    bomb = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))])
    for text in ("[" * 100_000, f"{bomb}\ncompress: *a8\n", "compress: " + "9" * 100_000):
        (tmp_path / "crckpt.yaml").write_text(text)
        code, output = runner.run("list", "--config", str(tmp_path / "crckpt.yaml"), "--store", str(tmp_path / "none"))
        assert code == 2, output
        assert len(output) < 10_000


def _image(name: str, plant: Callable[[Path], object]) -> Callable[[Path], object]:
    def attack(directory: Path) -> None:
        (directory / name).unlink()
        plant(directory / name)

    return attack


def _shadow(path: Path) -> None:
    path.symlink_to("/etc/shadow")


IMAGE_ATTACKS: dict[str, Callable[[Path], object]] = {
    **{
        f"{name}: {kind}": _image(name, plant)
        for name, kinds in (
            ("inventory.img", {**KINDS, "link": _shadow}),
            ("pages-1.img", {**KINDS, "link": _shadow}),
            ("core-7993.img", {"fifo": os.mkfifo, "terabyte": _terabyte}),
            ("stats-dump", {"fifo": os.mkfifo, "link": _shadow}),
            ("pagemap-7993.img", {"zeros": _zeros, "terabyte": _terabyte}),
            ("pipes-data.img", {"socket": _socket, "terabyte": _terabyte}),
        )
        for kind, plant in kinds.items()
    },
    "name with newline": lambda path: (path / "a\nb").touch(),
    "of the year 10000": lambda path: os.utime(path / "inventory.img", (253402300900, 253402300900)),
    "of the year 0": lambda path: os.utime(path / "inventory.img", (-62167219200, -62167219200)),
    "leads back": lambda path: (path / "parent").symlink_to("."),
}


@pytest.mark.parametrize("name", IMAGE_ATTACKS)
def test_forged_images_are_imported_or_refused(name: str, runner: Runner, tmp_path: Path) -> None:
    directory = tmp_path / "images"
    source = open_store(tmp_path)
    files = {path.name: path.read_bytes() for path in IMAGES.iterdir() if not path.name.startswith("pagemap-")}
    identity = _stored(source, tmp_path, files)
    assert runner.run("export", identity, str(directory), "--store", str(source.root))[0] == 0
    IMAGE_ATTACKS[name](directory)
    code, output = runner.run("import", str(directory), "imported", "--store", str(tmp_path / "new"))
    harmless = name.startswith(("of the year", "leads back"))
    assert code == (0 if harmless else 13), output
    assert ("shadow" not in output) or "link" in output
    assert runner.run("verify", "--all", "--store", str(tmp_path / "new"))[0] in (0, 10)


def test_lack_of_memory_for_a_hostile_store_is_reported(intact_store: Path, runner: Runner, tmp_path: Path) -> None:
    """With almost no memory left, a command says so, and not that it has a bug."""
    assert EXTENT.itemsize == 24
    words = json.dumps(["list", "--store", str(intact_store)])
    program = (
        "import json, resource, sys\nfrom crckpt.cli import app\n"
        "def full(*_): raise MemoryError\n"
        "import crckpt.store.backend.local as local\nlocal.Backend.read = full\n"
        f"sys.exit(app.run({words}))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 20, result.stderr
    assert "the host has too little memory for crckpt list" in result.stderr
