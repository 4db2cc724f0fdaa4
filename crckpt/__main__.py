"""The command `crckpt`. `--version` is answered without importing what the commands need."""

from __future__ import annotations

import sys

from crckpt.errors import Interrupted
from crckpt.host.signals import interruptible


def main() -> None:
    """Run the command line and exit."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from crckpt.ops.version import version

        sys.stdout.write(version() + "\n")
        return
    # Before the imports that take their time: an interruption always ends in a sentence.
    interruptible()
    try:
        from crckpt.cli.app import run

        sys.exit(run(sys.argv[1:]))
    except Interrupted as error:
        sys.stderr.write(f"crckpt: {error.message}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
