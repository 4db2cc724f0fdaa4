"""Check the links inside a built site: each file and each anchor must exist. `python -m documents.links DIRECTORY`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what links and what can be linked to."""
        for name, value in attrs:
            if name in {"href", "src"}:
                self.links.append(value or "")
            elif name in {"id", "name"}:
                self.anchors.add(value or "")


@cache
def _read(path: Path) -> _Page:
    return _Page(path.read_text(encoding="utf-8"))


def broken_links(site: Path) -> Iterator[str]:
    """Name each broken link of a site, with its page."""
    for path in sorted(site.rglob("*.html")):
        for link in _read(path).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            is_page = target.suffix == ".html" and target.exists()
            if not target.exists() or (is_page and unquote(parts.fragment) not in _read(target).anchors):
                yield f"{path.relative_to(site)}: {link}"


if __name__ == "__main__":
    found = list(broken_links(Path(sys.argv[1])))
    sys.exit("".join(f"broken link in {link}\n" for link in found) if found else 0)
