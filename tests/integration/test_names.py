"""Names that a restore makes again, or looks for: what is in the way is refused before anything is touched.

`restore --dry-run`, the restore, and the check of a move to this host agree.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from gates import answer_here, ask_about, target_at
from stopped_trees import JOB, program
from trees import Tree, open_workdir

REFUSED: Final = 24
INTERFACE: Final = "crckpt0"


def _bound(name: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, kind)
    found.bind(name)
    return found


@contextmanager
def _served(place: Path, name: str, kind: int = socket.SOCK_STREAM) -> Iterator[None]:
    """Let another server listen at the path; check that no client has connected in the block."""
    (place / name).unlink()
    with _bound(str(place / name), kind) as server:
        if kind == socket.SOCK_STREAM:
            server.listen()
        server.settimeout(0)
        yield
        # No client has connected, but the server can be reached: the kernel reports a client of another kind.
        with pytest.raises(BlockingIOError):
            server.accept() if kind == socket.SOCK_STREAM else server.recv(1)
        with socket.socket(socket.AF_UNIX, kind) as client:
            client.connect(str(place / name))


@contextmanager
def _moved(path: Path) -> Iterator[None]:
    aside = path.with_name("aside")
    path.rename(aside)
    yield
    assert not path.exists()
    aside.rename(path)


@contextmanager
def _replaced(path: Path) -> Iterator[None]:
    """A plain file is at the path of a socket."""
    path.unlink()
    path.write_text("text")
    yield
    assert path.read_text() == "text"
    path.unlink()


@contextmanager
def _abstract(place: Path, kind: int) -> Iterator[None]:
    with _bound("\0" + (place / "abstract").read_text(), kind):
        yield


@contextmanager
def _netlink(place: Path) -> Iterator[None]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as other:
        other.bind((int((place / "port").read_text()), 0))
        yield


@contextmanager
def _interface() -> Iterator[None]:
    for words in (("add", INTERFACE, "type", "veth", "peer", "name", f"{INTERFACE}-peer"), ("set", INTERFACE, "up")):
        subprocess.run(["ip", "link", *words], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "delete", INTERFACE], check=True)


@contextmanager
def _without_interface() -> Iterator[None]:
    subprocess.run(["ip", "link", "set", INTERFACE, "down", "name", "other0"], check=True)
    yield
    subprocess.run(["ip", "link", "set", "other0", "name", INTERFACE, "up"], check=True)


KINDS: Final[dict[str, tuple[str, str, Callable[[Path], AbstractContextManager[None]]]]] = {
    "server-at-path": ("unix-taken", "run/stream", lambda place: _served(place, "run/stream")),
    "datagram-server-at-path": ("unix-taken", "relative", lambda place: _served(place, "relative", socket.SOCK_DGRAM)),
    "directory-missing": ("unix-missing", "run/stream", lambda place: _moved(place / "run")),
    "file-at-path": ("unix-occupied", "run/stream", lambda place: _replaced(place / "run/stream")),
    "abstract-name-taken": ("unix-taken", "@crckpt-test-", lambda place: _abstract(place, socket.SOCK_STREAM)),
    "peer-missing": ("unix-absent", "log", lambda place: _moved(place / "log")),
    "netlink-port-taken": ("netlink-taken", "netlink port", _netlink),
    "interface-missing": ("interface-missing", INTERFACE, lambda _: _without_interface()),
    "inotify-target-missing": ("watch-gone", "inotify", lambda place: _moved(place / "inotify")),
    "fanotify-target-missing": ("watch-gone", "fanotify", lambda place: _moved(place / "fanotify")),
}


@pytest.mark.usefixtures("orphans_are_reaped")
def test_dry_run_and_restore_and_move_report_a_taken_or_missing_name_alike(crckpt: Crckpt, tmp_path: Path) -> None:
    with ExitStack() as stack:
        place = stack.enter_context(open_workdir())
        stack.enter_context(closing(_bound(str(place / "log"), socket.SOCK_DGRAM)))
        stack.enter_context(_interface())
        tree = stack.enter_context(Tree(program("names", INTERFACE), place))
        questions = ask_about(target_at(tree.pid, tmp_path))
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        before = tree.counters()
        for name, (key, words, change) in KINDS.items():
            with change(place):
                dry = crckpt.run("restore", JOB, "--dry-run", "--json", status=REFUSED).document["error"]
                result = crckpt.run("restore", JOB, "--detach", "--json", status=REFUSED).document["error"]
                assert dry == result, name
                assert words in result["message"], name
                (found,) = answer_here(questions, tmp_path / "store").blockers
                assert (found.key, found.what) == (key, result["message"]), name
        # For a socket of another type, the same abstract name is another name.
        with _abstract(place, socket.SOCK_DGRAM):
            crckpt.run("restore", JOB, "--dry-run")
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
