"""Write what is generated into the documents: `python -m documents docs`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from crckpt.cli.command_reference import read_commands
from documents.causes import causes
from documents.commands import command_groups, command_page
from documents.json_documents import DOCUMENTS
from documents.json_pages import json_commands, schemas
from documents.store_format import store_format
from documents.tables import environment, exit_codes, files


def main(docs: Path) -> None:
    """Write the pages of commands, and the parts that other pages include."""
    commands = read_commands()
    parts = {
        "generated/commands.md": command_groups(commands),
        "generated/causes.md": causes(),
        "generated/environment.md": environment(),
        "generated/exit-codes.md": exit_codes(),
        "generated/files.md": files(),
        "generated/json.md": json_commands(),
        "generated/store-format.md": store_format(),
    }
    pages = {f"reference/commands/{command.name}.md": command_page(command) for command in commands}
    files_of_schemas = {
        path: json.dumps(schema, indent=2) + "\n" for command in DOCUMENTS for path, schema in schemas(command).items()
    }
    for name, text in {**parts, **pages, **files_of_schemas}.items():
        path = docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Sphinx reads again only what has changed.
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
