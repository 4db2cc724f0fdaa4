"""Pages that are equal to a seeded XXH3-128, for many seeds at once: made without knowing the seed.

XXH3 adds up, lane by lane, (data ^ key) cut into two halves that are multiplied, and data as it is. A seed is added to
the low or taken from the high words of a key that is public: so the difference of two words of the same kind is public,
and few XORs of them are likely. Where the low halves of (data ^ key) are equal at two places of a lane, and the topmost
bits differ, both of those can be turned around: the sum of the products stays, and that of the data, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from crckpt.model import PAGE_SIZE

# The low halves of XXH3's key, for the 22 places at which the 8 lanes of 15 stripes meet it.
_WORDS: Final = np.array(
    [
        *(0x396CFEB8, 0x2C81017C, 0xE96DD4DE, 0xA4A44072, 0x4EE679CB, 0x7DD05A82, 0x744608B8, 0xE69035E0),
        *(0xBB52283C, 0x8B65D088, 0x97486471, 0x46EF1938, 0x3F76FAA8, 0xC7BBDCF9, 0x4BE0518A, 0xC97E9FC8),
        *(0x83ACC5EA, 0xFFA081C5, 0x51DD0D17, 0x265516D3, 0x58BE162B, 0xD1B8F88F),
    ],
    np.uint32,
)

_LANES: Final = 8
# Of 64 bytes each, in a block of 1024; there are 16, but the last block has one less.
_STRIPES: Final = 15

_SAMPLES: Final = 1 << 15
_BLOCKS: Final = 4
# Words of a block.
_BLOCK: Final = 128

_PER_PAIR: Final = 1000
_LOOK_AHEAD: Final = 10
_LOW: Final = np.uint64(0xFFFFFFFF)
_HIGH: Final = ~_LOW
_TOP: Final = np.uint64(1 << 63)


def colliding_pages(pages: int) -> list[bytes]:
    """So many pages, all different, some of which have the same XXH3-128 under most seeds."""
    random = np.random.default_rng(1)
    found: list[bytes] = []
    guesses = _guesses(random)
    while len(found) < pages:
        base, pairs, guesses = _base(random, guesses)
        twin = base.copy()
        twin[[second for _, second in pairs]] ^= _TOP
        for page in (base, twin):
            found.append(page.tobytes())
            for pair in pairs:
                turned = page.copy()
                turned[list(pair)] ^= _TOP
                found.append(turned.tobytes())
    return found[:pages]


Guess = tuple[int, int, int]


def _guesses(random: np.random.Generator) -> list[Guess]:
    """Two words of the key and a likely XOR of them, the most likely ones first."""
    seeds = random.integers(0, 1 << 32, _SAMPLES, dtype=np.uint32)
    found: list[tuple[int, Guess]] = []
    for one in range(len(_WORDS)):
        for other in range(one + 2, min(one + _STRIPES, len(_WORDS)), 2):
            guesses, counts = np.unique((_WORDS[one] + seeds) ^ (_WORDS[other] + seeds), return_counts=True)
            likely = np.argsort(-counts)[:_PER_PAIR]
            found += [(-int(counts[at]), (one, other, int(guesses[at]))) for at in likely]
    return [guess for _, guess in sorted(found)]


def _base(
    random: np.random.Generator, guesses: list[Guess]
) -> tuple[npt.NDArray[np.uint64], list[tuple[int, int]], list[Guess]]:
    """A page that tries as many guesses as it has room for, the pairs of its words that do, and what is left."""
    page = random.integers(0, 1 << 64, PAGE_SIZE // 8, dtype=np.uint64)
    used: set[int] = set()
    pairs: list[tuple[int, int]] = []
    left: list[Guess] = []
    for number, (one, other, guess) in enumerate(guesses):
        room = (pair for pair in _places(one, other) if not used & set(pair))
        if (pair := next(room, None)) is None:
            left.append((one, other, guess))
        else:
            used |= set(pair)
            pairs.append(pair)
            page[pair[1]] = (page[pair[1]] & _HIGH) | ((page[pair[0]] & _LOW) ^ np.uint64(guess))
        if len(left) > _LOOK_AHEAD:
            return page, pairs, left + guesses[number + 1 :]
    return page, pairs, left


def _places(one: int, other: int) -> Iterator[tuple[int, int]]:
    """The words of a page that meet these two words of the key, in the same lane and block."""
    for block in range(_BLOCKS):
        for lane in range(max(0, other - _STRIPES + 1), min(_LANES, one + 1)):
            start = block * _BLOCK + lane
            yield start + (one - lane) * _LANES, start + (other - lane) * _LANES
