"""Restores that CRIU refuses: the checkpoint, the change since then, and the expected cause."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from provoked.dumps import BEHIND_SHELL, NO_LOCK, NOBODY, NOTHING, OWN_MOUNTS, receiver, without
from stopped_trees import taken

from crckpt.images.framing import Image, Record, read_image, write_image

BUSY: Final = "busy"
PORT: Final = 4711
INTERFACE: Final = "crckpt0"
ABOVE_LIMIT: Final = 5_000_000


@dataclass(frozen=True)
class World:
    """The world that a checkpoint finds at its restore: a copy of its images, and the program's directory as it was."""

    pid: int
    threads: tuple[int, ...]
    workdir: Path
    images: Path

    @property
    def file(self) -> Path:
        """The open file of the kind `busy`."""
        return self.workdir / "file"

    def image(self, name: str) -> Path:
        """One image, by its name without PID."""
        (path,) = self.images.glob(f"{name}*.img")
        return path

    def rewrite(self, name: str, change: Callable[[bytes], bytes]) -> None:
        """Change the first message of an image."""
        path = self.image(name)
        image = read_image(path.read_bytes())
        first, *rest = image.records
        path.write_bytes(write_image(Image(image.magic, (Record(change(first.payload), first.extra), *rest))))


Change = Callable[[World], AbstractContextManager[object] | object]
"""What happens to the world; a context manager where it must be undone."""


@dataclass(frozen=True)
class Restore:
    """One refusal, as `Dump`. `dumped` are the options of its dump, and `copied` if Python is a copy of its own."""

    cause: str
    change: Change
    kind: str = BUSY
    says: str = ""
    options: tuple[str, ...] = ()
    under: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    dumped: tuple[str, ...] = ("--file-locks",)
    beside: Callable[[Path], AbstractContextManager[object]] | None = None
    copied: bool = False
    depth: int = 0

    @property
    def name(self) -> str:
        """The name of the test."""
        how = self.change.__name__.strip("_<>")
        return "-".join((self.cause, how, *(word for word in self.options if word.startswith("--"))))


def nothing(_: World) -> None:
    """The change is in the options."""


def file_gone(world: World) -> None:
    world.file.unlink()


def file_shorter(world: World) -> None:
    os.truncate(world.file, 1)


def file_is_directory(world: World) -> None:
    world.file.unlink()
    world.file.mkdir()


def file_is_pipe(world: World) -> None:
    world.file.unlink()
    os.mkfifo(world.file)


def file_has_other_mode(world: World) -> None:
    world.file.chmod(0o600)


def directory_gone(world: World) -> None:
    (world.workdir / "cwd").rmdir()


def directory_is_file(world: World) -> None:
    (world.workdir / "cwd").rmdir()
    (world.workdir / "cwd").touch()


def pipe_gone(world: World) -> None:
    (world.workdir / "fifo").unlink()


def pipe_is_file(world: World) -> None:
    (world.workdir / "fifo").unlink()
    (world.workdir / "fifo").touch()


def sockets_gone(world: World) -> None:
    shutil.rmtree(world.workdir / "sockets")


def other_build(world: World) -> None:
    """The program itself is another build: it runs from a copy."""
    path = world.workdir / "python"
    note = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0"
    content = bytearray(path.read_bytes())
    content[content.index(note) + len(note)] ^= 1
    path.unlink()
    path.write_bytes(content)
    path.chmod(0o755)


@contextmanager
def lease_refused(world: World) -> Iterator[None]:
    """Somebody writes the file."""
    with (world.workdir / "leased").open("r+b"):
        yield


@contextmanager
def port_taken(_: World) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", PORT)):
        yield


@contextmanager
def terminals_taken(_: World) -> Iterator[None]:
    pairs = [os.openpty() for _ in range(4)]
    try:
        yield
    finally:
        for pair in pairs:
            for descriptor in pair:
                os.close(descriptor)


def pid_taken(world: World) -> AbstractContextManager[int]:
    return taken(world.pid, "PID")


def thread_taken(world: World) -> AbstractContextManager[int]:
    return taken(world.threads[0], "PID")


def no_image(name: str) -> Change:
    """The image is missing."""

    def gone(world: World) -> None:
        world.image(name).unlink()

    gone.__name__ = f"no_{name}"
    return gone


def cut(name: str) -> Change:
    """The image is cut short."""

    def shorten(world: World) -> None:
        os.truncate(world.image(name), 60)

    shorten.__name__ = f"cut_{name}"
    return shorten


def other_magic(world: World) -> None:
    world.image("core").write_bytes(bytes(100))


def in_inventory(name: str, change: Callable[[bytes], bytes]) -> Change:
    """The inventory says something else."""

    def rewritten(world: World) -> None:
        world.rewrite("inventory", change)

    rewritten.__name__ = name
    return rewritten


def other_machine(world: World) -> None:
    """Field 1 of a core image is the architecture: here AARCH64 (3) instead of x86-64 (1), or the other way round."""
    world.rewrite("core", lambda payload: payload[:1] + bytes((payload[1] ^ 2,)) + payload[2:])


def other_cpu(world: World) -> None:
    """One with all features of its first word."""
    every = _varint(0xFFFFFFFF)
    world.rewrite(
        "cpuinfo", lambda payload: re.sub(rb"(\x28.\x30).{4}[^\x30]*", lambda found: found[1] + every, payload, count=1)
    )


