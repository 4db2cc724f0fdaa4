"""crckpt reads from the images of a real checkpoint the same as CRIU's own tool `crit`."""

from __future__ import annotations

import json
import os
import quopri
import re
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from fcntl import FD_CLOEXEC
from ipaddress import ip_address
from itertools import repeat
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import pytest
from checkout import TESTS
from command import find_criu
from msgspec import Struct

from crckpt.images import core, other_files, sockets, tty
from crckpt.images.core import Rights, read_core, read_registers
from crckpt.images.files import OpenFile, read_files
from crckpt.images.framing import read_image
from crckpt.images.inventory import DumpStats, read_dump_stats, read_inventory
from crckpt.images.mm import AddressSpace, Vma, read_mm
from crckpt.images.pagemap import Entry, read_pagemap
from crckpt.images.processes import (
    Directories,
    ImageDescriptor,
    KernelIds,
    Namespaces,
    ProcessEntry,
    read_descriptors,
    read_directories,
    read_ids,
    read_pstree,
)
from crckpt.images.regfile import Ghost, RegularFile, Remap, read_ghost, read_remaps

IMAGE_DIRECTORY: Final = TESTS / "data/images"
MADV_HUGEPAGE: Final = 14
Record: TypeAlias = dict[str, Any]
Made = TypeVar("Made", bound=Struct)


@pytest.fixture(scope="module")
def criu() -> Path:
    """The CRIU in use."""
    return find_criu()


@pytest.fixture(scope="module")
def crit(criu: Path) -> Path:
    """CRIU's tool, next to CRIU or on PATH; the tests are skipped without a working one."""
    found = shutil.which("crit", path=criu.parent) or shutil.which("crit")
    if found is None:
        pytest.skip("no crit: crckpt install-criu --try sid gets a CRIU with it")
    tried = subprocess.run(
        [found, "decode", "-i", IMAGE_DIRECTORY / "tree/inventory.img"], capture_output=True, text=True
    )
    if '"INVENTORY"' not in tried.stdout:
        pytest.skip(f"{found} does not work: {(tried.stderr.strip().splitlines() or ['it says nothing'])[-1]}")
    return Path(found)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, criu: Path, crit: Path) -> Path:
    """A dump of a tree that has one of everything, by the CRIU in use."""
    directory = tmp_path_factory.mktemp("crit")
    shutil.copy(IMAGE_DIRECTORY / "make", directory)
    # crit reads no names that are no UTF-8; the tests of crckpt.images do.
    program = (IMAGE_DIRECTORY / "program.py").read_text().replace(r'b"\xff"', 'b"+"')
    (directory / "program.py").write_text(program)
    environment = os.environ | {"CRCKPT_CRIU": str(criu), "TMPDIR": str(directory)}
    subprocess.run(["sh", directory / "make"], env=environment, check=True)
    return directory / "tree"


def test_crckpt_reads_the_same_values_from_every_image_as_crit(images: Path, crit: Path) -> None:
    """The records, the raw bytes after them and every value that crckpt reads are compared."""
    kinds = set()
    paths = tuple(images.iterdir())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        of_crit = pool.map(decoded, repeat(crit), paths)
    for path, entries in zip(paths, of_crit, strict=True):
        data = path.read_bytes()
        records = read_image(data, path.name).records
        assert len(records) == len(entries), path.name
        assert [record.extra for record in records] == [*map(extra, entries)], path.name
        kind = re.split(r"-(?=[0-9a-f]+\.)|-shmem|\.", path.name)[0]
        if kind in READERS:
            kinds.add(kind)
            ours, theirs = READERS[kind]
            assert ours(data) == theirs(entries), path.name
    assert kinds == set(READERS)


def decoded(crit: Path, image: Path) -> list[Record]:
    """The records of an image, as crit prints them."""
    result = subprocess.run([crit, "decode", "-i", image], capture_output=True, check=True)
    entries: list[Record] = json.loads(result.stdout)["entries"]
    return entries


