"""What the checks of a restore compare: the planned restore, this host's state, and what a tree needs besides files.

That is CPU, kernel and memory. Control groups are not among it: a dump leaves them out (`--manage-cgroups=ignore`). A
restored tree is in the groups of the command that restores it, whose limits apply.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from crckpt.causes import Finding, cause, mebibytes
from crckpt.host.proc import IdUser
from crckpt.host.proc.file_users import HeldLock
from crckpt.host.process.cgroups import TasksLeft
from crckpt.images.mm import GUARD, SHADOW_STACK
from crckpt.images.other_files import OtherFile
from crckpt.images.sockets import PacketSocket
from crckpt.images.tree import ImageTree
from crckpt.model import criu_release

Grown = Literal["refuse", "keep", "rewind"]
"""What to do with files that only grew since the checkpoint, and with logs that were rotated."""

Written = Literal["refuse", "keep"]
"""What to do with files that the program writes in place, and that somebody wrote since the checkpoint."""

TerminalChoice = Literal["ours", "new", "null", "file"]
"""What a tree gets in the place of a terminal outside it: our terminal, a new one, nothing, or a file."""


class PlannedRestore(Struct, frozen=True):
    """A planned restore: what the checkpoint knows and what the user chose.

    - `append_sizes`: the sizes of files opened for appending, which CRIU does not record
    - `inodes`, `owners`: the inodes and owners of the tree's files, by path; `heads`, `times`: of those that it writes,
      digests of the first bytes, and when they were written last; not known of an imported checkpoint, or one of an
      older crckpt
    - `cpu_features`: the features of the CPU of the dump
    - `keeps_connections`: TCP connections continue
    - `crius`: the versions of the CRIU that dumped it and of the CRIU that restores it
    - `cpu_seconds`: the CPU time that the tree had used; not known of an older checkpoint
    - `closed_pipes`: inodes of pipes of which nobody had the other end; not known of a checkpoint that was imported, or
      made by an older crckpt
    - `sockets`: which of our descriptors for the tree's output, 1 and 2, are sockets
    - `terminal_owner`: the user who owns the terminal that the tree gets; None if the owner does not matter
    - `tty`: what the tree gets in the place of its terminal
    - `is_rehearsal`: what it writes to files is lost with it
    - `still_runs`: the tree keeps running, and goes on writing its files: this only checks
    - `shares_kernel`: it still is on another host with this kernel, maybe in the same directories
    - `devices`: the names of network devices by number, for packet sockets; not known of an older checkpoint
    - `unsound_vdsos`: the PIDs of processes whose vDSO CRIU must not read
    - `may_have_consoles`: the owner of a console that the tree had open does not matter
    """

    tree: ImageTree
    created: datetime
    cpu_features: tuple[str, ...]
    keeps_connections: bool
    append_sizes: dict[str, int]
    grown: Grown
    new_pid_namespace: bool
    has_terminal: bool
    crius: tuple[str, str]
    closed_pipes: frozenset[int] = frozenset()
    is_orphan: bool = False
    sockets: frozenset[int] = frozenset()
    terminal_owner: int | None = None
    may_have_consoles: bool = False
    tty: TerminalChoice = "ours"
    still_runs: bool = False
    shares_kernel: bool = False
    written: Written = "refuse"
    is_rehearsal: bool = False
    inodes: Mapping[str, frozenset[int]] = {}
    owners: Mapping[str, Sequence[int]] = {}
    heads: Mapping[str, str] = {}
    times: Mapping[str, float] = {}
    cpu_seconds: float = 0
    unsound_vdsos: frozenset[int] = frozenset()
    devices: Mapping[int, str] = {}


# Of `Inventory.lsm` (images/inventory.proto).
_MODULES = {1: "selinux", 2: "apparmor"}

_CLOCKS_IMAGE = "timens-0.img"

# Flags of /proc/cpuinfo for features that programs look for when they start, and then use. All other flags are the
# kernel's, and change with its version and options. Source: arch/x86/include/asm/cpufeatures.h.
_INSTRUCTIONS = (
    "3dnow 3dnowext abm adx aes amx_bf16 amx_complex amx_fp16 amx_int8 amx_tile avx avx2 avx512_4fmaps avx512_4vnniw "
    "avx512_bf16 avx512_bitalg avx512_fp16 avx512_vbmi2 avx512_vnni avx512_vp2intersect avx512_vpopcntdq avx512bw "
    "avx512cd avx512dq avx512er avx512f avx512ifma avx512pf avx512vbmi avx512vl avx_ifma avx_ne_convert avx_vnni "
    "avx_vnni_int16 avx_vnni_int8 bmi1 bmi2 clflush clflushopt clwb clzero cmov cmpccxadd cx16 cx8 f16c "
    "fma fma4 fpu fsgsbase fxsr gfni lahf_lm mmx mmxext movbe movdir64b movdiri ospke pclmulqdq pni popcnt "
    "raoint rdpid rdrand rdseed rdtscp rtm serialize sha512 sha_ni sm3 sm4 sse sse2 sse4_1 sse4_2 sse4a ssse3 "
    "syscall tbm vaes vpclmulqdq waitpkg xgetbv1 xop xsave xsavec xsaveopt"
)


class Need(Struct, frozen=True):
    """Something that the kernel must do for this tree. `key` is the cause to report if it does not."""

    key: str
    name: str = ""
    number: int = 0


class DiskSpace(Struct, frozen=True):
    """A file system to which a restore writes: bytes that are needed and free. `directory` lies on it."""

    directory: str
    needed: int
    free: int


class HugePages(Struct, frozen=True):
    """Reserved huge pages of `size` bytes: how many the tree needs, and how many are free."""

    size: int
    needed: int
    free: int


class HostResources(Struct, frozen=True):
    """The resources of this host. `missing`: the needs that it does not meet.

    `memory`: the bytes that the tree needs. `tasks` is None if no control group limits them.
    """

    arch: str
    cpu_features: frozenset[str]
    missing: tuple[Need, ...]
    pid_limit: int
    tasks: TasksLeft | None
    memory: int
    free_memory: int
    disks: tuple[DiskSpace, ...]
    huge_pages: tuple[HugePages, ...]


def kernel_needs(
    tree: ImageTree, names: Iterable[str], *, keeps_connections: bool, mounts_proc: bool = False
) -> tuple[Need, ...]:
    """Return what the images need of a kernel. `names`: the names of the image files.

    `mounts_proc`: the restore mounts a /proc of its own.
    """
    module = _MODULES.get(tree.inventory.lsm, "")
    has_profile = bool(module) and any(thread.core.security_profile for thread in tree.threads)
    needs = {
        Need("no-address-family", "IPv6", socket.AF_INET6): any(
            found.family == socket.AF_INET6 for found in tree.inet_sockets
        ),
        Need("no-address-family", "packet", socket.AF_PACKET): any(
            isinstance(file, PacketSocket) for file in tree.files
        ),
        Need("no-tcp-repair"): keeps_connections and bool(tree.established),
        Need("no-tun"): any(isinstance(file, OtherFile) and file.kind == "tun device" for file in tree.files),
        Need("seccomp-again"): any(thread.core.has_seccomp_filter for thread in tree.threads),
        Need("no-guard-pages"): any(vma.status & GUARD for vma in tree.vmas),
        Need("security-module", module): has_profile,
        # CRIU sets the host name there (criu/uts_ns.c); others it sets where they can be written.
        Need("sysctl-read-only", "kernel/hostname"): tree.is_apart("uts") and not mounts_proc,
        # Without this one a tree keeps running, and notices.
        Need("clocks-jump"): _CLOCKS_IMAGE in names,
    }
    return tuple(need for need, is_needed in needs.items() if is_needed)


def count_huge_pages(tree: ImageTree) -> dict[int, int]:
    """Return how many reserved huge pages the tree needs, by their size in bytes."""
    # Processes do not share huge pages.
    found: Counter[int] = Counter()
    for vma in tree.vmas:
        if vma.huge_page:
            found[vma.huge_page] += vma.size // vma.huge_page
    return dict(found)


def judge_requirements(planned: PlannedRestore, largest: int, host: HostResources) -> Iterator[Finding]:
    """Find what this host lacks. `largest`: the tree's highest id."""
    tree, (recorded, version) = planned.tree, planned.crius
    made, ours = criu_release(recorded), criu_release(version)
    # The images change from release to release: CRIU before 4.2 finds no page in images of 4.2.
    if made and ours and ours < made:
        yield cause("older-criu").finding(recorded=recorded, version=version)
    strange = next((thread.core.arch for thread in tree.threads if thread.core.arch != host.arch), None)
    # Then nothing else of this host matters.
    if strange is not None:
        yield cause("images-arch").finding(machine=f"{strange}, and this machine is {host.arch}")
        return
    # An imported checkpoint has few, and some kernels list none: then nothing can be compared.
    features = find_needed_features(tree, planned.cpu_features) - host.cpu_features
    if features and host.cpu_features:
        yield cause("cpu").finding(features=", ".join(sorted(features)))
    if largest >= host.pid_limit:
        yield cause("pid-limit").finding(number=f"PID {largest}")
    yield from (cause(need.key).finding(name=need.name) for need in host.missing)
    yield from _find_shortages(len(tree.threads), host)


