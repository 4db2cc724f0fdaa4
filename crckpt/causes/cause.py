"""A cause of the catalogue, and one that was met. Pure."""

from __future__ import annotations

from msgspec import Struct

from crckpt.model import MEBIBYTE


class Cause(Struct, frozen=True):
    """What stops us, said to a person: `says` and `remedy` are templates over the pattern's groups.

    `{name}` is filled in, `{name|other words}` too, or by the other words where it is not known.
    """

    key: str
    says: str
    remedy: str
    pattern: str = ""
    source: str = ""

    def told(self, **values: object) -> Finding:
        """This cause with its names filled in; what is not known is shown as `?`."""
        known = _Known(values)
        return Finding(self.key, self.says.format_map(known), self.remedy.format_map(known))


def mebibytes(size: int) -> str:
    """A size in bytes, as causes tell it."""
    return f"{size / MEBIBYTE:,.0f} MiB" if size >= 10 * MEBIBYTE else f"{size / MEBIBYTE:,.1f} MiB"


class _Known(dict[str, object]):
    def __missing__(self, key: str) -> object:
        name, _, otherwise = key.partition("|")
        return self.get(name, otherwise or "?")


class Finding(Struct, frozen=True):
    """A cause that was met: `what` is a sentence, `remedy` what to do about it."""

    key: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}" if self.remedy else self.what
