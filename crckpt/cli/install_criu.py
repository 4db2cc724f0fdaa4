"""`crckpt install-criu`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crckpt.cli import options
from crckpt.cli.help import ADVANCED, WHERE
from crckpt.cli.output import Output, emit, print_progress
from crckpt.criu.install.install import InstallRequest, parse_candidates
from crckpt.criu.install.install import install_criu as perform
from crckpt.criu.install.prefix import default_prefix


def install_criu(
    prefix: Annotated[
        Path | None,
        typer.Option(
            "--prefix",
            metavar="DIR",
            help="Where CRIU is installed.",
            show_default="/usr/local/lib/crckpt/criu; unless you are root, ~/.local/share/crckpt-criu",
            rich_help_panel=WHERE,
        ),
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            "--mirror",
            metavar="URL",
            help="A Debian mirror.",
            show_default="the one that apt uses",
            rich_help_panel=WHERE,
        ),
    ] = None,
    build: Annotated[
        bool,
        typer.Option(
            "--build",
            help="If nothing else works, install compilers and build CRIU from source.",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    candidates: Annotated[
        str | None,
        typer.Option(
            "--try",
            metavar="NAME,...",
            help="Try only these, in this order: path, prefix, sid, testing, stable, build.",
            show_default="all but build",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    as_json: options.AsJson = False,
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
    emit("install-criu", Output(document, iter([f"CRIU {criu.version} works: {criu.path}\n"])), as_json=as_json)