def find_needed_features(tree: ImageTree, recorded: Iterable[str]) -> frozenset[str]:
    """Return the CPU features without which a program of this tree may die: it may use all that its CPU had."""
    # This is the only flag of the kernel's own that counts: the program was using a shadow stack.
    shadowed = any(vma.status & SHADOW_STACK for vma in tree.vmas)
    return frozenset(_INSTRUCTIONS.split()) & frozenset(recorded) | ({"user_shstk"} if shadowed else set())


def _find_shortages(tasks: int, host: HostResources) -> Iterator[Finding]:
    if host.tasks is not None and tasks > host.tasks.left:
        yield cause("tasks-limit").finding(group=host.tasks.group, left=max(0, host.tasks.left), needed=tasks)
    # Refuse this: the kernel's OOM killer would end other programs.
    if host.memory > host.free_memory:
        yield cause("tree-memory").finding(needed=mebibytes(host.memory), free=mebibytes(max(0, host.free_memory)))
    for pages in host.huge_pages:
        if pages.needed > pages.free:
            directory = f"/sys/kernel/mm/hugepages/hugepages-{pages.size >> 10}kB"
            yield cause("huge-pages").finding(
                needed=pages.needed, size=mebibytes(pages.size), free=max(0, pages.free), directory=directory
            )
    for disk in host.disks:
        if disk.needed > disk.free:
            yield cause("restore-space").finding(
                needed=mebibytes(disk.needed), free=mebibytes(disk.free), directory=disk.directory
            )


