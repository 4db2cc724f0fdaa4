"""Store plain CRIU images as a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from crckpt.errors import UsageError
from crckpt.host import machine
from crckpt.images.core import features_in_use
from crckpt.images.inventory import read_dump_stats
from crckpt.images.regfile import LINKED
from crckpt.images.sockets import UnixSocket
from crckpt.images.tree import ImageTree, read_tree
from crckpt.model import DumpOptions, JobName, Task, utc_datetime
from crckpt.ops.context import Context
from crckpt.store import Checkpoint, NewCheckpoint, check_name, check_note, ingest
from crckpt.store.write.imageset import read_image_file

_UNKNOWN = "unknown"


def import_images(context: Context, directory: Path, job: str, note: str | None = None) -> Checkpoint:
    """Store the images in `directory`, which is not changed. Raises UsageError, IntegrityError, StoreUnusable.

    The host and the options of the dump are read from the images, as far as the images have them.
    """
    name = JobName(check_name(job, "job"))
    if note is not None:
        check_note(note)
    inventory = directory / "inventory.img"
    if not os.path.lexists(inventory):
        lacks = f"{directory} has no CRIU images (no inventory.img)"
        raise UsageError(
            lacks if directory.exists() else f"{directory} does not exist",
            hint="name the directory that `criu dump -D` wrote",
        )
    names = frozenset(path.name for path in directory.iterdir())
    tree = read_tree(lambda image: read_image_file(directory / image), names)
    stats = directory / "stats-dump"
    measured = read_dump_stats(read_image_file(stats)) if stats.name in names else None
    cores = (f"core-{thread.tid}.img" for process in tree.processes for thread in process.threads)
    registers = (features_in_use(read_image_file(directory / core), core) for core in cores)
    new = NewCheckpoint(
        job=name,
        created=utc_datetime(inventory.stat().st_mtime),
        # Architecture and page size are taken to be those of this host.
        host=replace(
            machine.describe_host(_UNKNOWN, _UNKNOWN),
            hostname=_UNKNOWN,
            kernel=_UNKNOWN,
            # The registers that were in use.
            cpu_features=tuple(sorted(frozenset().union(*registers))),
        ),
        options=_options(tree, names),
        tree=tasks(tree),
        note=note,
        run_id=tree.inventory.run_id,
        stopped=True,  # assumed, so that `rm` lifts the network lock of that run
        frozen_ms=measured.frozen_time / 1000 if measured else 0.0,
        dump_ms=0.0,
        details=b"{}",
        config_digest=context.config_digest,
    )
    repository = context.repository(create=True)
    with repository.shared():
        return ingest(repository, directory, new, compress=context.compress, progress=context.progress)


def tasks(tree: ImageTree) -> tuple[Task, ...]:
    """The processes of a tree as a manifest records them."""
    return tuple(
        Task(process.pid, process.ppid, process.comm, tuple(thread.tid for thread in process.threads))
        for process in tree.processes
    )


def _options(tree: ImageTree, names: frozenset[str]) -> DumpOptions:
    """The options that a restore must repeat, as far as the images show them."""
    tcp: Literal["keep", "close"] = "close" if tree.inventory.tcp_close else "keep"
    # A session whose leader is not in the tree was dumped with --shell-job, or CRIU would have refused.
    sessions = {process.pid for process in tree.processes}
    return DumpOptions(
        tcp=tcp if tree.established else None,
        shell_job=tree.root.sid not in sessions,
        file_locks="filelocks.img" in names,
        link_remap=any(file.remap is not None and file.remap.kind == LINKED for file in tree.regular_files),
        ext_unix_sk=any(isinstance(file, UnixSocket) and file.external for file in tree.files),
    )
