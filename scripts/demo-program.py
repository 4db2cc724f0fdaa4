"""The program of scripts/demo: parent, child and threads that count together, and memory that must not change.

Every count travels parent -> pipe -> child -> socket pair -> parent -> thread -> open file. So the count continues only
if a restore brought back each of them.
"""

import hashlib
import os
import queue
import random
import socket
import sys
import threading
from pathlib import Path

MEBIBYTE = 1 << 20


def main(work: Path) -> None:
    """Count for ever; write counter and checksum to `work`/status."""
    os.closerange(3, 1024)  # descriptors that the shell left open
    memory = random.Random(1).randbytes(16 * MEBIBYTE)  # noqa: S311 - recognisable content, not a secret
    down_read, down_write = os.pipe()
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        while line := os.read(down_read, 64):
            theirs.sendall(line)
        return
    counts: queue.Queue[int] = queue.Queue()
    threading.Thread(target=keep_log, args=(work / "log", counts), daemon=True).start()
    (work / "pid").write_text(str(os.getpid()))
    count = 0
    while True:
        count += 1
        os.write(down_write, str(count).encode())
        counts.put(int(ours.recv(64)))
        checksum = hashlib.sha256(memory).hexdigest()[:16]
        say(work / "status", f"counter {count:4}   memory {checksum}   parent {os.getpid()}, child and thread answer\n")
        threading.Event().wait(0.2)


def keep_log(path: Path, counts: "queue.Queue[int]") -> None:
    """Overwrite the first line of an open file with each count."""
    with path.open("w", buffering=1) as log:
        while True:
            log.seek(0)
            log.write(f"{counts.get():8}\n")


def say(path: Path, text: str) -> None:
    """Replace the status atomically, so that a reader never sees half of it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
