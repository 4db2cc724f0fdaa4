"""The command `crckpt`. `--version` is answered without importing what the commands need."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

from crckpt.errors import Interrupted

# What a command reads (ten thousand manifests) stays until it ends. To look through it again and again for garbage
# cycles, of which there are next to none, takes longer than the reading.
_ALLOCATIONS_BETWEEN_COLLECTIONS = 1_000_000


def main() -> NoReturn:
    """Run the command line and exit."""
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
    # numpy starts threads and takes memory for linear algebra, of which there is none.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.argv[1:] in (["--version"], ["-V"]):
        from crckpt.ops.version import version

        sys.stdout.write(version() + "\n")
        sys.exit(0)
    from crckpt.host.signals import interruptible

    # Before the imports that take their time: an interruption always ends in a sentence.
    interruptible()
    try:
        from crckpt.cli.app import run

        code = run(sys.argv[1:])
    except Interrupted as error:
        sys.stderr.write(f"crckpt: {error.message}\n")
        code = error.exit_code
    sys.stderr.flush()
    # All is done and said. To take itself apart, object by object, takes Python longer than many a command.
    os._exit(code)


if __name__ == "__main__":
    main()
