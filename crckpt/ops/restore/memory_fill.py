"""Fill the memory of a restored tree in the hold, and check that all its tasks live."""

from __future__ import annotations

from crckpt.errors import NOTHING_LEFT, RestoreFailed
from crckpt.host import proc
from crckpt.images.core import ZOMBIE
from crckpt.images.tree import ImageTree
from crckpt.ops.restore.images import ImageStreams


def fill_memory(tree: ImageTree, init: int | None, images: ImageStreams | None) -> None:
    """In the hold: write the memory that CRIU did not get. All tasks must live before and after that.

    The tree is in our PID namespace, or in that of the process `init`. `images` is None if CRIU reads files: these
    contain all memory. Raises RestoreFailed, IntegrityError, OSError.
    """
    living = [process for process in tree.processes if process.state != ZOMBIE]
    tasks = ((process.pid, thread.tid) for process in living for thread in process.threads)
    if missing := proc.find_ended_tasks(tasks, init):
        raise RestoreFailed(f"CRIU did not restore these processes: {_join(missing)}", state=NOTHING_LEFT)
    if images is None:
        return
    images.fill(init)
    # Filling takes time. If a task was killed during it, CRIU would wait for the task forever, or crash.
    if ended := proc.find_ended_tasks(((process.pid, process.pid) for process in living), init):
        raise RestoreFailed(
            f"PID {_join(ended)} ended while crckpt filled its memory",
            state=NOTHING_LEFT,
            hint="check whether memory ran out (journalctl -k -g oom); then try again",
        )


def _join(numbers: tuple[int, ...]) -> str:
    return ", ".join(str(number) for number in numbers)
