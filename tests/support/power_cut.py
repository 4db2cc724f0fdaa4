"""The content of a disk after a power cut: a file system in memory that loses whatever was not synced.

It promises only what POSIX does: a file's content is safe once the file is synced, a name once its directory is. A
rename is safe once the directory of the new name is synced; if only that of the old one is, the file may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from writer import Entry


@dataclass(eq=False)
class Node:
    """A directory, or a file with its writes, the first `synced` of which are safe."""

    is_directory: bool
    writes: list[bytes] = field(default_factory=list)
    synced: int = 0


Change = tuple[Node, str, Node | None]
"""In this directory this name means that, or nothing."""


@dataclass(eq=False)
class AtomicChanges:
    """Changes that are made at once, and those of them that are safe."""

    changes: tuple[Change, ...]
    safe: tuple[Change, ...] = ()


Tree = dict[Node, dict[str, Node]]
Kept = Callable[[int, int, Random], bool]
"""Of the changes of names that are not safe: whether the one of that number (from 0), of so many, is there."""

Torn = Callable[[bytes, bytes, Random], bytes]
"""From the safe content of a file and what was written after: what is found."""

NONE: Kept = lambda _number, _many, _chance: False  # noqa: E731
ALL: Kept = lambda _number, _many, _chance: True  # noqa: E731
SOME: Kept = lambda _number, _many, chance: chance.random() < 0.5  # noqa: E731

LOST: Torn = lambda safe, _unsafe, _chance: safe  # noqa: E731
WHOLE: Torn = lambda safe, unsafe, _chance: safe + unsafe  # noqa: E731
ZEROS: Torn = lambda safe, unsafe, _chance: safe + bytes(len(unsafe))  # noqa: E731


def first(kept: int) -> Kept:
    """Keep the first changes, as a journal does."""
    return lambda number, _many, _chance: number < kept


def last(kept: int) -> Kept:
    """Keep only some of the newest changes."""
    return lambda number, many, _chance: number >= many - kept


def cut_short(safe: bytes, unsafe: bytes, chance: Random) -> bytes:
    """Keep the beginning of the content."""
    return safe + unsafe[: chance.randint(0, len(unsafe))]


class Disk:
    """A disk, and what of it is only in memory. Paths are relative to the directory that it begins as."""

    def __init__(self, directory: Path) -> None:
        """Everything in `directory` is safe."""
        self._root = Node(is_directory=True)
        self._renamings: list[AtomicChanges] = []
        self._seen: Tree = {self._root: {}}
        for path in sorted(directory.rglob("*")):
            node = self._new(is_directory=path.is_dir())
            if not path.is_dir():
                node.writes, node.synced = [path.read_bytes()], 1
            self._name((*self._place(path.relative_to(directory).parts), node))
            self._renamings[-1].safe = self._renamings[-1].changes

    def apply(self, entry: Entry, directory: Path) -> None:
        """Do what a step that was recorded in `directory` did; what lies outside is no concern."""
        if all(Path(path).is_relative_to(directory) for path in entry.paths):
            places = [Path(path).relative_to(directory).parts for path in entry.paths]
            _VERBS[entry.verb](self, places, entry.content)

    def after_cut(self, seed: int, kept: Kept, torn: Torn) -> Mapping[Path, bytes | None]:
        """The files that are found, with their content, directories with None. What is not safe is `kept` and
        `torn`.
        """
        chance = Random(seed)
        unsafe = self._unsafe()
        lost = {id(found) for number, found in enumerate(unsafe) if not kept(number, len(unsafe), chance)}
        tree: Tree = {}
        for renaming in self._renamings:
            _follow(tree, renaming.safe if id(renaming) in lost else renaming.changes)
        return dict(_find(tree, self._root, Path(), lambda node: _content(node, torn, chance)))

    @property
    def unsafe(self) -> int:
        """The number of changes of names that are not safe."""
        return len(self._unsafe())

    def _unsafe(self) -> list[AtomicChanges]:
        return [renaming for renaming in self._renamings if renaming.safe != renaming.changes]

    def _new(self, *, is_directory: bool) -> Node:
        node = Node(is_directory)
        if is_directory:
            self._seen[node] = {}
        return node

    def _place(self, parts: tuple[str, ...]) -> tuple[Node, str]:
        return self._node(parts[:-1]), parts[-1]

    def _node(self, parts: tuple[str, ...]) -> Node:
        node = self._root
        for part in parts:
            node = self._seen[node][part]
        return node

    def _name(self, *changes: Change) -> None:
        self._renamings.append(AtomicChanges(changes))
        _follow(self._seen, changes)

    def mkdir(self, places: list[tuple[str, ...]], _content: bytes) -> None:
        """It may be there: who writes a store makes sure by trying."""
        directory, name = self._place(places[0])
        if name not in self._seen[directory]:
            self._name((directory, name, self._new(is_directory=True)))

    def create(self, places: list[tuple[str, ...]], _content: bytes) -> None:
        """A lock may be there."""
        directory, name = self._place(places[0])
        if name not in self._seen[directory]:
            self._name((directory, name, self._new(is_directory=False)))

    def write(self, places: list[tuple[str, ...]], content: bytes) -> None:
        """At the end."""
        self._node(places[0]).writes.append(content)

    def sync(self, places: list[tuple[str, ...]], _content: bytes) -> None:
        """Of a file: its name may still be lost."""
        node = self._node(places[0])
        node.synced = len(node.writes)

    def sync_directory(self, places: list[tuple[str, ...]], _content: bytes) -> None:
        """The names in it; its own name may still be lost."""
        node = self._node(places[0])
        for renaming in self._renamings:
            here = tuple(change for change in renaming.changes if change[0] is node)
            if any(named is not None for _, _, named in here):
                renaming.safe = renaming.changes
            elif here and not renaming.safe:
                renaming.safe = here

    def rename(self, places: list[tuple[str, ...]], _content: bytes) -> None:
        """At once."""
        source, target = map(self._place, places)
        self._name((*source, None), (*target, self._seen[source[0]][source[1]]))

    def remove(self, places: list[tuple[str, ...]], _content: bytes) -> None:
        """A file or an empty directory; it may be gone already."""
        directory, name = self._place(places[0])
        if name in self._seen[directory]:
            self._name((directory, name, None))


_VERBS: Mapping[str, Callable[[Disk, list[tuple[str, ...]], bytes], None]] = {
    "mkdir": Disk.mkdir,
    "create": Disk.create,
    "write": Disk.write,
    # At the end, too.
    "write-at": Disk.write,
    "sync": Disk.sync,
    "sync-directory": Disk.sync_directory,
    "rename": Disk.rename,
    "unlink": Disk.remove,
    "rmdir": Disk.remove,
}


def write_out(found: Mapping[Path, bytes | None], directory: Path) -> None:
    """Make files of what a power cut left; `directory` is empty."""
    for path, content in found.items():
        if content is None:
            (directory / path).mkdir(mode=0o700)
        else:
            (directory / path).write_bytes(content)


def _follow(tree: Tree, changes: Iterable[Change]) -> None:
    for directory, name, node in changes:
        names = tree.setdefault(directory, {})
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _content(node: Node, torn: Torn, chance: Random) -> bytes:
    return torn(b"".join(node.writes[: node.synced]), b"".join(node.writes[node.synced :]), chance)


def _find(tree: Tree, node: Node, path: Path, content: Callable[[Node], bytes]) -> Iterator[tuple[Path, bytes | None]]:
    for name, below in tree.get(node, {}).items():
        yield path / name, None if below.is_directory else content(below)
        yield from _find(tree, below, path / name, content)


def prefixes(entries: Iterable[Entry], disk: Disk, directory: Path) -> Iterator[int]:
    """Apply one entry after the other; yields after each how many they were, and 0 before the first."""
    yield 0
    for number, entry in enumerate(entries, 1):
        disk.apply(entry, directory)
        yield number
