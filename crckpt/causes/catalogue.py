"""All causes together. Pure."""

from __future__ import annotations

from crckpt.causes.attributes import ATTRIBUTES
from crckpt.causes.cgroups import CGROUPS
from crckpt.causes.descriptors import DESCRIPTORS
from crckpt.causes.exhausted import EXHAUSTED
from crckpt.causes.files import FILES
from crckpt.causes.general import AREAS, GENERAL, VAGUE, WARNED
from crckpt.causes.images import IMAGES
from crckpt.causes.memory import MEMORY
from crckpt.causes.mounts import MOUNTS
from crckpt.causes.namespaces import NAMESPACES
from crckpt.causes.needs import NEEDS
from crckpt.causes.network import NETWORK
from crckpt.causes.passing import PASSING, SILENT
from crckpt.causes.preflight import PREFLIGHT
from crckpt.causes.restored import RESTORED
from crckpt.causes.security import SECURITY
from crckpt.causes.sockets import SOCKETS
from crckpt.causes.tasks import TASKS
from crckpt.causes.terminals import TERMINALS

__all__ = ["AREAS", "BY_KEY", "CATALOGUE", "GENERAL", "PASSING", "SILENT", "SPECIFIC", "VAGUE", "WARNED"]

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
CATALOGUE = (*PREFLIGHT, *NEEDS, *ATTRIBUTES, *SPECIFIC, *PASSING, *SILENT, *GENERAL, *VAGUE, *WARNED)
BY_KEY = {entry.key: entry for entry in CATALOGUE}