def extra(record: Record) -> bytes:
    """The raw bytes after a record, or both queues of a TCP connection."""
    found = record.get("extra", "")
    return b"".join(map(b64decode, found.values() if isinstance(found, dict) else (found,)))


def made(kind: type[Made], record: Record, names: str, /, **others: object) -> Made:
    """Make one of crckpt's values from fields of crit, in the order of its own fields, and from `others`."""
    values = (record.get(name, 0) for name in names.split())
    return kind(**dict(zip(kind.__struct_fields__, values, strict=False)) | others)


def words(values: Iterable[int], size: int) -> bytes:
    """Numbers of that many bytes each."""
    return b"".join(value.to_bytes(size, "little") for value in values)


def inventory(records: list[Record]) -> tuple[object, ...]:
    """Version, ids, run, and whether connections were closed."""
    (record,) = records
    return (
        record["img_version"],
        ids(record["root_ids"]),
        record.get("dump_criu_run_id"),
        record.get("tcp_close", False),
    )


def our_inventory(data: bytes) -> tuple[object, ...]:
    """The same values of the inventory, as crckpt reads them."""
    found = read_inventory(data)
    return found.version, found.root_ids, found.run_id, found.tcp_close


def ids(record: Record) -> KernelIds:
    """What a task shares with others."""
    namespaces = made(Namespaces, record, " ".join(f"{kind}_ns_id" for kind in Namespaces.__struct_fields__))
    return made(KernelIds, record, "files_id", namespaces=namespaces)


def thread(records: list[Record]) -> tuple[object, ...]:
    """A thread's state, and its registers if it has any."""
    (record,) = records
    task, own = record.get("tc", {}), record.get("thread_core", {})
    mask = own.get("blk_sigset", task.get("blk_sigset", 0))
    owner = own.get("creds")
    state = core.Core(
        arch=record["mtype"].lower(),
        comm=own.get("comm", task.get("comm", "")),
        state={1: core.ALIVE, 2: core.ZOMBIE, 3: core.STOPPED}[task.get("task_state", 1)],
        exit_code=task.get("exit_code", 0),
        blocked=tuple(number for number in range(1, 65) if mask >> number - 1 & 1),
        pending=signals(own.get("signals_p", {})),
        credentials=owner and made(core.Credentials, owner, "uid gid euid egid", groups=tuple(owner.get("groups", ()))),
        rights=owner and rights_of(owner),
        has_seccomp_filter=own.get("seccomp_mode") in ("filter", 2),
        rseq=tuple(
            own.get("rseq_entry", {}).get(name, 0) for name in ("rseq_abi_pointer", "rseq_abi_size", "signature")
        ),
    )
    return state, *(registers(record["thread_info"]) if "thread_info" in record else ())


def rights_of(owner: Record) -> Rights:
    """The rights of a thread."""
    uids, gids = (tuple(owner[f"{kind}{name}"] for kind in ("", "e", "s", "fs")) for name in ("uid", "gid"))
    sets = (owner.get(f"cap_{name}", ()) for name in ("inh", "prm", "eff", "bnd", "amb"))
    capabilities = tuple(sum(word << 32 * place for place, word in enumerate(words)) for words in sets)
    groups = frozenset(owner.get("groups", ()))
    return Rights(uids, gids, groups, capabilities, confined=bool(owner.get("no_new_privs", 0)))


def signals(queue: Record) -> tuple[int, ...]:
    """The numbers of the signals."""
    return tuple(b64decode(record["siginfo"])[0] for record in queue.get("signals", ()))


def registers(record: Record) -> tuple[object, ...]:
    """General, floating-point and extended ones, and which of these are in use."""
    general, floating = dict(record["gpregs"]), record["fpregs"]
    assert general.pop("mode") == "NATIVE"
    xsave = floating["xsave"]
    parts = ((2, "ymmh_space", 4), (5, "opmask_reg", 8), (6, "zmm_upper", 8), (7, "hi16_zmm", 8), (9, "pkru", 4))
    extended = {number: words(xsave[name], size) for number, name, size in parts if name in xsave}
    small = words((floating[name] for name in ("cwd", "swd", "twd", "fop")), 2)
    places = words((floating[name] for name in ("rip", "rdp")), 8)
    rest = words((floating["mxcsr"], floating["mxcsr_mask"], *floating["st_space"], *floating["xmm_space"]), 4)
    return tuple(general.values()), (small + places + rest).ljust(512, b"\0"), extended, xsave["xstate_bv"]


