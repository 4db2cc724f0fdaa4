"""Command lines that run in the test's own process, on a store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from documents.json_documents import check

from crckpt.cli import app
from crckpt.store import Repository


@dataclass(frozen=True)
class CommandLine:
    """A command line that runs with this store."""

    repository: Repository
    capture: pytest.CaptureFixture[str]

    def run(self, *words: str, status: int = 0) -> str:
        """Run a command; return what it prints on stdout, or on stderr if it fails."""
        self.capture.readouterr()
        assert app.run([*words, "--store", str(self.repository.root)]) == status
        captured = self.capture.readouterr()
        assert not (captured.out and captured.err), captured
        return captured.err or captured.out

    def result(self, *words: str) -> Any:
        """The result in its JSON document."""
        document = self.run(*words, "--json")
        check(document)
        return json.loads(document)["result"]
