"""Run the commands of pages and put their output into the pages: `python -m documents.refresh PAGE...`, as root."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from documents.console import Shell, difference, read_steps, refresh


def refresh_page(path: Path) -> None:
    """Write the output of this run into a page. Print the steps whose output is another than before."""
    page = path.read_text(encoding="utf-8")
    with TemporaryDirectory(prefix="crckpt-documents.") as directory:
        shell = Shell(Path(directory))
        try:
            rans = [shell.run(step) for step in read_steps(page)]
        finally:
            shell.close()
    sys.stdout.writelines(f"{text}\n" for text in map(difference, rans) if text)
    path.write_text(refresh(page, rans), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        refresh_page(Path(name))
