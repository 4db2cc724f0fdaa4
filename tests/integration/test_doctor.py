"""`crckpt doctor`, as people and scripts use it."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import AS_NOBODY, PROGRAM, WITHOUT_CRIU, Crckpt

from crckpt.store import Repository

HOST = 20
FACT = {"key", "state", "found", "consequence", "fix", "safe"}
KEYS = {
    *("criu", "criu_plugins", "kernel", "checkpoint_restore", "pid_selection", "ptrace_scope", "seccomp_suspension"),
    *("time_namespaces", "memory", "soft_dirty", "tracker", "write_protection", "pagemap_scan", "lazy_pages"),
    *(
        "tcp_repair",
        "lock_nftables",
        "lock_iptables",
        "lock_skip",
        "move_ip",
        "socket_diagnostics",
        "tun",
        "capabilities",
        "rootless",
    ),
    *("security_modules", "cgroups", "run_directory", "store", "staging", "util_linux", "systemd", "ssh"),
}
TRACKER_CHECKS = {"soft_dirty", "write_protection"}
"""`tracker` sums these up."""
UNUSED_FEATURES = {"lock_iptables", "lazy_pages", "rootless", "ssh"}
WITHOUT_CHMOD = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    'mount --bind "$0" "$(readlink -f "$(command -v chmod)")" && exec "$@"',
)
"""Words before a program that is to take the place of chmod, and a command."""
READ_ONLY_SETTINGS = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    "mount -o bind,ro /proc/sys /proc/sys && ! test -w /proc/sys/kernel/ns_last_pid && "
    'mkdir -p /var/cache/crckpt && mount -t tmpfs none /var/cache/crckpt && exec "$@"',
    "sh",
)
"""Words before a command that is to try each CRIU anew and, as in a container, cannot change the kernel's settings."""


@pytest.fixture
def crckpt_with_an_open_store(crckpt: Crckpt) -> Crckpt:
    """The command, with a store that others can enter, which doctor can repair safely."""
    Repository.open(crckpt.store, create=True)
    crckpt.store.chmod(0o755)
    return crckpt