Refusal = Literal["taken", "missing", "occupied", "unwritable", "linked", "absent"]
"""Why a socket cannot have its address or name back: another program has it, this host does not have it (or not the
directory of a path), another file is there, nothing can be made there, its path leads through a link that is not
followed. `absent`: nobody has the name of its peer."""

if TYPE_CHECKING:
    from crckpt.host.disk.packages import Package
    from crckpt.host.proc.file_users import FileWriter


class FileState(Struct, frozen=True):
    """A file of this host, as it is now: `size` in bytes, `owner` a user id.

    `written`: when its content changed. `changed`: when anything changed, also its name or mode. `is_linked`: its path
    leads through a symbolic link. `is_redirected`: a restore does not follow that link. `head`: its first bytes, read
    only if the checkpoint has those of its file. `other_name`: the link that CRIU made is missing, and this is another
    name of the file in the same directory.
    """

    size: int
    mode: int
    written: datetime
    changed: datetime
    build_id: str
    is_linked: bool = False
    owner: int = 0
    inode: int = 0
    head: bytes = b""
    other_name: str = ""
    is_redirected: bool = False


class HostState(Struct, frozen=True):
    """The state of everything on this host that a checkpoint needs. A missing file is None.

    `refused`, `released`: by the id of a socket; seconds until an address that only closed connections have is free.
    `interfaces`: number and name of each. `unwatched`: watched paths that are missing. `packages` of changed files,
    `locks` on each file, `writers` of changed ones: by path; the last only if a file is to be cut back. `us` is
    crckpt's own PID. `terminals`: the N of each /dev/pts/N that is in use.
    """

    owners: tuple[IdUser, ...]
    files: dict[str, FileState | None]
    refused: dict[int, Refusal]
    resources: HostResources
    interfaces: tuple[tuple[int, str], ...] = ()
    unwatched: frozenset[str] = frozenset()
    released: dict[int, int] = {}
    packages: dict[str, Package] = {}
    locks: dict[str, tuple[HeldLock, ...]] = {}
    writers: dict[str, FileWriter] = {}
    us: int = 0
    terminals: frozenset[int] = frozenset()
