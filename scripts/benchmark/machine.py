"""What the numbers were seen on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from benchmark.setting import Setting
from crckpt.criu.trial import version_of


def described(setting: Setting) -> dict[str, str]:
    """Kernel, cores, memory, CRIU, and the disk of the work directory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return {
        "machine": f"{_cpu()}, {cores} cores, {memory:.0f} GiB, Linux {platform.release()}",
        "CRIU": f"{version_of(setting.criu)} ({setting.criu})",
        "disk": _disk(setting.work),
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _disk(path: Path) -> str:
    """File system, device, and what the kernel says of the device."""
    status = path.stat()
    number = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == number:
            kind, source = rest.split()[:2]
            queue = Path(f"/sys/dev/block/{number}/queue/rotational")
            spins = queue.exists() and queue.read_text().strip() == "1"
            return f"{path} on {kind}, {source}" + (", rotating" if spins else "")
    return f"{path} on device {number}"
