"""store.json: the format of a store and its id."""

from __future__ import annotations

import errno
import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Final

import msgspec
from msgspec import Struct

from crckpt.errors import IntegrityError, StoreUnusable
from crckpt.host.process.typed_command import name_store
from crckpt.model import StoreId
from crckpt.store.backend.directory import make_read_error, prepare_directory
from crckpt.store.backend.local import Backend
from crckpt.store.documents import decode
from crckpt.store.layout import DESCRIPTION

FORMAT: Final = 1

_MOST_BYTES: Final = 64 << 10


def open_directory(root: Path, *, create: bool) -> tuple[Backend, StoreId]:
    """Open the store in the directory `root`; with `create` it is made if nothing is there.

    Raises StoreUnusable if there is none, if its owner or mode or a directory above lets others at it, or if its format
    is newer.
    """
    try:
        prepare_directory(root, new_description() if create else None)
        backend = Backend(root)
        return backend, read_store_id(backend)
    except IntegrityError as error:
        raise StoreUnusable(
            error.message, hint="a store must not contain symbolic links: restore it from a backup"
        ) from error
    except PermissionError as error:
        raise make_read_error(root) from error
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.EROFS):
            raise
        raise StoreUnusable(f"the store {root} cannot be used: {error.strerror}", hint=name_store()) from error


def new_description() -> bytes:
    """Return the store.json of a new store."""
    entries = {
        "format": FORMAT,
        "id": str(uuid.uuid4()),
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
    }
    return json.dumps(entries, sort_keys=True, indent=1).encode() + b"\n"


def read_store_id(backend: Backend) -> StoreId:
    """Read the id in store.json.

    Raises StoreUnusable if it is damaged or of a newer format, IntegrityError if it is no file.
    """
    content, name = backend.read(DESCRIPTION, _MOST_BYTES), f"{backend.location}/{DESCRIPTION}"
    try:
        # First the format alone: a newer one may have other entries.
        found = decode(content, _Format, name).format
        if found == FORMAT:
            return decode(content, _Description, name).id
    except (IntegrityError, msgspec.ValidationError) as error:
        # All else that a store holds describes itself.
        anew = json.dumps({"format": FORMAT, "id": str(uuid.uuid4())})
        raise StoreUnusable(
            f"{name} is damaged",
            hint=f"restore it from a backup; without one: echo '{anew}' > {quote(name)}; "
            f"then: crckpt verify --all --store {quote(backend.location)}",
        ) from error
    raise StoreUnusable(
        f"the store {backend.location} has format {found}; this crckpt knows format {FORMAT}",
        hint=f"use a crckpt that knows store format {found}",
    )


class _Format(Struct):
    format: int


class _Description(Struct):
    id: StoreId
