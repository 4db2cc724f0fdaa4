"""Build CRIU's command lines from options."""

from __future__ import annotations

from pathlib import Path

import pytest

from crckpt.criu.command import LOG_LEVEL, Paths, dump_command, option_words, restore_command
from crckpt.model import DumpOptions

CRIU = Path("/opt/criu")
PATHS = Paths(Path("/s/images"), Path("/s/work"))
ALL = DumpOptions(
    tcp="keep",
    shell_job=True,
    file_locks=True,
    link_remap=True,
    ext_unix_sk=True,
    ghost_limit=5 << 20,
    external=("unix[5]", "mnt[a b]:c"),
)
COMMON = (
    "--no-default-config",
    "--images-dir",
    "/s/images",
    "--work-dir",
    "/s/work",
    "--log-file",
    "{}.log",
    LOG_LEVEL,
    "--manage-cgroups=ignore",
)


def common(log: str) -> tuple[str, ...]:
    return tuple(word.format(log) for word in COMMON)


def test_dump_command_of_a_plain_tree_has_only_the_common_options() -> None:
    assert dump_command(CRIU, 7, PATHS, DumpOptions(), leave_running=False) == (
        "/opt/criu",
        "dump",
        "--tree",
        "7",
        *common("dump"),
    )


def test_restore_command_of_a_plain_tree_is_detached_and_may_make_a_sibling() -> None:
    words = ("/opt/criu", "restore", *common("restore"), "--restore-detached")
    assert restore_command(CRIU, PATHS, DumpOptions(), sibling=False) == words
    assert restore_command(CRIU, PATHS, DumpOptions(), sibling=True) == (*words, "--restore-sibling")


def test_commands_for_criu_contain_every_chosen_option() -> None:
    flags = ("--tcp-established", "--shell-job", "--file-locks", "--link-remap", "--ext-unix-sk")
    chosen = (*flags, "--network-lock", "nftables", "--external", "unix[5]")
    paths = Paths(PATHS.images, PATHS.work, Path("/s/hold/hold"))
    dump = dump_command(CRIU, 7, paths, ALL, leave_running=True, unprivileged=True)
    after = ("--action-script", "/s/hold/hold", *chosen, "--external", "mnt[a b]:c")
    assert dump[4:] == (
        *common("dump"),
        *after,
        "--ghost-limit",
        str(5 << 20),
        "--leave-running",
        "--unprivileged",
    )
    restore = restore_command(CRIU, paths, ALL, sibling=False, inherit=("fd[5]:pipe:[6]", "fd[7]:a b"))
    inherited = ("--inherit-fd", "fd[5]:pipe:[6]", "--inherit-fd", "fd[7]:a b")
    assert restore[2:] == (*common("restore"), *after, "--restore-detached", *inherited)


@pytest.mark.parametrize(("tcp", "words"), [("close", ("--tcp-close",)), (None, ())])
def test_tcp_close_is_a_criu_option(tcp: object, words: tuple[str, ...]) -> None:
    assert tcp in ("close", None)
    assert option_words(DumpOptions(tcp="close" if tcp else None)) == words


def test_network_lock_is_a_criu_option() -> None:
    assert option_words(DumpOptions(network_lock="skip")) == ("--network-lock skip",)
    assert option_words(DumpOptions(network_lock="nftables")) == ("--network-lock nftables",)


def test_option_and_its_value_are_shown_as_one_word() -> None:
    assert option_words(ALL)[-2:] == ("--external mnt[a b]:c", "--ghost-limit 5242880")
    assert option_words(DumpOptions()) == ()
