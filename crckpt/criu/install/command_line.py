"""The command line of scripts/install-criu, which has no other packages yet."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Final

from crckpt.criu import install
from crckpt.criu.install.install import InstallRequest, install_criu, parse_candidates
from crckpt.criu.install.prefix import default_prefix
from crckpt.errors import CrckptError, UsageError

_COMMAND: Final = "scripts/install-criu"
_DESCRIPTION: Final = f"""{install.__doc__}
The path of the CRIU is the last line of stdout; all else goes to stderr.
Exit status: 0 found, 2 usage, 20 no CRIU works here.
"""


def main() -> int:
    """Install CRIU as the command line says; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=_COMMAND, description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prefix", type=Path, default=default_prefix(), help="the private prefix (%(default)s)")
    parser.add_argument("--mirror", help="a Debian mirror, if this machine's apt has none")
    parser.add_argument("--build", action="store_true", help="if nothing else works, build from source")
    parser.add_argument("--try", dest="candidates", metavar="NAME,...", help="try only these candidates, in this order")
    options = parser.parse_args()
    try:
        candidates = parse_candidates(options.candidates, build=options.build)
    except UsageError as error:
        parser.error(error.message)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # through every clean-up
    try:
        criu = install_criu(InstallRequest(options.prefix.absolute(), options.mirror, candidates, _COMMAND), _say)
    except CrckptError as error:
        _say(error.message)
        _say(f"  next: {error.hint}")
        return error.exit_code
    sys.stdout.write(f"{criu.path}\n")
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
