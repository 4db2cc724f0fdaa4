"""Show what a checkpoint contains."""

from __future__ import annotations

import shlex
from typing import Any

from msgspec import Struct

from crckpt.criu.command import option_words
from crckpt.ops.context import Context
from crckpt.ops.inspect.descriptors import is_socket
from crckpt.ops.inspect.images import opened_checkpoint
from crckpt.preflight.restore.files import file_uses
from crckpt.store import Checkpoint
from crckpt.store.move_status import MoveStatus, find_marks
from crckpt.store.read.contents import contents_of
from crckpt.store.read.details import read_details


class ProcessDetail(Struct, frozen=True):
    """One process. `memory_bytes` is the size of its private memory in the checkpoint."""

    pid: int
    ppid: int
    comm: str
    state: str
    threads: int
    memory_bytes: int
    command_line: str
    directory: str


class FileDetail(Struct, frozen=True):
    """A file that was open or mapped. `bytes` is None if its size is not recorded."""

    path: str
    state: str
    bytes: int | None
    use: str


class CheckpointDetail(Struct, frozen=True):
    """The contents of a checkpoint, in the order of the tree; and the move of its job that concerns it."""

    checkpoint: Checkpoint
    tags: tuple[str, ...]
    move: MoveStatus | None
    criu_options: tuple[str, ...]
    processes: tuple[ProcessDetail, ...]
    files: tuple[FileDetail, ...]
    sockets: tuple[str, ...]


def show(context: Context, ref: str) -> CheckpointDetail:
    """Read a checkpoint's images and describe it. Raises NoSuchCheckpoint, IntegrityError."""
    with opened_checkpoint(context, ref) as (repository, checkpoint, tree):
        details = read_details(repository, checkpoint)
        index = contents_of(repository, checkpoint).index
        tags = tuple(tag.name for tag in repository.tags() if tag.id == checkpoint.id)
        move = find_marks(repository, (checkpoint,)).get(checkpoint.id)
    # Each path once, with its first use. Directories and devices are files too.
    used, files = file_uses(tree), dict[str, FileDetail]()
    for file in tree.regular_files:
        # `append` is shown because CRIU does not check the size of such a file: it may have grown.
        state = "deleted" if file.is_deleted else "append" if file.is_append_only else ""
        size = file.remap.size if file.remap is not None else file.size
        files.setdefault(file.path, FileDetail(file.path, state, size, used.get(file.id, "")))
    # Taken from the index, so that no page is read and numpy is not loaded.
    memory = {file.pagemap: file.bytes for file in index.files if file.pagemap}
    # An imported checkpoint has none.
    known: dict[int, dict[str, Any]] = {entry["pid"]: entry for entry in details.get("processes", [])}
    return CheckpointDetail(
        checkpoint=checkpoint,
        tags=tags,
        move=move,
        criu_options=option_words(checkpoint.options),
        processes=tuple(
            ProcessDetail(
                pid=process.pid,
                ppid=process.ppid,
                comm=process.comm,
                state=process.state,
                threads=len(process.threads),
                memory_bytes=memory.get(f"pagemap-{process.pid}.img", 0),
                command_line=shlex.join(known.get(process.pid, {}).get("command_line", ())),
                directory=known.get(process.pid, {}).get("directory", ""),
            )
            for process in tree.processes
        ),
        files=tuple(files.values()),
        sockets=tuple(file.title for file in tree.files if is_socket(file)),
    )
