"""Leave the control group of a login session: systemd may end what is in it, when the session ends.

Source: systemd.scope(5), KillUserProcesses in logind.conf(5). Of ssh without pam_systemd it is the group of ssh's unit.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host.proc.cgroup import read_cgroups
from crckpt.host.process import run

_OF_SYSTEMD: Final = ("", "name=systemd")
_SESSION: Final = re.compile(r".*/(session-[^/]*\.scope|sshd?(@[^/]*)?\.service)(/.*)?")
_MANAGER: Final = (
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
    "StartTransientUnit",
    "ssa(sv)a(sa(sv))",
)
_WITHIN_S: Final = 5.0
_LOOK_S: Final = 0.01


def find_session() -> str:
    """Find the control group of the login session in which we run; empty if it is none."""
    with suppress(OSError):
        for controllers, path in read_cgroups("self"):
            if controllers in _OF_SYSTEMD and _SESSION.fullmatch(path):
                return path
    return ""


def leave_session(name: str, description: str) -> str:
    """Have systemd move us to a scope of our own, if we are in a session; our children will be there, too.

    Return the group of the session if that fails; else nothing.
    """
    if not find_session():
        return ""
    # Its mode `fail`: a scope of this name belongs to others.
    asked = (f"{name}-{os.getpid()}.scope", "fail", "2")
    properties = ("PIDs", "au", "1", str(os.getpid()), "Description", "s", description)
    with suppress(HostCannot):
        done = run.run(("busctl", "call", *_MANAGER, *asked, *properties, "0"), timeout=_WITHIN_S)
        until = time.monotonic() + _WITHIN_S
        # systemd moves us after its answer.
        while done.ok and find_session() and time.monotonic() < until:
            time.sleep(_LOOK_S)
    return find_session()
