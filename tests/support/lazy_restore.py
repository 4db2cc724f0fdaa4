"""Restore a checkpoint lazily, with a helper whose background waits: only what the program touches is filled.

Run as `lazy_restore.py STORE REF GATE [OPTION...]`, it prints the PIDs of the root, of the helper and of its guard as
JSON. The background waits until the file GATE exists. With `hot` the program wrote all packs last. `descriptors=N` lets
the helper have so many, `seconds=N` lets it fill children so long. Run as `lazy_restore.py helper GATE [OPTION...]
DESCRIPTORS`, it is that helper.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from crckpt.ops.context import Context
from crckpt.ops.lazy import server
from crckpt.ops.lazy.address_space import FilledSpace
from crckpt.ops.lazy.client import Filler
from crckpt.ops.restore.request import RestoreRequest
from crckpt.ops.restore.restore import restore


def restore_lazily(store: Path, ref: str, gate: str, *options: str) -> None:
    """Restore, and print who does what."""
    context = Context(store)
    filler = Filler((sys.executable, __file__, "helper", gate, *(each for each in options if "=" in each)))
    try:
        if "hot" in options:
            repository = context.repository()
            filler.hot = frozenset(use.digest for use in repository.get(repository.resolve(ref)).packs)
        done = restore(RestoreRequest(ref, detach=True), context, filler=filler)
    finally:
        filler.close()
    sys.stdout.write(json.dumps({"root": done.pid, "helper": sorted(filler.tids)}))


def help_gated(gate: Path, *words: str) -> None:
    """Be the helper."""
    options = dict(word.split("=") for word in words if "=" in word)
    if "descriptors" in options:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(options["descriptors"]),) * 2)
    if "seconds" in options:
        vars(server).update(_CHILDREN_S=float(options["seconds"]), _CHILDREN_TIMES=0)
    fill = FilledSpace.fill_next

    def wait_and_fill(space: FilledSpace) -> bool:
        while not gate.exists():
            time.sleep(0.005)
        return fill(space)

    FilledSpace.fill_next = wait_and_fill  # type: ignore[assignment,method-assign]
    server.main(*(word for word in words if "=" not in word))


if __name__ == "__main__":
    if sys.argv[1] == "helper":
        help_gated(Path(sys.argv[2]), *sys.argv[3:])
    else:
        restore_lazily(Path(sys.argv[1]), *sys.argv[2:])
