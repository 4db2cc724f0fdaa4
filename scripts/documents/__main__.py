"""Check what is generated of the reference, or write it: `python -m documents [--write] DOCS`.

Generated are whole files, and in pages the part between `<!-- generated: NAME -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Final

from crckpt.cli.command_reference import read_commands
from documents.causes import causes
from documents.commands import command_groups, command_page
from documents.json_documents import DOCUMENTS
from documents.json_pages import json_commands, schemas
from documents.store_format import store_format
from documents.tables import environment, exit_codes, files

_FOLDERS: Final = ("reference/commands", "reference/schemas")
"""Nothing else is in them."""
_PART: Final = re.compile(
    r"(?P<begin><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end of (?P=name) -->)", re.DOTALL
)
_OUTDATED: Final = 1


def reference(docs: Path) -> dict[Path, str]:
    """Make every file of the reference that is generated or has a generated part."""
    commands = read_commands()
    parts = {
        "commands": command_groups(commands),
        "causes": causes(),
        "environment": environment(),
        "exit-codes": exit_codes(),
        "files": files(),
        "json": json_commands(),
        "store-format": store_format(),
    }
    pages = {f"reference/commands/{command.name}.md": command_page(command) for command in commands}
    files_of_schemas = {
        f"reference/{path}": json.dumps(schema, indent=2) + "\n"
        for command in DOCUMENTS
        for path, schema in schemas(command).items()
    }
    with_parts = {
        path: _with_parts(path.read_text(encoding="utf-8"), parts) for path in (docs / "reference").glob("*.md")
    }
    return with_parts | {docs / name: text for name, text in (pages | files_of_schemas).items()}


def _with_parts(page: str, parts: dict[str, str]) -> str:
    return _PART.sub(lambda part: f"{part['begin']}\n{parts[part['name']].strip()}\n\n{part['end']}", page)


def main(docs: Path, *, write: bool) -> int:
    """Write what has changed, or name it; return the exit status."""
    made = reference(docs)
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    surplus = [path for folder in _FOLDERS for path in (docs / folder).glob("*") if path not in made]
    if not write:
        if names := ", ".join(sorted(map(str, stale + surplus))):
            sys.stderr.write(
                f"not as the code generates it: {names}: type scripts/docs --write, and commit the result\n"
            )
        return _OUTDATED if stale or surplus else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made[path], encoding="utf-8")
    for path in surplus:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[-1]), write="--write" in sys.argv))