def our_thread(data: bytes) -> tuple[object, ...]:
    """The same values of a thread, as crckpt reads them."""
    state = read_core(data)
    if state.state == core.ZOMBIE:
        return (state,)
    found = read_registers(data)
    return state, found.general, found.floating, dict(found.extended), found.in_use


def memory(records: list[Record]) -> AddressSpace:
    """Maps, vector and places of a process."""
    (record,) = records
    vmas = tuple(
        made(
            Vma,
            vma,
            "start end pgoff shmid prot flags status",
            wants_huge_pages=bool(vma.get("madv", 0) & 1 << MADV_HUGEPAGE),
            opened=vma.get("fdflags"),
        )
        for vma in record["vmas"]
    )
    places = {name: record[f"mm_{name}"] for name in AddressSpace.__struct_fields__[3:-1]}
    auxv, dumpable = tuple(record["mm_saved_auxv"]), record.get("dumpable", 1)
    return AddressSpace(vmas, auxv, record["exe_file_id"], **places, dumpable=dumpable)


def pages(records: list[Record]) -> tuple[int, tuple[Entry, ...]]:
    """The pages that are present."""
    head, *rest = records
    return head["pages_id"], tuple(Entry(one["vaddr"], one["nr_pages"], one["flags"]) for one in rest)


def ghost(records: list[Record]) -> Ghost:
    """A deleted file."""
    stored = sum(map(len, map(extra, records)))
    sizes = {"size": records[0].get("size", stored), "stored": stored}
    return made(Ghost, records[0], "uid gid mode", inode=records[0]["ino"], **sizes)


def statistics(records: list[Record]) -> DumpStats:
    """The statistics of a dump."""
    return made(DumpStats, records[0]["dump"], " ".join(DumpStats.__struct_fields__).replace("shared_pages", "shpages"))


def terminal(record: Record) -> tty.TerminalInfo:
    """The terminal to which open files refer."""
    names = {"kind": record["type"].lower(), "session": record["sid"]}
    return made(tty.TerminalInfo, record, "id", index=record.get("pty", {}).get("index"), **names)


def open_file(record: Record) -> object:
    """A record of files.img; of kinds of which nothing more is read, type and id."""
    field, read = FILE_KINDS.get(record["type"], ("", None))
    return read(record[field]) if read else record["id"]


def our_file(file: OpenFile) -> object:
    """The same values of an open file, as crckpt reads them."""
    return file.id if isinstance(file, other_files.OtherFile) else file


def regular(record: Record) -> RegularFile:
    """A file with a path."""
    return made(
        RegularFile,
        record,
        "id",
        path=record["name"],
        flags=record["flags"],
        pos=record["pos"],
        size=record.get("size"),
        mode=record.get("mode"),
        build_id=words(record.get("build_id", ()), 4).hex(),
        external=record.get("ext", False),
    )


def inet(record: Record) -> sockets.InetSocket:
    """An internet socket."""
    ends = (
        sockets.Address(str(ip_address(words(record[f"{end}_addr"], 4))), record[f"{end}_port"])
        for end in ("src", "dst")
    )
    return made(
        sockets.InetSocket,
        record,
        "id ino family",
        type=TYPES[record["type"]],
        protocol={6: "tcp", 17: "udp"}[record["proto"]],
        state=STATES[record["state"]],
        flags=record["flags"],
        backlog=record["backlog"],
        interface=record.get("ifname", ""),
        namespace=record["ns_id"],
        **dict(zip(("source", "destination"), ends, strict=True)),
    )


