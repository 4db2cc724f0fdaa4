"""Processes that do one thing each to a store, and are killed before a step of it, or leave a record of its steps.

They are forked by a process that has imported everything: hundreds of them take no time to start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from image_sets import described

from crckpt.host import steps
from crckpt.model import JobName
from crckpt.store import Repository, collect_garbage, ingest, materialise, repair
from crckpt.store.damage import note_known_damage
from crckpt.store.layout import restored_name
from crckpt.store.moves import begin_move, remove_move, store_move
from crckpt.store.pending import announced
from crckpt.store.read.details import cache_details
from crckpt.store.transaction import record_builder

LATER_TIME = datetime(2040, 1, 1, tzinfo=UTC)
"""When checkpoints of writers were created, if not said: after all that tests make themselves."""


@dataclass(frozen=True)
class Order:
    """An order to a writer for the store at `root`: an act and its arguments; all paths are absolute."""

    act: str
    root: str
    arguments: tuple[str, ...] = ()
    kill_at: str = ""
    log: str = ""


@dataclass(frozen=True)
class Entry:
    """A step that was taken: descriptors are paths here."""

    name: str
    paths: tuple[str, ...]
    content: bytes = b""

    @property
    def verb(self) -> str:
        """The act, whatever it is done to."""
        return self.name.rpartition(".")[2]


class Writers:
    """The process that forks writers. Use `writers` to make it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """`process` runs this file."""
        self._process = process

    def status(self, order: Order) -> int:
        """The end of a writer: its exit status, or minus the signal. Raises AssertionError if it failed."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        self._process.stdin.flush()
        status, message = json.loads(self._process.stdout.readline())
        assert status <= 0, message
        return int(status)

    def record_steps(self, order: Order, log: Path) -> list[Entry]:
        """Let a writer do something, and be told the steps."""
        self.status(Order(order.act, order.root, order.arguments, order.kill_at, str(log)))
        try:
            return list(_entries(log))
        finally:
            log.unlink(missing_ok=True)


@contextmanager
def writers() -> Iterator[Writers]:
    """Run a process that forks writers, while the block runs."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        try:
            yield Writers(process)
        finally:
            process.kill()  # the process may wait for a writer that hangs


def _entries(log: Path) -> Iterator[Entry]:
    if log.exists():
        with log.open() as file:
            for name, paths, content in map(json.loads, file):
                yield Entry(name, tuple(paths), content.encode("latin-1"))


def _dump(repository: Repository, images: str, job: str, created: str = LATER_TIME.isoformat()) -> None:
    ingest(repository, Path(images), described(job, created=datetime.fromisoformat(created)))


def _tag(repository: Repository, ref: str, name: str) -> None:
    repository.tag(repository.resolve(ref), name)


def _announce(repository: Repository, job: str) -> None:
    with announced(repository.backend, JobName(job), LATER_TIME, None, alone=True):
        pass


def _keep_restores_out(repository: Repository, job: str) -> None:
    with repository.restoring(JobName(job)):
        pass


def _mark_restored(repository: Repository, ref: str) -> None:
    checkpoint_id = repository.resolve(ref)
    repository.mark_restored(checkpoint_id)
    repository.backend.remove(restored_name(checkpoint_id), "restored")


def _cache_details(repository: Repository, ref: str) -> None:
    checkpoint = repository.get(repository.resolve(ref))
    with repository.transaction() as begun:
        cache_details(repository, checkpoint, b"{}", begun)


def _note_damage(repository: Repository, ref: str) -> None:
    note_known_damage(repository.backend, (), [repository.resolve(ref)])


def _record_builder(repository: Repository) -> None:
    with repository.transaction() as begun:
        record_builder(begun, os.getpid())


def _record_move(repository: Repository, job: str) -> None:
    store_move(repository.backend, begin_move("source", JobName(job), "another-host"))
    remove_move(repository.backend, JobName(job))


def _rm(repository: Repository, *refs: str) -> None:
    repository.remove([repository.resolve(ref) for ref in refs])


def _restore(repository: Repository, ref: str, directory: str) -> None:
    materialise(repository, repository.get(repository.resolve(ref)), Path(directory))


def _repair(repository: Repository, source: str) -> None:
    repair(repository, source=Repository.open(Path(source)))


def _receive(repository: Repository, source: str) -> None:
    """Receive the newest checkpoint of `job` from another store."""
    from connections import connected, in_thread

    from crckpt.migrate.transfer.receive_packs import Receiver
    from crckpt.migrate.transfer.send_packs import send_packs
    from crckpt.migrate.wire.messages import Offer
    from crckpt.store.layout import manifest_name

    other = Repository.open(Path(source))
    made = other.get(other.resolve("job"))
    with connected() as (here, there), repository.transaction() as begun:
        sending = in_thread(lambda: send_packs(here, other.backend, [use.digest for use in made.packs]))
        receiver = Receiver(repository, begun)
        receiver.answer_offer(there, there.receive(Offer))
        sending.join()
        receiver.store_checkpoint(other.backend.read(manifest_name(made.id), 1 << 20), made.id)


_ACTS: dict[str, Callable[..., object]] = {
    "announce": _announce,
    "create": lambda _repository: None,
    "create-ingest": _dump,
    "ingest": _dump,
    "tag": _tag,
    "untag": Repository.untag,
    "mark restored": _mark_restored,
    "cache details": _cache_details,
    "note damage": _note_damage,
    "record builder": _record_builder,
    "record move": _record_move,
    "rm": _rm,
    "gc": collect_garbage,
    "materialise": _restore,
    "restoring": _keep_restores_out,
    "repair": _repair,
    "receive": _receive,
}


def _recorder(file: TextIO, then: steps.Watcher) -> steps.Watcher:
    order = threading.Lock()

    def record(name: str, operands: tuple[object, ...]) -> None:
        paths = [str(o) for o in operands if isinstance(o, Path)]
        if name.endswith((".write", ".write-at", ".sync", ".resize")):
            paths = [os.readlink(f"/proc/self/fd/{operands[0]}")]  # noqa: PTH115
        content = b"".join(bytes(o) for o in operands if isinstance(o, memoryview))
        with order:
            then(name, operands)
            print(json.dumps([name, paths, content.decode("latin-1")]), file=file, flush=True)

    return record


def _obey(order: Order) -> None:
    with Path(order.log or os.devnull).open("w") as log:
        steps.watch(_recorder(log, steps.killer(order.kill_at)))
        _ACTS[order.act](Repository.open(Path(order.root), create=order.act.startswith("create")), *order.arguments)


def _obey_or_report(order: Order, into: int) -> int:
    try:
        _obey(order)
    except Exception:
        os.write(into, traceback.format_exc().encode())
        return 1
    return 0


def _serve() -> None:
    # What a writer imports is imported once.
    import crckpt.store.write.packing  # noqa: F401

    for line in sys.stdin.buffer:
        order = Order(**json.loads(line))
        out, into = os.pipe()
        writer = os.fork()
        if writer == 0:
            os.close(out)
            os._exit(_obey_or_report(order, into))
        os.close(into)
        with os.fdopen(out, "rb") as pipe:
            output = pipe.read().decode()
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]), output]), flush=True)


if __name__ == "__main__":
    _serve()
