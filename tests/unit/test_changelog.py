"""CHANGELOG.md mentions each change once, and the version of crckpt."""

from __future__ import annotations

import re
from itertools import combinations

from checkout import PROJECT

from crckpt import __version__

PAGE = (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")
FEW_WORDS = 8
ALIKE = 0.7


def words(text: str) -> frozenset[str]:
    """Return the longer words: short ones are in every sentence."""
    return frozenset(re.findall(r"[\w`~=-]{5,}", text))


def test_no_two_bullets_of_the_changelog_say_the_same() -> None:
    """Two wordings of one change share most of their longer words; two changes at most half."""
    bullets = [text for text in re.split(r"^- ", PAGE, flags=re.MULTILINE)[1:] if len(words(text)) >= FEW_WORDS]
    alike = [
        (one, other)
        for one, other in combinations(bullets, 2)
        if len(words(one) & words(other)) > ALIKE * min(len(words(one)), len(words(other)))
    ]
    assert not alike


def test_newest_version_of_the_changelog_is_that_of_crckpt() -> None:
    """The package, `version`, the man pages and the other host of a move agree."""
    assert re.findall(r"^## (\d\S*)$", PAGE, flags=re.MULTILINE)[0] == __version__
