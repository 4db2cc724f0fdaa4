"""Run the commands of pages and put their output into the pages, as root: `python -m documents.refresh PAGE...`.

With --print one page is only printed, after what it shows wrong; the commands run on this host and in its /srv.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from documents.console import Shell, difference, needs_systemd, needs_two_hosts, read_steps, refresh

_UNDER_SYSTEMD = Path(__file__).parents[1] / "lab/systemd"


def run_page(path: Path) -> tuple[list[str], str]:
    """Run a page where it needs to run. Return what it shows wrong, and the page with the output of this run."""
    if not needs_systemd(path.read_text(encoding="utf-8")):
        return _run(path, isolated=True)
    module = (sys.executable, "-m", "documents.refresh", "--print", str(path))
    command = (str(_UNDER_SYSTEMD), "env", f"PYTHONPATH={Path(__file__).parents[1]}", *module)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    differences, page = json.loads(done.stdout)
    return differences, page


def _run(path: Path, *, isolated: bool) -> tuple[list[str], str]:
    page = path.read_text(encoding="utf-8")
    with TemporaryDirectory(prefix="crckpt-documents.") as directory:
        shell = Shell(Path(directory), isolated=isolated)
        try:
            results = [shell.run(step) for step in read_steps(page)]
        finally:
            shell.close()
    return [text for text in map(difference, results) if text], refresh(page, results)


def main(words: list[str]) -> None:
    """Refresh pages, or print one."""
    if words[:1] == ["--print"]:
        sys.stdout.write(json.dumps(_run(Path(words[1]), isolated=False)))
        return
    for path in map(Path, words):
        if needs_two_hosts(path.read_text(encoding="utf-8")):
            sys.stderr.write(f"{path} needs two hosts: see CONTRIBUTING.md\n")
            continue
        differences, page = run_page(path.resolve())
        sys.stdout.writelines(f"{text}\n" for text in differences)
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
