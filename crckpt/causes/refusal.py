"""The refusal of an operation, with the findings that prevent it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from crckpt.causes.finding import Finding
from crckpt.errors import PreflightRefused


class Refusal(PreflightRefused):
    """A refusal that was made of findings: the message is that of the first one."""

    findings: tuple[Finding, ...] = ()

    def fill(self, **values: object) -> Refusal:
        """Return the refusal with more values in its findings."""
        return preflight_refusal([found.fill(**values) for found in self.findings], is_in_use=self.is_in_use)


def preflight_refusal(blockers: Sequence[Finding], *, is_in_use: bool = False) -> Refusal:
    """Make the error for blockers. `is_in_use` as in PreflightRefused."""
    first, more = blockers[0], len(blockers) - 1
    said = f"{first.what} (and {more} more)" if more else first.what
    causes = tuple(str(finding) for finding in blockers)
    refusal = Refusal(said, hint=first.remedy, causes=causes, is_in_use=is_in_use)
    refusal.findings = tuple(blockers)
    return refusal
