"""The store: immutable checkpoints in deduplicated, compressed, verified packs. This is its format, format 1.

Directory (all directories have mode 0700, all files 0600, the owner is who runs crckpt)::

    store.json                          {"format": 1, "id": UUID, "created": time}
    checkpoints/ID/manifest.json        what a checkpoint is; a signature may lie beside it as manifest.sig
    packs/AB/DIGEST.pack                pages; AB are the first two digits of DIGEST
    pending/                            who is storing a checkpoint, or why it was lost: PID-RANDOM, JSON
    refs/tags/JOB/TAG                   the ID that JOB:TAG names, and a newline
    cache/fingerprints/DIGEST           derived from a pack; may be deleted
    cache/fingerprints.key              32 random bytes, secret; may be deleted: then fingerprints are made anew
    tmp/                                what is in flight: PID-RANDOM/ with owner.json; checkpoints being removed
    lock, locks/                        flock(2) on `lock`; in `locks` who holds it, for people
    locks/restore-JOB                   flock(2): one restore of JOB at a time

Nothing here is a link but `staging` in a transaction, which leads to where its images are if that is outside. A reader
refuses what is no regular file or directory, or belongs neither to root nor to who runs crckpt: see `SECURITY.md`.
A reader that finds another `format`, or another `schema` in a manifest, refuses.

Page. Everything is stored as pages of 4096 bytes: memory, small image files, details, indexes. The last page of an
object is filled up with zeros; its size in bytes is kept beside its extents. A page of zeros is not stored.

Pack. Numbers are little endian, without padding::

    "CRCKPAK1"
    frames, one after the other     each a zstd frame with its content's size; 64 pages, the last frame 1 to 64
    frame table, 48 bytes a frame   offset u64, stored bytes u32, raw bytes u32, SHA-256 of the stored bytes
    footer                          offset of the table u64, frames u32, page size u32, "CRCKPAK1"

A frame itself says how many bytes its content has, as the table does, and takes at most 512 KiB; a pack has at most
2^20 frames. DIGEST is the SHA-256 of the frame table. Frames leave no gaps, so every byte of the file is covered. A
checkpoint makes as many new packs as it needs; none holds more than a sixteenth of its images, or 16 MiB if that is
more.

Extent. 24 bytes: first u64, count u32, pack u32, page u64: the pages numbered `first` and following, `count` of them,
lie in the pack of that number in the manifest's list, from its page `page` on. Pack 0xFFFFFFFF: they are zero.
Extents of an object stand in the order of its pages.

Index. One for each checkpoint, itself an object: length u32, JSON of that length, the extents of all files. The JSON
is {"coding": "columns", "files": [{"name", "kind", "bytes", "pagemap", "extents": how many}, ...]}. The kinds:

    file      an image file as it was; its pages are numbered from 0
    pages     pages-N.img; its pages are numbered by address / 4096, as the image file `pagemap` says, in its order
    details   bytes that the caller gave: JSON that may be secret, and is no image

An index has at most 512 MiB and 2^25 extents, a manifest at most 32 MiB.

Columns are one zstd frame of four columns, each of 8 byte planes (the lowest byte of all extents first), of numbers
modulo 2^64: `first` as steps, `count` less 1, `pack` plus 1 modulo 2^32, `page` as steps among the extents of its pack
(0 for pages that are zero). A step is from the end of the extent before, or 0, to the start of this one; step n is
written as 2n, or as -2n-1 if it is negative.

Incremental image sets (CRIU's `parent` link) are made complete: every page map entry is PRESENT, and has its pages.
If the set before was stored, they are extents of that checkpoint's, in the same page map, at the same address.

Manifest. JSON: schema 1, job, sequence, created, parent, host, options, tree, note, run_id, stopped, config_digest,
statistics, packs [{digest, frames, pages}] (the last two: how many of it this checkpoint uses), index {bytes, extents}.
ID is the SHA-256 of its bytes. So ID, manifest, pack, frame and byte are one chain of SHA-256.

Order. A manifest's `sequence` is one more than the highest of the store when it is committed, which is done in turn
(flock(2) on `checkpoints`); without one it is 0. Checkpoints stand in the order of `sequence`, then `created`, then ID:
a clock that was wrong makes none the newest of its job.

Fingerprints. AES-256-GMAC of each page of a pack, under the key in `cache/fingerprints.key` and a nonce of 12 zero
bytes, 16 bytes each; then the SHA-256 of key, DIGEST (32 bytes) and the fingerprints. Those with another seal, as of
another key, or of the seeded xxh3-128 that stood here before, are worked out again. Where damage is found in a pack its
fingerprints are removed: to work them out again it is read whole, and not used if it is damaged.

Pages with equal fingerprints are taken for equal. That is safe against a program that chooses its pages, as GMAC is a
universal hash: whatever two different pages are, their fingerprints are equal for at most 257 of the 2^128 points that
a key may stand for. So the probability is at most 2^-119 for a pair, and 2^-57 for any pair among 16 TiB of pages, and
no program can do better by what it computes. It rests on three things: the key is random, AES hides what it stands for,
and nobody sees the key or a fingerprint: from two of those with their pages the point can be worked out. Both lie in
`cache` alone, which only the store's owner can read, who can read the pages, too; neither comes into a manifest, an
export or a report. What others may learn, from how long a dump takes or how big it is, is whether pages were equal to
some that are stored. Whose backup of a store was read by others, or who was given a store by somebody, removes `cache`
before more is stored. A fast hash with a secret seed does not do: pages were found that collide under most seeds.

Copying forward. Pages that are in use of packs of which little else is in use are stored again in new packs, so that
old packs die; they are taken from the images, or from the packs if the images left them to the parent.
`copy_forward` says which, and why.

Order of writing. Each pack is written in tmp and synced; then all are renamed into packs, and their directories and
`packs` synced; then the manifest is written in a directory in tmp, both are synced, the directory is renamed into
checkpoints, and that is synced. So a checkpoint exists if and only if its directory does; it is removed by a rename,
too, and one whose manifest is missing is damaged. Nothing is modified afterwards. Every checkpoint is complete: it
refers to packs, never to other checkpoints. Who relies on a name that is there already syncs its directory first:
whoever made it may have died before that. So gc syncs checkpoints before it removes packs.

Lock. Who reads or adds holds it shared, who removes holds it alone. What lies in tmp or pending, or is named by no
manifest, is removed by gc, which refuses to remove anything as long as a manifest cannot be read. A damaged pack or
manifest may be replaced, by a rename, by the whole file of that name: the one change that what is stored can suffer.
"""

