"""The reference of JSON documents: a table of keys and a schema for each command, in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from documents.json_documents import DOCUMENTS, schema
from documents.tables import table


def json_commands() -> str:
    """Make a section for each command."""
    return "\n\n".join(part for command in DOCUMENTS for part in _section(command)) + "\n"


def _section(command: str) -> Iterator[str]:
    yield f"## crckpt {command}"
    for document in DOCUMENTS[command]:
        made = schema(document)
        definitions = made["$defs"]
        root = definitions[document.__name__]
        yield root["description"]
        yield _table(root)
        for name in _used(root, definitions):
            yield f"**{name}**: {definitions[name]['description']}"
            yield _table(definitions[name])
        text = json.dumps(made, indent=2)
        yield f"<details><summary>JSON schema</summary>\n\n```json\n{text}\n```\n\n</details>"


def _table(definition: Mapping[str, Any]) -> str:
    required = definition["required"]
    rows = (
        (f"`{name}`", _type(value) + ("" if name in required else " (may be missing)"), value.get("description", ""))
        for name, value in definition["properties"].items()
    )
    return table(("key", "type", ""), rows)


def _type(value: Mapping[str, Any]) -> str:
    if "$ref" in value:
        return _name(value["$ref"])
    if "anyOf" in value:
        return " or ".join(map(_type, value["anyOf"]))
    if "enum" in value:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in value["enum"])
    kind = str(value.get("type", "string"))
    if kind == "array":
        return f"array of {_type(value['items'])}" if "items" in value else "array"
    return f"{kind} ({value['format']})" if "format" in value else kind


def _used(definition: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[str, ...]:
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
