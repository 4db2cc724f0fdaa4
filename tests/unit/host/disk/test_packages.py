"""Packages of this system's own files, and a log of dpkg as it wrote one."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from crckpt.host.disk import packages

LOG = """2026-01-02 03:04:05 startup archives unpack
2026-01-02 03:04:05 upgrade libc6:amd64 2.41-4 2.41-5
2026-01-02 03:04:06 status half-configured libc6:amd64 2.41-4
2026-01-02 03:04:07 upgrade libc6-dev:amd64 2.40 2.41-5
2026-01-03 10:00:00 install nginx:amd64 <none> 1.26
2026-01-04 10:00:00 upgrade libc6:amd64 2.41-5 2.42-1
2026-01-05 10:00:00 remove nginx:amd64 1.26 <none>
"""


def local(day: int, hour: int = 0, minute: int = 0, second: int = 0) -> datetime:
    return datetime(2026, 1, day, hour, minute, second).astimezone(UTC)


def test_first_upgrade_of_a_package_after_a_time_is_found() -> None:
    """The program had mapped the version before the first change."""
    assert packages.first_change(LOG, "libc6:amd64", local(1)) == (local(2, 3, 4, 5), "2.41-4")
    assert packages.first_change(LOG, "libc6", local(3)) == (local(4, 10), "2.41-5")
    assert packages.first_change(LOG, "libc6:amd64", local(5)) is None
    assert packages.first_change(LOG, "nginx:amd64", local(1)) == (local(3, 10), "")
    assert packages.first_change("", "libc6", local(1)) is None


def test_upgrade_of_a_package_within_the_same_second_counts_as_later() -> None:
    """The log has no fractions of a second, and the caller knows that the file changed after that time."""
    half = local(2, 3, 4, 5) + timedelta(milliseconds=500)
    found = packages.first_change(LOG, "libc6", half)
    assert found is not None
    assert found[1] == "2.41-4"
    assert packages.first_change(LOG, "libc6", half + timedelta(seconds=1)) == (local(4, 10), "2.41-5")


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="no dpkg here")
def test_packages_of_system_files_are_found() -> None:
    """Programs map files below /usr, which a package may list without /usr."""
    # Not of this process: Python may have a libc of its own.
    maps = subprocess.run(["/usr/bin/cat", "/proc/self/maps"], capture_output=True, text=True, check=True).stdout
    libc = next(words[5] for words in map(str.split, maps.splitlines()) if words[-1].endswith("/libc.so.6"))
    nobodys = "/usr/lib/of-no-package"
    found = packages.find_packages([libc, "/usr/bin/dpkg", nobodys], datetime.now(UTC))
    assert {path: package.name for path, package in found.items()} == {libc: "libc6", "/usr/bin/dpkg": "dpkg"}
    shown = subprocess.run(["dpkg-query", "-W", "-f=${Version}", "libc6"], capture_output=True, text=True, check=True)
    assert found[libc].version == shown.stdout
    assert found[libc].since < datetime.now(UTC)
    assert found[libc].before == ""
