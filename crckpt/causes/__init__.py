"""The catalogue of what stops a dump or a restore: words and remedies, once, for preflight and explanations. Pure.

`pattern` is what CRIU writes to its log when it meets the cause (source file of CRIU 4.2 beside it); its groups fill
the sentence. A cause without a pattern is seen by the preflight only. No line fits two causes, but that what ran out
(`EXHAUSTED`) comes first, and what the kernel answered (`GENERAL`) counts only where no line has a cause of its own.
"""

from __future__ import annotations

from crckpt.causes.cause import Cause, Finding
from crckpt.causes.cgroups import CGROUPS
from crckpt.causes.descriptors import DESCRIPTORS
from crckpt.causes.exhausted import EXHAUSTED
from crckpt.causes.files import FILES
from crckpt.causes.general import GENERAL
from crckpt.causes.images import IMAGES
from crckpt.causes.memory import MEMORY
from crckpt.causes.mounts import MOUNTS
from crckpt.causes.namespaces import NAMESPACES
from crckpt.causes.network import NETWORK
from crckpt.causes.preflight import PREFLIGHT
from crckpt.causes.restored import RESTORED
from crckpt.causes.security import SECURITY
from crckpt.causes.sockets import SOCKETS
from crckpt.causes.tasks import TASKS
from crckpt.causes.terminals import TERMINALS

__all__ = ["CATALOGUE", "GENERAL", "SPECIFIC", "Cause", "Finding", "cause"]

SPECIFIC = (
    *EXHAUSTED,
    *MEMORY,
    *FILES,
    *DESCRIPTORS,
    *SOCKETS,
    *NETWORK,
    *NAMESPACES,
    *MOUNTS,
    *TERMINALS,
    *TASKS,
    *SECURITY,
    *CGROUPS,
    *RESTORED,
    *IMAGES,
)
CATALOGUE = (*PREFLIGHT, *SPECIFIC, *GENERAL)
_BY_KEY = {entry.key: entry for entry in CATALOGUE}


def cause(key: str) -> Cause:
    """The cause of that key."""
    return _BY_KEY[key]