def number_above_limit(world: World) -> None:
    """The root's number, in the tree and in the names of its images, is above any limit."""
    world.rewrite("pstree", lambda payload: payload.replace(_varint(world.pid), _varint(ABOVE_LIMIT)))
    for path in world.images.glob(f"*-{world.pid}.img"):
        path.rename(path.with_name(path.name.replace(str(world.pid), str(ABOVE_LIMIT))))


def _varint(number: int) -> bytes:
    low = number & 0x7F
    return bytes((low | 0x80,)) + _varint(number >> 7) if number > low else bytes((low,))


@contextmanager
def interface(_: Path) -> Iterator[None]:
    """A network interface for the time of the dump."""
    if subprocess.run(["ip", "link", "add", INTERFACE, "type", "bridge"], check=False).returncode:
        pytest.skip("this machine has no network bridges")
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "delete", INTERFACE], check=True)


FILES: Final = (
    Restore("open-failed", file_gone, says="{workdir}/file is missing"),
    Restore("open-failed", directory_gone, says="{workdir}/cwd is missing"),
    Restore("open-refused", file_is_directory, says="{workdir}/file cannot be opened: Is a directory"),
    Restore("bad-size", file_shorter, says="{workdir}/file has 1 bytes, the checkpoint expects 4"),
    Restore("bad-mode", file_has_other_mode, says="{workdir}/file has mode 0600; at the checkpoint it had 0644"),
    Restore("bad-kind", directory_is_file, says="{workdir}/cwd is not the kind of file that it was"),
    Restore("bad-build", other_build, NOTHING, "{workdir}/python was replaced", copied=True),
    Restore("file-position", file_is_pipe),
    Restore("fifo", pipe_gone, says="{workdir}/fifo cannot be opened"),
    Restore("pipe-size", pipe_is_file),
    Restore("lease", lease_refused, "lease", options=("--file-locks",)),
    Restore("unix-bind", sockets_gone, says="{workdir}/sockets/listener cannot be bound"),
    Restore("address", port_taken),
    Restore("terminal-number", terminals_taken, says="terminal /dev/pts/"),
    Restore(
        "unix-connect",
        nothing,
        "unix_sends_outside",
        options=("--ext-unix-sk",),
        dumped=("--ext-unix-sk",),
        beside=receiver,
    ),
    Restore("interface-missing", nothing, "bound_to_interface", beside=interface),
    Restore("packet-interface", nothing, "packets_of_interface", beside=interface),
)
NUMBERS: Final = (
    Restore("fork-pid", pid_taken, says="PID {pid} is taken"),
    Restore("thread-taken", thread_taken),
    Restore("pid-limit", number_above_limit, NOTHING),
    Restore(
        "pidns-outside",
        nothing,
        NOTHING,
        "key",
        dumped=("--external", "pid[{pidns}]:key"),
        within=("unshare", "--pid", "--fork", *BEHIND_SHELL),
        depth=2,
    ),
    Restore(
        "netns-outside",
        nothing,
        NOTHING,
        "key",
        dumped=("--external", "net[{netns}]:key", *NO_LOCK),
        within=("unshare", "--net"),
    ),
    Restore("root-needed", nothing, NOTHING, within=OWN_MOUNTS),
    Restore("root-needed", nothing, NOTHING, options=("--mntns-compat-mode",), within=OWN_MOUNTS),
    Restore("tcp-established", nothing, "tcp_pair", dumped=("--tcp-established", "--network-lock", "skip")),
    Restore("cpu", other_cpu, NOTHING, options=("--cpu-cap=cpu",), dumped=("--cpu-cap=cpu",)),
    Restore("capabilities", nothing, NOTHING, under=without("sys_ptrace")),
    Restore("socket-option-again", nothing, NOTHING, under=without("net_admin")),
    Restore("no-privileges", nothing, NOTHING, under=NOBODY),
    Restore("out-of-memory", nothing, NOTHING, under=("prlimit", "--as=20000000")),
    Restore("open-files", nothing, NOTHING, under=("prlimit", "--nofile=100:100")),
)
IMAGES: Final = (
    Restore("images-damaged", no_image("core"), NOTHING),
    Restore("images-damaged", no_image("inventory"), NOTHING),
    Restore("images-damaged", cut("core"), NOTHING),
    Restore("images-damaged", cut("files"), NOTHING),
    Restore("images-damaged", no_image("files")),
    Restore("crashed-later", no_image("mm"), NOTHING, "a process crashed"),
    Restore("pages-cut", no_image("pages"), NOTHING),
    Restore("image-kind", other_magic, NOTHING, "core-{pid}.img is not the kind of image"),
    Restore("images-version", in_inventory("newer", lambda x: x + b"\x08\x63"), NOTHING, "version 99"),
    Restore("uprobes-flag", in_inventory("uprobes", lambda x: x + b"\x70\x01"), NOTHING),
    Restore("images-arch", other_machine, NOTHING),
)
OPTIONS: Final = (
    Restore("inherit-syntax", nothing, NOTHING, "value nonsense of", ("--inherit-fd", "nonsense")),
    Restore("inherit-closed", nothing, NOTHING, "descriptor 77", ("--inherit-fd", "fd[77]:tmp/x")),
    Restore("join-namespace", nothing, NOTHING, options=("--join-ns", "net:/nonexistent")),
    Restore("lazy-server", nothing, NOTHING, options=("--lazy-pages",)),
    Restore("pid-file", nothing, NOTHING, "create the PID file /nonexistent/pid", ("--pidfile", "/nonexistent/pid")),
    Restore("script", nothing, NOTHING, options=("--action-script", "/bin/false")),
)
RESTORES: Final = (*FILES, *NUMBERS, *IMAGES, *OPTIONS)