from crckpt.store.backend.directory import is_blank
from crckpt.store.format.manifest import Checkpoint, IndexPlace, PackUse
from crckpt.store.names import check_name
from crckpt.store.pending import PendingCheckpoint
from crckpt.store.read.materialise import details_of, file_names, materialise, materialise_base, open_reader, read_file
from crckpt.store.refs import Tag
from crckpt.store.repository import Repository, UnreadableCheckpoint
from crckpt.store.transaction import STAGING, Transaction, handed_over, staged
from crckpt.store.upkeep.damage import Damage
from crckpt.store.upkeep.gc import GarbageResult, collect_garbage
from crckpt.store.upkeep.repair import RepairResult, Unrepaired, repair
from crckpt.store.upkeep.verify import VerifyResult, verify
from crckpt.store.write.ingest import NewCheckpoint, ingest, load

__all__ = [
    "STAGING",
    "Checkpoint",
    "Damage",
    "GarbageResult",
    "IndexPlace",
    "NewCheckpoint",
    "PackUse",
    "PendingCheckpoint",
    "RepairResult",
    "Repository",
    "Tag",
    "Transaction",
    "UnreadableCheckpoint",
    "Unrepaired",
    "VerifyResult",
    "check_name",
    "collect_garbage",
    "details_of",
    "file_names",
    "handed_over",
    "ingest",
    "is_blank",
    "load",
    "materialise",
    "materialise_base",
    "open_reader",
    "read_file",
    "repair",
    "staged",
    "verify",
]