def facts(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {fact["key"]: fact for fact in document["result"]["facts"]}


def test_json_output_of_doctor_has_the_documented_keys(crckpt_with_an_open_store: Crckpt) -> None:
    document = crckpt_with_an_open_store.run("doctor", "--json").document
    assert len(document["result"]["facts"]) == len(KEYS)
    assert facts(document).keys() == KEYS
    assert all(fact.keys() == FACT for fact in document["result"]["facts"])
    assert document["result"]["able"] is True
    store = facts(document)["store"]
    assert document["result"]["fixes"][-1] == {"key": "store", "command": store["fix"], "done": False, "said": ""}


def test_missing_store_is_not_reported_as_a_problem(crckpt: Crckpt) -> None:
    """The first dump creates the store, so there is nothing to fix. doctor creates nothing."""
    store = facts(crckpt.run("doctor", "--json").document)["store"]
    assert (store["state"], store["fix"], store["safe"]) == ("ok", "", False)
    assert not crckpt.store.exists()


def test_all_checks_are_printed_with_consequence_and_fix(crckpt_with_an_open_store: Crckpt) -> None:
    checks = facts(crckpt_with_an_open_store.run("doctor", "--json").document)
    shown = crckpt_with_an_open_store.run("doctor", "--all")
    words = " ".join(shown.out.split())
    assert all(f" {key} " in words for key in KEYS - TRACKER_CHECKS)
    assert all(" ".join(checks["store"][part].split()) in words for part in ("consequence", "fix"))
    assert shown.out.startswith("this host can checkpoint and restore programs\n")


def test_doctor_prints_the_verdict_first_and_then_only_the_problems(crckpt_with_an_open_store: Crckpt) -> None:
    checks = facts(crckpt_with_an_open_store.run("doctor", "--json").document)
    verdict, *lines = crckpt_with_an_open_store.run("doctor").out.splitlines()
    assert verdict == "this host can checkpoint and restore programs"
    rows = [line.split()[:2] for line in lines if line.startswith(("ok", "limited", "missing", "unused"))]
    assert [checks["store"]["state"], "store"] in rows
    assert all(checks[key]["state"] == state != "ok" for state, key in rows)
    assert not {key for _, key in rows} & (TRACKER_CHECKS | UNUSED_FEATURES)
    known = len(KEYS - TRACKER_CHECKS)
    assert lines[-1] == f"the other {known - len(rows)} of {known} checks are fine: crckpt doctor --all shows them"


def test_doctor_reports_a_broken_criu_given_with_the_option_criu(crckpt_with_an_open_store: Crckpt) -> None:
    _, criu, *_ = crckpt_with_an_open_store.run("doctor", "--criu", "/bin/false").out.splitlines()
    assert criu.startswith("CRIU ")
    assert "; /bin/false (--criu): it is not CRIU: its --version says 'false (GNU coreutils)" in criu


def test_doctor_offers_no_fix_for_features_that_are_not_used(crckpt_with_an_open_store: Crckpt) -> None:
    checks = facts(crckpt_with_an_open_store.run("doctor", "--json").document)
    shown = " ".join(crckpt_with_an_open_store.run("doctor", "--all").out.split())
    for key in UNUSED_FEATURES | TRACKER_CHECKS:
        if checks[key]["state"] != "ok" and checks[key]["fix"]:
            assert f"fix: {' '.join(checks[key]['fix'].split())}" not in shown


def test_unsuitable_host_reports_all_checks_and_exits_20(crckpt: Crckpt) -> None:
    words = (*WITHOUT_CRIU, str(PROGRAM), "doctor", "--criu", "/bin/false", "--json")
    result = subprocess.run(words, capture_output=True, text=True, env=crckpt.environment, check=False)
    assert result.returncode == HOST, result.stderr
    output = json.loads(result.stdout)
    assert output["result"]["able"] is False
    assert facts(output).keys() == KEYS
    criu = facts(output)["criu"]
    assert (criu["state"], criu["fix"]) == ("missing", "crckpt install-criu")
    assert "/bin/false (--criu): " in criu["found"]


def test_criu_works_where_kernel_settings_are_read_only(crckpt: Crckpt) -> None:
    """`criu check` fails where the settings are read-only, although CRIU needs to write none of them."""
    words = (*READ_ONLY_SETTINGS, str(PROGRAM), "doctor", "--json")
    result = subprocess.run(words, capture_output=True, text=True, env=crckpt.environment, check=True)
    assert facts(json.loads(result.stdout))["criu"]["state"] == "ok"


def test_doctor_reports_all_checks_without_root(crckpt: Crckpt, tmp_path: Path) -> None:
    nobody = (*AS_NOBODY, str(PROGRAM), "doctor", "--json")
    environment = crckpt.environment | {"HOME": str(tmp_path)}
    result = subprocess.run(nobody, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == HOST, result.stderr
    document = facts(json.loads(result.stdout))
    assert document.keys() == KEYS
    assert document["criu"]["fix"] == "sudo crckpt doctor"
    assert "checkpoint_restore" in document["rootless"]["fix"]


def test_fix_changes_nothing_if_nobody_answers_its_question(crckpt_with_an_open_store: Crckpt) -> None:
    result = crckpt_with_an_open_store.run("doctor", "--fix")
    assert f"would run: chmod 700 {crckpt_with_an_open_store.store}\n" in result.err
    assert "--yes" in result.err
    assert stat.S_IMODE(crckpt_with_an_open_store.store.stat().st_mode) == 0o755


def test_fix_with_yes_makes_the_store_private_again(crckpt_with_an_open_store: Crckpt) -> None:
    if (run := crckpt_with_an_open_store.run("doctor", "--fix", "--yes", "--json")).document["result"]["fixes"][:-1]:
        pytest.skip("this host has more to fix")
    assert run.err == f"done: chmod 700 {crckpt_with_an_open_store.store}\n"
    assert [fix["done"] for fix in run.document["result"]["fixes"]] == [True]
    assert facts(run.document)["store"]["state"] == "ok"
    assert stat.S_IMODE(crckpt_with_an_open_store.store.stat().st_mode) == 0o700
    second_run = crckpt_with_an_open_store.run("doctor", "--fix", "--yes")
    assert second_run.err == "nothing can be fixed safely\n"


@pytest.mark.parametrize(("answer", "mode"), [(b"n\n", 0o755), (b"\x04", 0o755), (b"y\n", 0o700)])
def test_fix_is_done_only_if_the_question_at_the_terminal_is_answered_with_yes(
    crckpt_with_an_open_store: Crckpt, answer: bytes, mode: int
) -> None:
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer)
        result = subprocess.run(
            [str(PROGRAM), "doctor", "--fix"],
            stdin=theirs,
            capture_output=True,
            text=True,
            env=crckpt_with_an_open_store.environment,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert result.returncode == 0, result.stderr
    assert "run this? [y/N]" in result.stderr
    assert stat.S_IMODE(crckpt_with_an_open_store.store.stat().st_mode) == mode


def test_doctor_reports_a_fix_command_that_fails(crckpt_with_an_open_store: Crckpt, tmp_path: Path) -> None:
    fails = tmp_path / "fails"
    fails.write_text("#!/bin/sh\necho 'chmod: it does not work' >&2; exit 1\n")
    fails.chmod(0o755)
    words = (*WITHOUT_CHMOD, str(fails), str(PROGRAM), "doctor", "--fix", "--yes")
    error = subprocess.run(
        words, capture_output=True, text=True, env=crckpt_with_an_open_store.environment, check=True
    ).stderr
    assert f"failed: chmod 700 {crckpt_with_an_open_store.store} (chmod: " in error
