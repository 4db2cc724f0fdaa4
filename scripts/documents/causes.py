"""The page of causes: each with its sentence, its remedy and an anchor, in Markdown."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from crckpt import causes as package
from crckpt.causes import Cause
from crckpt.causes.catalogue import CATALOGUE

_GAP = re.compile(r"\{(\w+)(?:![ars])?(?:\|([^}]*))?\}")
_NAMELESS = "(not named)"
_TITLES = {
    "criu_parts": "Errors of each part of CRIU",
    "fallback": "Errors of CRIU that name no cause",
    "namespaces": "Namespaces",
    "releases": "Old releases of CRIU",
    "transient": "Errors after which CRIU may continue",
}
"""The other files are named by the first sentence of their docstring."""
_NOT_CAPITALIZED = ("clone3", "crckpt", "criu", "cuda-checkpoint", "fd ", "iptables", "nftables")
_MARKUP = re.compile(r"([*_<>`#\[\]|\\])")


def causes() -> str:
    """Make a section for each file of the catalogue, with a heading for each cause."""
    return "\n\n".join(part for module in _modules() for part in _section(module)) + "\n"


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(package.__path__):
        yield import_module(f"{package.__name__}.{found.name}")


def _section(module: ModuleType) -> Iterator[str]:
    own = [cause for cause in _causes_in(module) if cause in CATALOGUE]
    if not own or module.__name__.endswith(".catalogue"):
        return
    name = module.__name__.rpartition(".")[2]
    yield f"## {_TITLES.get(name) or (module.__doc__ or '').split('. ')[0].removesuffix('.')}"
    for cause in own:
        yield f"### {cause.key}"
        yield _sentence(cause)
        if cause.remedy:
            yield f"**Remedy:** {_fill(cause.remedy)}."
        if cause.by_criu:
            yield f"**With criu alone:** {_fill(cause.by_criu)}."


def _causes_in(module: ModuleType) -> Iterator[Cause]:
    """Each cause that a module defines, once."""
    known: dict[str, Cause] = {}
    for value in vars(module).values():
        known |= {cause.key: cause for cause in _flatten(value)}
    return iter(known.values())


def _flatten(value: object) -> Iterator[Cause]:
    if isinstance(value, Cause):
        yield value
    elif isinstance(value, tuple):
        for inner in value:
            yield from _flatten(inner)


def _sentence(cause: Cause) -> str:
    text = _fill(cause.says)
    sure = "" if cause.sure else " (The most likely cause: CRIU prints the same message in other cases.)"
    release = ".".join(map(str, cause.fixed))
    fixed = f" Fixed in CRIU {release}." if release and release not in text else ""
    first = text[0] if text.startswith(_NOT_CAPITALIZED) else text[0].upper()
    return f"{first}{text[1:]}.{sure}{fixed}"


def _fill(template: str) -> str:
    """Show what differs from case to case in italics; escape what Markdown would read as its own."""
    end, text = 0, ""
    for gap in _GAP.finditer(template):
        between = template[end : gap.start()]
        # The value begins with a space, or is empty.
        text += _escape(between) if between or not text else " "
        text += _escape(gap[2]) if gap[2] and gap[2] != _NAMELESS else f"*{gap[1].upper()}*"
        end = gap.end()
    return text + _escape(template[end:])


def _escape(text: str) -> str:
    return _MARKUP.sub(r"\\\1", text.replace("{{", "{").replace("}}", "}"))
