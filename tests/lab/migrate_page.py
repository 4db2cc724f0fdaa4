"""Run the commands of a page that needs two hosts; as a program, also put their output into pages.

A page is typed on the source, as root. It calls the source `node1` and the destination `node2`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from documents.console import WITHIN_S, StepRunner, difference, read_steps, refresh
from hosts import TwoHosts
from two_hosts import two_hosts


class SourceShell(StepRunner):
    """Runs each step in a shell of its own on the source of a lab."""

    def __init__(self, lab: TwoHosts) -> None:
        """`lab` is up."""
        super().__init__()
        self._lab = lab

    def execute(self, command: str) -> tuple[int, str]:
        """See StepRunner."""
        # As input: `pgrep -f` must not find the shell by its command line.
        script = f"cd /srv; {{ {command}\n}} </dev/null 2>&1"
        result = self._lab.run("source", "timeout", str(WITHIN_S), "bash", "-s", status=None, stdin=script)
        return result.status, result.out


def run_page(lab: TwoHosts, page: str) -> tuple[list[str], str]:
    """Run a page. Return what it shows wrong, and the page with the output of this run."""
    address = lab.run("source", "getent", "hosts", "destination").out.split()[0]
    lab.run("source", "sh", "-c", f"echo {address} node2 >>/etc/hosts; hostname node1")
    shell = SourceShell(lab)
    results = [shell.run(step) for step in read_steps(page)]
    return [text for text in map(difference, results) if text], refresh(page, results)


def main(words: list[str]) -> None:
    """Refresh pages."""
    for path in map(Path, words):
        with two_hosts() as lab:
            differences, page = run_page(lab, path.read_text(encoding="utf-8"))
        sys.stdout.writelines(f"{text}\n" for text in differences)
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
