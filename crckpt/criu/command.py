"""Build the command lines of CRIU. Pure: nothing is run here."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from crckpt.model import DumpOptions

# 3 is the lowest level that logs the id of the run, by which its network lock is found after a failure.
LOG_LEVEL = "-v3"


class Paths(Struct, frozen=True):
    """The paths of one run of CRIU: image files, log and statistics, the hold's script if there is one."""

    images: Path
    work: Path
    script: Path | None = None


def dump_command(
    criu: Path,
    pid: int,
    paths: Paths,
    options: DumpOptions,
    *,
    leave_running: bool,
    unprivileged: bool = False,
    track: bool = False,
    base: str | None = None,
) -> tuple[str, ...]:
    """`criu dump` of the tree below `pid`, ended unless `leave_running`; `unprivileged` if CRIU is not root.

    With `track` the next dump can count from this one. `base`, as seen from `paths.images`, is what this one counts
    from.
    """
    return (
        str(criu),
        "dump",
        "--tree",
        str(pid),
        *_common_options(paths, log="dump.log"),
        *_split_words(option_words(options)),
        *(("--leave-running",) if leave_running else ()),
        *(("--unprivileged",) if unprivileged else ()),
        *(("--track-mem",) if track else ()),
        *(("--prev-images-dir", base) if base else ()),
    )


def pre_dump_command(
    criu: Path, pid: int, paths: Paths, base: str | None = None, *, reads: bool = False
) -> tuple[str, ...]:
    """`criu pre-dump` of the memory of the tree below `pid`, which goes on; `base` as for `dump_command`.

    If it `reads`, pages are copied when the tree runs again, else moved into pipes while it stands still.
    """
    return (
        str(criu),
        "pre-dump",
        "--tree",
        str(pid),
        *_place_options(paths, log="pre-dump.log"),
        "--track-mem",
        # Pages that cannot be read by then are missing, and CRIU says so if the next dump leaves them to this one.
        *(("--pre-dump-mode=read",) if reads else ()),
        *(("--prev-images-dir", base) if base else ()),
    )


def restore_command(
    criu: Path,
    paths: Paths,
    options: DumpOptions,
    *,
    sibling: bool,
    inherit: tuple[str, ...] = (),
    stream: bool = False,
) -> tuple[str, ...]:
    """`criu restore --restore-detached`.

    With `sibling` the root becomes a child of CRIU's parent. `inherit` are values of `--inherit-fd`. With `stream` CRIU
    asks for images at a socket in `paths.images`.
    """
    return (
        str(criu),
        "restore",
        *_common_options(paths, log="restore.log"),
        *_split_words(_shared_options(options)),
        "--restore-detached",
        *(("--stream",) if stream else ()),
        # As its parent crckpt can wait for the program's own status.
        *(("--restore-sibling",) if sibling else ()),
        *(word for value in inherit for word in ("--inherit-fd", value)),
    )


def option_words(options: DumpOptions) -> tuple[str, ...]:
    """The words that `options` add to a dump, as a person wants to read them."""
    ghost = (f"--ghost-limit {options.ghost_limit}",) if options.ghost_limit else ()
    return (*_shared_options(options), *ghost, *(("--skip-in-flight",) if options.skip_in_flight else ()))


def _place_options(paths: Paths, *, log: str) -> tuple[str, ...]:
    places = ("--images-dir", str(paths.images), "--work-dir", str(paths.work), "--log-file", log, LOG_LEVEL)
    # /etc/criu and ~/.criu may name other scripts, and options that were not picked for this tree.
    return ("--no-default-config", *places)


def _common_options(paths: Paths, *, log: str) -> tuple[str, ...]:
    return (
        *_place_options(paths, log=log),
        # The tree's cgroups belong to this host's service manager; a restored tree stays where CRIU runs.
        "--manage-cgroups=ignore",
        *(("--action-script", str(paths.script)) if paths.script else ()),
    )


def _shared_options(options: DumpOptions) -> tuple[str, ...]:
    """The options of a dump that its restore repeats; a value follows a blank."""
    flags = {
        "--tcp-established": options.tcp == "keep",
        "--tcp-close": options.tcp == "close",
        "--shell-job": options.shell_job,
        "--file-locks": options.file_locks,
        "--link-remap": options.link_remap,
        "--ext-unix-sk": options.ext_unix_sk,
    }
    # nftables: one table to find and to lift, where iptables would leave single rules among the host's own.
    method = "nftables" if options.tcp == "keep" else options.network_lock
    lock = (f"--network-lock {method}",) if method else ()
    return (*(flag for flag, on in flags.items() if on), *lock, *(f"--external {what}" for what in options.external))


def _split_words(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part for word in words for part in word.split(" ", 1))
