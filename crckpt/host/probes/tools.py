"""Check for the programs and services that crckpt needs."""

from __future__ import annotations

import platform
import re
import shutil
from pathlib import Path

from crckpt.host.probes.outcome import Outcome, missing, ok
from crckpt.host.process import run

# flock: in the hold's shell script. unshare, nsenter: for new PID namespaces and trees that have their own.
_NEEDED = ("flock", "unshare", "nsenter")
_PROGRAM_S = 3
_GPUS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
# CRIU's help has the directory that it was built with.
_PLUGINS = re.compile(r"--libdir\s.*?by default (\S+?)\)", re.DOTALL)


def kernel() -> Outcome:
    """Name the kernel. The other facts say what it can do."""
    return ok(f"{platform.release()} on {platform.machine()}")


def criu_plugins(criu: Path | None) -> Outcome:
    """Find the directory of this CRIU's plugins, and list them."""
    lost = "programs that use a GPU cannot be checkpointed; others do not need plugins"
    if criu is None:
        return missing("CRIU is not installed", lost, "crckpt install-criu")
    found = _PLUGINS.search(run.run([criu, "--help"], timeout=_PROGRAM_S).output)
    if found is None:
        return missing(f"{criu} --help names no directory of plugins", lost)
    directory = Path(found[1])
    names = sorted(path.name for path in directory.glob("*.so"))
    if not names:
        return missing(f"no CRIU plugins in {directory}", lost, f"install the GPU's CRIU plugin into {directory}")
    return ok(f"{', '.join(names)} in {directory}")


def has_gpu() -> bool:
    """Return whether this host has a GPU that a plugin of CRIU is for: NVIDIA's or AMD's."""
    return any(device.exists() for device in _GPUS)


def util_linux() -> Outcome:
    """Find the programs of util-linux that crckpt needs."""
    lacking = [tool for tool in _NEEDED if shutil.which(tool, path=run.ENVIRONMENT["PATH"]) is None]
    if lacking:
        lost = "crckpt cannot use PID namespaces; if it was installed without a C compiler, it cannot restore"
        return missing(f"not installed: {', '.join(lacking)}", lost, "apt-get install util-linux")
    return ok(f"{', '.join(_NEEDED)} are installed")


def systemd() -> Outcome:
    """Check whether systemd runs this host. Source: sd_booted(3)."""
    if Path("/run/systemd/system").is_dir():
        return ok("systemd runs this host")
    return missing("systemd does not run here", "unit:NAME does not work; name a process by its PID")


def ssh() -> Outcome:
    """Start the program that copies checkpoints to other hosts."""
    tool = shutil.which("ssh", path=run.ENVIRONMENT["PATH"])
    lost = "none on crckpt; you cannot copy checkpoints to another host by ssh"
    if tool is None:
        return missing("ssh is not installed", lost, "apt-get install openssh-client")
    said = run.run([tool, "-V"], timeout=_PROGRAM_S)
    if not said.ok:
        return missing(f"{tool} does not start", lost, "apt-get install --reinstall openssh-client")
    return ok(said.output.strip())
