"""A start from a cold disk: read at once what Python would ask for module after module, and wait for each time.

Whoever has loaded modules for a command notes which, beside the files that Python has compiled them to. The next time
a thread has the disk read these meanwhile, unless the note is in memory: then so are they. A note that others can write
to counts for nothing. As the compiled files it can be made again: it may be deleted, and what is wrong in it costs
nothing.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from crckpt import __version__
from crckpt.host.disk.own_files import open_own, read_own, write_private

PLACE = Path(__file__).parents[1] / "__pycache__"


def read_ahead(command: str, place: Path = PLACE) -> None:
    """Begin to read what was noted for this command, if the disk has to be asked for it."""
    with suppress(OSError, RuntimeError):  # or no thread can be started
        note = open_own(_note(command, place))
        try:
            if not _is_in_memory(note):
                threading.Thread(target=_read, args=(os.dup(note),), daemon=True).start()
        finally:
            os.close(note)


def note(command: str, place: Path = PLACE) -> None:
    """Note which modules are loaded, if they are more than were noted, and Python itself may leave files there."""
    loaded = [str(path) for module in tuple(sys.modules.values()) if (path := getattr(module, "__cached__", None))]
    path = _note(command, place)
    with suppress(OSError):
        before = _noted(path)
        if len(loaded) > len(before) and not sys.dont_write_bytecode:
            beside = path.with_name(f"{path.name}.{os.getpid()}")
            write_private(beside, os.fsencode("\n".join(loaded)))
            beside.replace(path)


def _noted(path: Path) -> list[bytes]:
    """What was noted; nothing where others can have written it, so that it is replaced."""
    try:
        return read_own(path).split(b"\n")
    except OSError:
        return []


def _note(command: str, place: Path) -> Path:
    return place / f"{command}-{__version__}.loaded"


def _is_in_memory(file: int) -> bool:
    try:
        os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    return True


def _read(note: int) -> None:
    with open(note, "rb") as file:
        for path in file.read().split(b"\n"):
            with suppress(OSError, ValueError):
                module = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                os.posix_fadvise(module, 0, 0, os.POSIX_FADV_WILLNEED)
                os.close(module)
