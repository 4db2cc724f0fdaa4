"""/proc/PID/status and /proc/PID/task/TID/status. Source: proc_pid_status(5)."""

from __future__ import annotations

from contextlib import suppress

from crckpt.host.proc import procfs


def read_status(pid: int | str, tid: int | None = None) -> dict[str, str]:
    """Read the status of a process or of one thread: name of a field -> its text. Raises OSError."""
    task = f"/proc/{pid}" if tid is None else f"/proc/{pid}/task/{tid}"
    lines = (line.partition(":") for line in procfs.lines(f"{task}/status"))
    return {name: text.strip() for name, found, text in lines if found}


def read_bytes(pid: int, name: str) -> int:
    """A field that counts kB, in bytes. 0 if the process has ended, or the kernel has no such field."""
    with suppress(OSError):
        return int(read_status(pid).get(name, "0").split()[0]) << 10
    return 0


def tracer(pid: int, tid: int) -> int:
    """PID of the process that traces a thread; 0 if there is none. Raises OSError."""
    return int(read_status(pid, tid).get("TracerPid", "0"))


def inner_tid(pid: int, tid: int) -> int:
    """The number of a thread in its own PID namespace. Raises OSError."""
    return int(read_status(pid, tid)["NSpid"].split()[-1])


def read_shared_memory(pid: int) -> int:
    """Bytes of shared memory that is in no file, and that a process has touched. 0 if it has ended."""
    return read_bytes(pid, "RssShmem")


def huge_pages(pid: int) -> int:
    """Bytes of a process's huge pages that were set aside (hugetlb). 0 if it has ended."""
    return read_bytes(pid, "HugetlbPages")


def effective_capabilities(pid: int | str = "self") -> frozenset[int]:
    """The effective capabilities of a process, as numbers (linux/capability.h)."""
    # Being root is not enough: in a container, root lacks most of them.
    mask = int(read_status(pid).get("CapEff", "0"), 16)
    return frozenset(bit for bit in range(64) if mask >> bit & 1)


def tracers(pid: int) -> tuple[tuple[int, int], ...]:
    """(thread id, PID of its tracer) of the threads of a process that are traced, except its first."""
    found = []
    for tid in procfs.living_threads(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            if tid != pid and (traced_by := tracer(pid, tid)):
                found.append((tid, traced_by))
    return tuple(found)
