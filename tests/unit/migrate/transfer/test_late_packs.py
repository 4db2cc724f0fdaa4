"""Packs that the destination reads while its tree runs: only what was offered, and not more than it takes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from connections import DIGEST, half_connected, in_thread, message_frame
from memory_backend import MemoryBackend

from crckpt.migrate.transfer.send_packs import serve_reads
from crckpt.migrate.wire.connection import ProtocolError
from crckpt.migrate.wire.messages import MOST_READ, Read, Stored
from crckpt.model import PackId
from crckpt.store.layout import pack_name


@pytest.mark.parametrize("size", [MOST_READ, 0])
def test_peer_that_reads_no_answers_uses_bounded_memory(tmp_path: Path, size: int) -> None:
    backend = MemoryBackend(tmp_path)
    backend.put(pack_name(PackId(DIGEST)), bytes(1 << 20), "pack")
    with half_connected() as (source, _, writes):
        serve_reads(source, backend, {DIGEST})
        wanted = message_frame(Read(1, DIGEST, 0, size))

        def ask() -> None:
            # Nobody reads any more once the connection is over.
            with suppress(OSError):
                while True:
                    writes.write(wanted)

        thread = in_thread(ask)
        with pytest.raises(ProtocolError, match="more messages Read without reading the answers"):
            source.receive(Stored)
        frames, queued = source.queued
        assert frames <= 4097
        assert queued <= 33 * MOST_READ
        source.close()
        # Before its descriptor is closed, whose number may be given again.
        thread.join()


def test_pack_that_was_not_offered_is_not_read(tmp_path: Path) -> None:
    backend = MemoryBackend(tmp_path)
    backend.put(pack_name(PackId(DIGEST)), b"secret", "pack")
    with half_connected() as (source, _, writes):
        serve_reads(source, backend, frozenset())
        writes.write(message_frame(Read(1, DIGEST, 0, 6)))
        with pytest.raises(ProtocolError, match="which was not offered"):
            source.receive(Stored)
