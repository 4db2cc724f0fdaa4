"""All causes, and which of them count when. Pure."""

from __future__ import annotations

from typing import Final

from crckpt.causes.finding import Cause
from crckpt.causes.table import read_tables

SECTIONS: Final = {section.name: section for section in read_tables()}
CATALOGUE: Final = tuple(cause for section in SECTIONS.values() for cause in section.causes)
CAUSE_BY_KEY: Final = {cause.key: cause for cause in CATALOGUE}


def _causes_of(*sections: str) -> tuple[Cause, ...]:
    """Return the causes of these sections that CRIU's log names. The others are found before a dump or a restore."""
    return tuple(cause for name in sections for cause in SECTIONS[name].causes if cause.pattern)


OF_FILES: Final = frozenset(cause.key for cause in SECTIONS["changed-files"].causes)
"""Keys of a restore's check of files, which a move has in other words."""

OUTSIDE: Final = _causes_of("outside")
BUGS: Final = _causes_of("bugs")
EXHAUSTED: Final = _causes_of("exhausted")
SPECIFIC: Final = (
    *EXHAUSTED,
    *_causes_of("memory", "files", "descriptors", "pipes", "sockets", "network", "namespaces", "mounts", "terminals"),
    *_causes_of("tasks", "security", "cgroups", "pids", "images"),
    *(part for part in _causes_of("parts") if part.sure),
)
PASSING: Final = _causes_of("passing")
EARLIER: Final = _causes_of("earlier")
SILENT: Final = _causes_of("silent")
GENERAL: Final = _causes_of("general")
UNSURE_PARTS: Final = tuple(part for part in _causes_of("parts") if not part.sure)
ENGINES: Final = _causes_of("engines", "refusals", "java")
VAGUE: Final = _causes_of("vague")
UNFIT: Final = _causes_of("unfit")
WARNED: Final = _causes_of("warned")
OUTER: Final = _causes_of("outer")
OLD_CRIU: Final = CAUSE_BY_KEY["old-criu"]

AREAS: Final = tuple((cause.area, cause) for cause in CATALOGUE if cause.area)
"""(expression for source files of CRIU, most likely cause) for an error that no pattern matches."""
WIDE_AREAS: Final = tuple((cause.wide_area, cause) for cause in CATALOGUE if cause.wide_area)
"""The same for files that do several things."""
STEPS: Final = tuple((cause.step, cause) for cause in CATALOGUE if cause.step)
"""(expression for what CRIU writes after another error, cause): reported if there is no other."""
LAST_STEPS: Final = tuple((cause.last_step, cause) for cause in CATALOGUE if cause.last_step)
