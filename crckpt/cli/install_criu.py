"""`crckpt install-criu`."""

from __future__ import annotations

from pathlib import Path

from crckpt.cli import options
from crckpt.cli.help import ADVANCED, WHERE
from crckpt.cli.output import emit, print_progress
from crckpt.criu.install.install import InstallRequest, parse_candidates
from crckpt.criu.install.install import install_criu as perform
from crckpt.criu.install.machine import default_prefix


def install_criu(
    prefix: Path | None = options.option(
        "--prefix DIR",
        "Where CRIU is installed.",
        WHERE,
        shown="/usr/local/lib/crckpt/criu; unless you are root, ~/.local/share/crckpt-criu",
    ),
    mirror: str | None = options.option("--mirror URL", "A Debian mirror.", WHERE, shown="the one that apt uses"),
    build: bool = options.flag(
        "--build", "If nothing else works, install compilers and build CRIU from source.", ADVANCED
    ),
    candidates: str | None = options.option(
        "--try NAME,...",
        "Try only these, in this order: path, prefix, sid, testing, stable, build.",
        ADVANCED,
        shown="all but build",
    ),
) -> None:
    """Find a CRIU that works on this kernel, or download one from Debian.

    crckpt trusts no version: it dumps and restores a small process with each candidate, and takes the first that works.
    What it downloads it unpacks, with all its libraries, into a directory of its own. Unless you use **--build**, it
    installs, changes and compiles no package of this machine.
    """
    names = parse_candidates(candidates, build=build)
    request = InstallRequest((prefix or default_prefix()).absolute(), mirror, names)
    criu = perform(request, print_progress)
    document = {**criu._asdict(), "rejected": [{"candidate": name, "why": why} for name, why in criu.rejected]}
    emit(document, f"CRIU {criu.version} works: {criu.path}\n")