def unix(record: Record) -> sockets.UnixSocket:
    """A unix socket."""
    name = quopri.decodestring(record["name"])
    return made(
        sockets.UnixSocket,
        record,
        "id ino",
        type=TYPES[record["type"]],
        state=STATES[record["state"]],
        name_bytes=b"@" + name[1:] if name[:1] == b"\0" else name.rstrip(b"\0"),
        directory=record.get("name_dir", ""),
        peer=record["peer"],
        flags=record["flags"],
        backlog=record["backlog"],
        external=False,
        deleted=record.get("deleted", False),
    )


def epoll(record: Record) -> other_files.EventPoll:
    """The files that an epoll watches."""
    return made(other_files.EventPoll, record, "id flags", watched=tuple(one["tfd"] for one in record["tfd"]))


def each(read: Callable[[Record], object]) -> Callable[[list[Record]], object]:
    """Every record."""
    return lambda records: tuple(map(read, records))


def descriptor(record: Record) -> ImageDescriptor:
    """The target of a descriptor."""
    return made(ImageDescriptor, record, "fd id", close_on_exec=bool(record["flags"] & FD_CLOEXEC))


TYPES: Final = {1: "stream", 2: "datagram"}
STATES: Final = {1: "established", 7: "close", 10: "listen"}


def inotify(record: Record) -> other_files.Watch:
    """A watch, with a path if CRIU cannot open its file by handle."""
    paths = tuple(path for mark in record["wd"] if (path := mark["f_handle"].get("path")))
    return other_files.Watch(record["id"], "inotify", record["flags"], len(record["wd"]), paths)


FILE_KINDS: Final[dict[str, tuple[str, Callable[[Record], object]]]] = {
    "REG": ("reg", regular),
    "PIPE": ("pipe", lambda record: made(other_files.Pipe, record, "id pipe_id flags")),
    "FIFO": ("fifo", lambda record: made(other_files.Fifo, record, "id pipe_id regf_id")),
    "TTY": ("tty", lambda record: made(tty.Terminal, record, "id tty_info_id flags regf_id")),
    "MEMFD": ("memfd", lambda record: made(other_files.MemFd, record, "id flags pos inode_id")),
    "INETSK": ("isk", inet),
    "UNIXSK": ("usk", unix),
    "NETLINKSK": ("nlsk", lambda record: made(sockets.NetlinkSocket, record, "id ino protocol portid flags")),
    "EVENTPOLL": ("epfd", epoll),
    "PIDFD": ("pidfd", lambda record: made(other_files.PidFd, record, "id flags nspid")),
    "INOTIFY": ("ify", inotify),
}
"""Type of a file -> where its record is, and how it is read."""
READERS: Final[dict[str, tuple[Callable[[bytes], object], Callable[[list[Record]], object]]]] = {
    "inventory": (our_inventory, inventory),
    "pstree": (
        read_pstree,
        each(lambda record: made(ProcessEntry, record, "pid ppid pgid sid", threads=tuple(record["threads"]))),
    ),
    "core": (our_thread, thread),
    "ids": (read_ids, lambda records: ids(records[0])),
    "fs": (read_directories, lambda records: made(Directories, records[0], "cwd_id root_id umask")),
    "mm": (read_mm, memory),
    "fdinfo": (read_descriptors, each(descriptor)),
    "files": (lambda data: tuple(map(our_file, read_files(data))), each(open_file)),
    "remap-fpath": (
        lambda data: tuple(read_remaps(data).items()),
        each(lambda record: (record["orig_id"], Remap(record["remap_type"].lower(), record["remap_id"]))),
    ),
    "ghost-file": (read_ghost, ghost),
    "memfd": (
        other_files.read_memfd_inodes,
        each(lambda record: made(other_files.MemFdInode, record, "inode_id name size shmid")),
    ),
    "tty-info": (tty.read_terminals, each(terminal)),
    "pagemap": (lambda data: (read_pagemap(data).pages_id, read_pagemap(data).entries), pages),
    "stats-dump": (read_dump_stats, statistics),
}
"""Kind of image -> what crckpt makes of its bytes, and what it must be by crit's records."""
