"""Leave the control group of a login session, or of a unit: systemd may end what is in it when that ends.

Source: systemd.scope(5), KillUserProcesses in logind.conf(5), KillMode in systemd.kill(5). Of ssh without pam_systemd
the session's group is that of the unit of ssh.
"""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host.process import run
from crckpt.host.process.cgroups import read_cgroups
from crckpt.host.process.signals import start_thread

_OF_SYSTEMD: Final = ("", "name=systemd")
_SESSION: Final = re.compile(r".*/(session-[^/]*\.scope|sshd?(@[^/]*)?\.service)(/.*)?")
_UNIT: Final = re.compile(r".*/[^/]*\.(scope|service)(/.*)?")
_MANAGER: Final = (
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
    "StartTransientUnit",
    "ssa(sv)a(sa(sv))",
)
_WITHIN_S: Final = 5.0
_LOOK_S: Final = 0.01


def leave_session(name: str, description: str) -> str:
    """Have systemd move us from a session, if we are in one, to a scope of our own. Return its group if it fails."""
    return _leave(_SESSION, name, description)


def leave_unit(name: str, description: str) -> threading.Thread:
    """As `leave_session`, from any unit, in a thread. Where it fails, we end with the unit."""
    return start_thread(partial(_leave, _UNIT, name, description))


def _leave(left: re.Pattern[str], name: str, description: str) -> str:
    before = _find_group(left)
    if not before:
        return ""
    # Its mode `fail`: a scope of this name belongs to others.
    asked = (f"{name}-{os.getpid()}.scope", "fail", "2")
    properties = ("PIDs", "au", "1", str(os.getpid()), "Description", "s", description)
    with suppress(HostCannot):
        done = run.run(("busctl", "call", *_MANAGER, *asked, *properties, "0"), timeout=_WITHIN_S)
        until = time.monotonic() + _WITHIN_S
        # systemd moves us after its answer.
        while done.ok and _find_group(left) == before and time.monotonic() < until:
            time.sleep(_LOOK_S)
    return before if _find_group(left) == before else ""


def _find_group(of: re.Pattern[str]) -> str:
    """The control group in which we run, if it is one of these; else empty."""
    with suppress(OSError):
        for controllers, path in read_cgroups("self"):
            if controllers in _OF_SYSTEMD and of.fullmatch(path):
                return path
    return ""
