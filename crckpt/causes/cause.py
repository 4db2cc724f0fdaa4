"""A cause of the catalogue, and one that was met. Pure."""

from __future__ import annotations

from msgspec import Struct

from crckpt.model import MEBIBYTE

LIKELY = "most likely: "


class Cause(Struct, frozen=True):
    """What stops us, said to a person: `says` and `remedy` are templates over the pattern's groups.

    `{name}` is filled in, `{name|other words}` too, or by the other words where it is not known. Of a cause that is not
    `sure` CRIU writes the same in other cases: it is the most likely one, and told as that. From the release `fixed`
    on CRIU does not have this cause.
    """

    key: str
    says: str
    remedy: str
    pattern: str = ""
    source: str = ""
    sure: bool = True
    fixed: tuple[int, ...] = ()

    def finding(self, **values: object) -> Finding:
        """This cause with its names filled in; what is not known is shown as `?`."""
        known = _Known(values)
        says = self.says.format_map(known)
        return Finding(self.key, says if self.sure else f"{LIKELY}{says}", self.remedy.format_map(known), self.sure)


def mebibytes(size: int) -> str:
    """A size in bytes, as causes tell it."""
    return f"{size / MEBIBYTE:,.0f} MiB" if size >= 10 * MEBIBYTE else f"{size / MEBIBYTE:,.1f} MiB"


class _Known(dict[str, object]):
    def __missing__(self, key: str) -> object:
        name, _, otherwise = key.partition("|")
        return self.get(name, otherwise or "?")


class Finding(Struct, frozen=True, omit_defaults=True):
    """A cause that was met: `what` is a sentence, `remedy` what to do about it.

    It is not `sure` if CRIU says the same of other causes; the sentence says so too.
    """

    key: str
    what: str
    remedy: str
    sure: bool = True

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}" if self.remedy else self.what
