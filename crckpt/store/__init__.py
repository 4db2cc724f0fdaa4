"""The store: immutable checkpoints in deduplicated, compressed, verified packs. This specifies its format, format 1.

Directory (directories have mode 0700, files 0600, the owner is the user who runs crckpt)::

    store.json                          {"format": 1, "id": UUID, "created": time}
    checkpoints/ID/manifest.json        describes a checkpoint; manifest.sig next to it may be a signature
    checkpoints/ID/job-JOB              empty: names the job, if the manifest is damaged; older checkpoints lack it
    packs/AB/DIGEST.pack                pages; AB are the first two digits of DIGEST
    pending/                            processes that store a checkpoint, or why it was lost: PID-RANDOM, JSON
    refs/tags/JOB/TAG                   the ID that JOB:TAG names, then a newline
    refs/moves/JOB                      the last move of JOB to or from another host, and how far it has come, JSON
    refs/unreported/MOVE                a move that was aborted, which its destination does not know, JSON
    refs/restored/ID                    empty: the tree that a dump has ended was restored; may be deleted
    cache/fingerprints/DIGEST           derived from a pack; may be deleted
    cache/samples/NAME                  derived from fingerprints; may be deleted
    cache/fingerprints.key              32 random bytes, secret; may be deleted: then fingerprints are computed again
    cache/job-JOB                       what a dump checks of the last checkpoint of JOB, JSON; may be deleted
    cache/damaged                       IDs that the last verifications found damaged, JSON; may be deleted
    tmp/                                what is in flight: PID-RANDOM/ with owner.json; checkpoints being removed
    lock, locks/                        flock(2) on `lock`; `locks` records the holders, for messages
    locks/restore-JOB                   flock(2): one restore of JOB at a time; names its process, for messages

The only link is `staging` in a transaction, which leads to its images if they are outside the store. A reader refuses
what is no regular file or directory, or belongs neither to root nor to the user who runs crckpt: see `SECURITY.md`. A
reader refuses another `format`, and another `schema` in a manifest.

Page. Everything is stored as pages of 4096 bytes: memory, small image files, details, indexes. The last page of an
object is padded with zeros; its size in bytes is stored with its extents. A page of zeros is not stored.

Pack. Numbers are little endian, without padding::

    "CRCKPAK1"
    frames, one after the other     each a zstd frame with its content's size; 64 pages, the last frame 1 to 64
    frame table, 48 bytes a frame   offset u64, stored bytes u32, raw bytes u32, SHA-256 of the stored bytes
    footer                          offset of the table u64, frames u32, page size u32, "CRCKPAK1"

A frame declares the size of its content, as the table does, and takes at most 512 KiB; a pack has at most 2^20 frames.
DIGEST is the SHA-256 of the frame table. There are no gaps between frames, so every byte of the file is covered. A
checkpoint makes as many new packs as it needs; none holds more than a sixteenth of its images, or 16 MiB if that is
more.

Extent. 24 bytes: first u64, count u32, pack u32, page u64. The `count` pages from number `first` on lie in the pack of
that number in the manifest's list, from its page `page` on. Pack 0xFFFFFFFF: they are zero. The extents of an object
are in the order of its pages.

Index. One for each checkpoint, itself an object: length u32, JSON of that length, the extents of all files. The JSON
is {"coding": "columns", "files": [{"name", "kind", "bytes", "pagemap", "extents": how many}, ...]}. The kinds:

    file      an image file as it was; its pages are numbered from 0
    pages     pages-N.img; its pages are numbered by address / 4096, as the image file `pagemap` says, in its order
    details   bytes from the caller: JSON that may be secret, no image

An index has at most 512 MiB and 2^25 extents, a manifest at most 32 MiB.

Columns are one zstd frame of four columns, each of 8 byte planes (the lowest byte of all extents first), of numbers
modulo 2^64: `first` as steps, `count` less 1, `pack` plus 1 modulo 2^32, `page` as steps among the extents of its pack
(0 for pages that are zero). A step is from the end of the extent before, or 0, to the start of this one; step n is
encoded as 2n, or as -2n-1 if it is negative.

Incremental image sets (CRIU's `parent` link) are made complete: every page map entry is PRESENT, and has its pages. If
the parent set was stored, these are extents of that checkpoint, of the same page map at the same address.

Manifest. JSON: schema 1, job, sequence, created, parent, host, options, tree, note, run_id, stopped, config_digest,
statistics, packs [{digest, frames, pages}] (the last two: how many of it this checkpoint uses), index {bytes, extents}.
ID is the SHA-256 of the manifest. So one chain of SHA-256 leads from ID to manifest, pack, frame and byte.

Order. A manifest's `sequence` is one more than the highest in the store at its commit; commits take turns (flock(2) on
`checkpoints`). A commit that waits for a rehearsal or another host gives up its turn: a checkpoint of another tree may
then have the same number. If the tree moves to another store, it is higher than all numbers there, too: the manifest is
written there as it is. A manifest without it has 0. Checkpoints are ordered by `sequence`, then
`created`, then ID: a wrong clock makes no checkpoint the newest of its job.

Fingerprints. AES-256-GMAC of each page of a pack, under the key in `cache/fingerprints.key` and a nonce of 12 zero
bytes, 16 bytes each; then the SHA-256 of key, DIGEST (32 bytes) and the fingerprints. Fingerprints with another seal,
of another key or of the seeded xxh3-128 of older crckpts, are computed again. If damage is found in a pack, its
fingerprints are removed: to compute them again the pack is read whole, and is not used if it is damaged.

Pages with equal fingerprints are treated as equal. This is safe against a program that chooses its pages, because GMAC
is a universal hash: the fingerprints of two different pages are equal for at most 257 of the 2^128 points that a key
can select. So the probability is at most 2^-119 for a pair, and 2^-57 for any pair among 16 TiB of pages; no
computation helps a program. This requires three things: the key is random, AES hides the point, and nobody sees the key
or a fingerprint, because the point can be computed from two fingerprints with their pages. Both lie only in `cache`,
which only the store's owner can read, who can read the pages too; neither is in a manifest, an export or a report. From
the time or the size of a dump others may learn whether its pages were equal to stored ones. If others have read a
backup of a store, or if a store came from somebody else, remove `cache` before more is stored. A fast hash with a
secret seed is not enough: pages were found that collide under most seeds.

Samples. Equal pages are stored once in a store, whichever jobs have them. The fingerprints of all packs would take too
much memory, so a dump searches a sample of them, and then all fingerprints of each pack that the sample suggests. A
file has samples of several packs. Numbers are little endian, without padding::

    "CRCKSMP1"
    key                             the first 16 bytes of the SHA-256 of "samples" and the key of the fingerprints
    packs u64, entries u64          how many there are
    DIGEST, 32 bytes a pack         they are numbered from 0
    entries, 8 bytes each           in order; the low 24 bits are the number of a pack, the high 40 bits those of the
                                    second 8 bytes of a fingerprint, as a number

Of each pack a file has the smallest of these numbers: one for each 64 pages, and at least 64 if there are so many. A
dump adds a file for its new packs, and for older ones without samples; it merges small files into it. What a file
suggests is compared with the sealed fingerprints, so a wrong file does no harm.

Copying forward. If little of a pack is still in use, the pages in use are stored again in new packs, so that old packs
die. They come from the images, or from the packs if the images left them to the parent. `copy_forward` says which
pages, and why. Pages that other jobs use stay where they are.

Order of writing. Each pack is written in tmp and synced; then all are renamed into packs, and their directories and
`packs` are synced; then the manifest is written in a directory in tmp, both are synced, the directory is renamed into
checkpoints, and that is synced. So a checkpoint exists if and only if its directory does. It is removed by a rename
too; a directory without a manifest is damaged. Nothing is modified afterwards. Every checkpoint is complete: it refers
to packs, never to other checkpoints. Whatever relies on an existing name syncs its directory first, because the process
that made the name may have died before its sync. So gc syncs checkpoints before it removes packs.

Lock. Reading and adding hold it shared, removing holds it alone. A dump holds it from before it searches for pages
until its manifest is written: the packs that it found stay. gc removes what lies in tmp or pending without a living
owner, and packs that no manifest names; it removes nothing while a manifest cannot be read. The only change to what is
stored is a repair: a rename replaces a damaged pack or manifest by the intact file of that name.

`backend` is where all this lies, `format` has the bytes, `write` and `read` the pages, `upkeep` has verify, repair, gc.
"""

from crckpt.store.backend.directory import is_blank
from crckpt.store.damage import Damage
from crckpt.store.format.manifest import Checkpoint, IndexPlace, PackUse
from crckpt.store.layout import check_name, check_note
from crckpt.store.pending import PendingCheckpoint
from crckpt.store.read.materialise import details_of, file_names, materialise, materialise_base, open_reader, read_file
from crckpt.store.refs import Tag
from crckpt.store.repository import BeforeWrite, Repository, UnreadableCheckpoint
from crckpt.store.transaction import STAGING, handed_over, staged
from crckpt.store.upkeep.gc import GarbageResult, collect_garbage
from crckpt.store.upkeep.repair import RepairResult, Unrepaired, repair
from crckpt.store.upkeep.verify import VerifyResult, verify
from crckpt.store.write.ingest import NewCheckpoint, Preparation, ingest
