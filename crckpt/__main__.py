"""The command `crckpt`. `--version` is answered without importing what the commands need."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from crckpt.ops.version import version

        sys.stdout.write(version() + "\n")
        return
    from crckpt.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
