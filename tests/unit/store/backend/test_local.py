"""A store in a directory of this host; what every backend does is in tests/contract."""

from __future__ import annotations

import threading
from pathlib import Path

from crckpt.store.backend.local import disk_usage


def test_disk_usage_of_a_directory_that_changes_is_measured_without_error(tmp_path: Path) -> None:
    """gc may measure a directory in which an orphaned CRIU still writes."""
    (tmp_path / "stays").write_bytes(b"x" * 5000)
    usual = disk_usage(tmp_path)
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            for number in range(20):
                (tmp_path / str(number)).touch()
            for number in range(20):
                (tmp_path / str(number)).unlink()

    writer = threading.Thread(target=come_and_go)
    writer.start()
    try:
        found = {disk_usage(tmp_path) for _ in range(200)}
    finally:
        over.set()
        writer.join()
    assert usual >= 5000
    assert found == {usual}
