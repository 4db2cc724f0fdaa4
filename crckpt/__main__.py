"""The command `crckpt`. `--version` is answered without importing what the commands need."""

from __future__ import annotations

import gc
import os
import sys

from crckpt.errors import Interrupted

# What a command reads (ten thousand manifests) stays until it ends. To look through it again and again for garbage
# cycles, of which there are next to none, takes longer than the reading.
_ALLOCATIONS_BETWEEN_COLLECTIONS = 1_000_000


def main() -> None:
    """Run the command line and exit."""
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
    # numpy starts threads and takes memory for linear algebra, of which there is none.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.argv[1:] in (["--version"], ["-V"]):
        from crckpt.ops.version import version

        sys.stdout.write(version() + "\n")
        return
    from crckpt.host.signals import interruptible

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
