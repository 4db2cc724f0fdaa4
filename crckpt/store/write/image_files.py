"""Open image files, which may come from elsewhere: open once, check, then read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from crckpt.host.disk.checked_files import open_checked, read_checked
from crckpt.images.pagemap import is_pagemap

# The largest size of an image that is read as a whole: `files.img` of more than a million files.
_MOST: Final = 256 << 20

# The same of a page map, then of 64 million entries, and of a deleted file, which has its content.
_MOST_LARGE: Final = 1 << 30


@contextmanager
def opened_image(path: Path) -> Iterator[int]:
    """Open an image file, and yield its descriptor. Raises IntegrityError, OSError."""
    # It must belong to root, to the user of this process, or to the owner of its directory: unpacking an archive gives
    # both the same owner.
    descriptor = open_checked(path, None, owner=path.parent.stat().st_uid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_image_file(path: Path) -> bytes:
    """Read an image as a whole. Raises what `opened_image` raises, and IntegrityError if it is too large."""
    is_large = is_pagemap(path.name) or path.name.startswith("ghost-file-")
    return read_checked(path, _MOST_LARGE if is_large else _MOST, owner=path.parent.stat().st_uid)
