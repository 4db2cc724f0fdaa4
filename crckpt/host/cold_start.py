"""Read the modules of a command ahead when the disk is cold. Python would wait for one after the other.

Each command notes which modules it has loaded, next to Python's compiled files. At the next start a thread reads them,
unless the note is in the page cache: then the modules are, too. A note may be deleted, and an error in it is harmless;
one that others can write to is ignored.

Needed for the bound of `scripts/bench restore` on a cold disk, 1.0 times bare CRIU: that restores 256 MB in 0.73 s from
a disk of 500 MiB/s. With a cold cache `crckpt list` takes 0.28 s, and 0.47 s without this (medians of 7 runs in turn).
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from crckpt import __version__
from crckpt.host.disk.own_files import open_own, read_own, write_private

# The notes are next to the compiled files: where Python cannot write those, there is nothing to read ahead.
PLACE = Path(__file__).parents[1] / "__pycache__"


def read_ahead(command: str, place: Path = PLACE) -> None:
    """Start to read the modules of this command, unless they are in the page cache."""
    with suppress(OSError, RuntimeError):  # RuntimeError: no thread can be started
        note = open_own(_note(command, place))
        try:
            # preadv2(2), Linux 4.14: it fails with EAGAIN instead of waiting for the disk.
            os.preadv(note, [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            threading.Thread(target=_read_modules, args=(os.dup(note),), daemon=True).start()
        finally:
            os.close(note)


def note(command: str, place: Path = PLACE, *, may_write: bool = not sys.dont_write_bytecode) -> None:
    """Note which modules are loaded, if they are more than noted before. `may_write`: Python may leave such files."""
    loaded = [str(path) for module in tuple(sys.modules.values()) if (path := getattr(module, "__cached__", None))]
    path = _note(command, place)
    with suppress(OSError):
        before: list[bytes] = []
        with suppress(OSError):  # others can write to it: then it is replaced
            before = read_own(path).split(b"\n")
        # Rename it into place, because another command may read the note at this moment.
        if len(loaded) > len(before) and may_write:
            temporary = path.with_name(f"{path.name}.{os.getpid()}")
            write_private(temporary, os.fsencode("\n".join(loaded)))
            temporary.replace(path)


def _note(command: str, place: Path) -> Path:
    return place / f"{command}-{__version__}.loaded"


def _read_modules(note: int) -> None:
    with open(note, "rb") as file:
        for path in file.read().split(b"\n"):
            with suppress(OSError, ValueError):  # the module was removed, or the note is damaged (a zero byte)
                module = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                os.posix_fadvise(module, 0, 0, os.POSIX_FADV_WILLNEED)
                os.close(module)
