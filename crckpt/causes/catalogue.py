"""All causes together. Pure."""

from __future__ import annotations

from crckpt.causes.attributes import ATTRIBUTES
from crckpt.causes.bugs import BUGS
from crckpt.causes.cgroups import CGROUPS
from crckpt.causes.criu_parts import SURE_PARTS, UNSURE_PARTS
from crckpt.causes.descriptors import DESCRIPTORS
from crckpt.causes.engine_refusals import REFUSALS
from crckpt.causes.engines import OUTER, STARTS
from crckpt.causes.fallback import AREAS, GENERAL, STEPS, UNFIT, VAGUE, WARNED, WIDE_AREAS
from crckpt.causes.files import FILES
from crckpt.causes.images import IMAGES
from crckpt.causes.memory import MEMORY
from crckpt.causes.mounts import MOUNTS
from crckpt.causes.moves import MOVES
from crckpt.causes.namespaces import NAMESPACES
from crckpt.causes.network import NETWORK
from crckpt.causes.other_programs import OUTSIDE
from crckpt.causes.pids import RESTORED
from crckpt.causes.pipes import PIPES
from crckpt.causes.rehearsal import REHEARSAL
from crckpt.causes.releases import OLD_CRIU
from crckpt.causes.requirements import NEEDS
from crckpt.causes.resource_limits import EXHAUSTED
from crckpt.causes.security import SECURITY
from crckpt.causes.sockets import SOCKETS
from crckpt.causes.space import SPACE
from crckpt.causes.tasks import TASKS
from crckpt.causes.terminals import TERMINALS
from crckpt.causes.transient import EARLIER, PASSING, SILENT
from crckpt.causes.virtual_machines import VIRTUAL_MACHINES

__all__ = [
    "AREAS",
    "BUGS",
    "CATALOGUE",
    "CAUSE_BY_KEY",
    "EARLIER",
    "ENGINES",
    "GENERAL",
    "OUTER",
    "OUTSIDE",
    "PASSING",
    "SILENT",
    "SPECIFIC",
    "STEPS",
    "UNFIT",
    "UNSURE_PARTS",
    "VAGUE",
    "WARNED",
    "WIDE_AREAS",
]

ENGINES = (*STARTS, *REFUSALS, *VIRTUAL_MACHINES)
"""They count only if CRIU's own log has no cause."""
_SUBJECTS = (
    *EXHAUSTED,
    *MEMORY,
    *FILES,
    *DESCRIPTORS,
    *PIPES,
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
    *SURE_PARTS,
)
SPECIFIC = tuple(entry for entry in _SUBJECTS if entry.pattern)
"""The causes of one subject that CRIU's log names. The others are found before a dump or a restore."""
CATALOGUE = (
    *SPACE,
    *REHEARSAL,
    *NEEDS,
    *ATTRIBUTES,
    *MOVES,
    *OUTSIDE,
    *BUGS,
    *_SUBJECTS,
    *PASSING,
    *SILENT,
    *(entry for _, entry in EARLIER),
    *GENERAL,
    *UNSURE_PARTS,
    *ENGINES,
    *VAGUE,
    *UNFIT,
    *WARNED,
    *OUTER,
    OLD_CRIU,
)
CAUSE_BY_KEY = {entry.key: entry for entry in CATALOGUE}
