"""Find the files of the kernel's own file systems that a live tree has open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.disk.kernel_files import KernelFile, read_kernel_file

_PLACES = ("/proc", "/sys")


class HeldKernelFile(Struct, frozen=True):
    """A file that a process has open as `fd`."""

    pid: int
    fd: int
    file: KernelFile


def find_kernel_files(descriptors: Iterable[proc.Descriptor]) -> Iterator[HeldKernelFile]:
    """Find those below /proc and /sys among the descriptors."""
    for found in descriptors:
        # statfs(2) would wait for ever for some file systems elsewhere.
        if found.target.startswith(_PLACES):
            with suppress(OSError):
                yield HeldKernelFile(found.pid, found.fd, read_kernel_file(found.pid, found.fd, found.flags))
