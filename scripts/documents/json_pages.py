"""The reference of JSON documents: tables of keys in Markdown, and schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from typing import Any

from documents.json_documents import DOCUMENTS, schema
from documents.tables import table

# In docstrings: "- `frozen_ms`: how long the tree was frozen".
_KEY = re.compile(r"^- `(?P<name>\w+)`: (?P<text>.*)\n?", re.MULTILINE)


def json_commands() -> str:
    """Make a section for each command, and one for each type where it is met first."""
    shown: set[str] = set()
    return "\n\n".join(part for command in DOCUMENTS for part in _section(command, shown)) + "\n"


def schemas(command: str) -> dict[str, dict[str, Any]]:
    """The schemas of a command's documents, by the path of their file next to the page."""
    names = (command, *(f"{command}-{number}" for number in range(2, 1 + len(DOCUMENTS[command]))))
    return {f"schemas/{name}.json": schema(one) for name, one in zip(names, DOCUMENTS[command], strict=True)}


def _section(command: str, shown: set[str]) -> Iterator[str]:
    yield f"## crckpt {command}"
    for path, made in schemas(command).items():
        definitions = made["$defs"]
        root = definitions[_name(made["$ref"])]
        yield _description(root)
        yield _table(root)
        yield f"[JSON schema]({path})"
        for name in _find_used_types(root, definitions):
            if name not in shown:
                yield f"### {name}"
                yield _description(definitions[name])
                yield _table(definitions[name])
            shown.add(name)


def _description(definition: Mapping[str, Any]) -> str:
    """Describe a type, without the lines on its keys, in the words of JSON."""
    return re.sub(r"\bNone\b", "null", _KEY.sub("", _text(definition)).strip())


def _text(definition: Mapping[str, Any]) -> str:
    return cleandoc(definition.get("description", ""))


def _table(definition: Mapping[str, Any]) -> str:
    required = definition["required"]
    known = {key["name"]: key["text"] for key in _KEY.finditer(_text(definition))}
    rows = (
        (
            f"`{name}`",
            _type(value) + ("" if name in required else " (may be missing)"),
            re.sub(r"\bNone\b", "null", value.get("description") or known.get(name, "")),
        )
        for name, value in definition["properties"].items()
    )
    return table(("key", "type", "meaning"), rows)


def _type(value: Mapping[str, Any]) -> str:
    if "$ref" in value:
        name = _name(value["$ref"])
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(map(_type, value["anyOf"]))
    if "enum" in value:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in value["enum"])
    kind = str(value.get("type", "string"))
    if kind == "array":
        return f"array of {_type(value['items'])}" if "items" in value else "array"
    return f"{kind} ({value['format']})" if "format" in value else kind


def _find_used_types(definition: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the types inside, each once, in the order in which a reader meets them."""
    names: dict[str, None] = {}
    waiting = [definition]
    while waiting:
        found = _references(waiting.pop(0)["properties"])
        new = [name for name in found if name not in names]
        names |= dict.fromkeys(new)
        waiting += [definitions[name] for name in new]
    return tuple(names)


def _references(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(reference := value.get("$ref"), str):
            yield _name(reference)
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]
