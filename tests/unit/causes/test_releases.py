"""Explanations depend on CRIU's release, and on other programs' lines next to CRIU's log."""

from __future__ import annotations

import pytest

from crckpt.causes.finding import LIKELY
from crckpt.causes.releases import LAST_LINES, find_release
from crckpt.criu.explain import explain

SLAVE_MOUNT_LINE = "(00.03) 7: Error (criu/mount-v2.c:966): mnt-v2: Failed to make mount 476 slave: Invalid argument\n"
CRASH_LINE = "(00.03) Error (criu/cr-restore.c:1480): 63978 killed by signal 11: Segmentation fault\n"
UNKNOWN_LINE = "(00.03) Error (criu/util.c:1): util: something else\n"


def version(release: str) -> str:
    return f"(00.001) Version: {release} (gitid 0)\n"


def key(log: str) -> str | None:
    finding = explain(log).finding
    return finding.key if finding else None


@pytest.mark.parametrize(
    ("log", "release"),
    [
        ("(00.000060) Version: 3.15\n", (3, 15)),
        (version("4.1.1"), (4, 1, 1)),
        ("Version: 3.17.1\nGitID: v3.17.1\n", (3, 17, 1)),
        ("we use CRIU version 3.6 on CentOS\n", (3, 6)),
        ("criu-3.14 was installed\n", (3, 14)),
        ("it failed with criu 3.12 and with criu 3.19 too\n", (3, 19)),
        ("--lsm-profile requires at least CRIU 3.16\n", None),
        ("(00.1) Error (criu/cr-restore.c:2447): Restoring FAILED.\n", (3, 16, 1)),
        ("(00.1) Error (criu/cr-dump.c:1709): Dumping FAILED.\n", (3, 8, 1)),
        ("(00.1) Error (criu/cr-dump.c:99999): Dumping FAILED.\n", None),
        ("podman version\nVersion:      3.3.0\n", None),
        ("", None),
    ],
)
def test_release_of_criu_is_found_in_its_log(log: str, release: tuple[int, ...] | None) -> None:
    assert find_release(log) == release


def test_table_of_last_lines_covers_many_files_and_releases_of_criu() -> None:
    assert len(LAST_LINES) > 60
    assert all((2, 0) <= release < (5, 0) for release in LAST_LINES.values())


def test_bug_is_sure_for_an_earlier_release_and_likely_for_an_unknown_one() -> None:
    earlier, unknown = explain(version("4.1") + SLAVE_MOUNT_LINE).finding, explain(SLAVE_MOUNT_LINE).finding
    assert earlier
    assert unknown
    assert (earlier.key, earlier.sure) == ("bug-mount-sharing", True)
    assert "4.1.1" in earlier.remedy
    assert (unknown.key, unknown.sure) == ("bug-mount-sharing", False)
    assert unknown.what.startswith(LIKELY)


def test_bug_is_not_reported_for_releases_with_the_fix() -> None:
    assert key(version("4.1.1") + SLAVE_MOUNT_LINE) != "bug-mount-sharing"
    assert key(version("4.2") + SLAVE_MOUNT_LINE) != "bug-mount-sharing"


def test_crash_explanation_depends_on_the_release() -> None:
    assert key(CRASH_LINE) == "crashed"
    assert key(version("3.16.1") + CRASH_LINE) == "crashed"
    assert key(version("4.0") + CRASH_LINE) == "crashed-later"


def test_unknown_complaint_of_an_old_release_suggests_its_age() -> None:
    explanation = explain(version("3.11") + UNKNOWN_LINE)
    assert explanation.finding
    assert (explanation.finding.key, explanation.finding.sure) == ("old-criu", False)
    assert "3.11" in explanation.finding.what
    assert key(version("4.1") + UNKNOWN_LINE) is None
    assert key(UNKNOWN_LINE) is None
    assert key(version("3.11")) is None


def test_unsure_cause_of_an_old_release_suggests_a_newer_one() -> None:
    unsure = "(00.03) Error (criu/files-reg.c:1): files: something else\n"
    old, new = explain(version("3.8") + unsure).finding, explain(version("4.2") + unsure).finding
    assert old
    assert new
    assert "newer CRIU than 3.8: crckpt install-criu" in old.remedy
    assert "newer CRIU" not in new.remedy


def test_denial_by_the_kernel_takes_precedence_over_messages_of_criu() -> None:
    denied = (
        "(00.03) Error (compel/src/lib/infect.c:713): Unable to connect a transport socket: Permission denied\n"
        'type=AVC msg=audit(1550142323.799:1167): avc:  denied  { connectto } for  pid=23569 comm="top" path=002F\n'
    )
    finding = explain(denied).finding
    assert finding
    assert finding.what == "SELinux denied connectto to top"


def test_denial_in_permissive_mode_is_not_reported_as_the_cause() -> None:
    allowed = (
        'type=AVC msg=audit(1.1:1): avc:  denied  { mount } for  pid=1 comm="criu" tclass=filesystem permissive=1\n'
    )
    assert key(allowed) is None


def test_timeout_of_the_gpu_tool_takes_precedence_over_a_thread_that_does_not_stop() -> None:
    timeout = "(10.0) Error (criu/cr-dump.c:1791): Timeout reached. Try to interrupt: 0\n"
    slow = "(10.0) Error (cuda_plugin.c:139): Unable to read output of cuda-checkpoint: Interrupted system call\n"
    assert key(timeout) == "freeze-timeout"
    assert key(timeout + slow) == "gpu-timeout"


def test_long_line_of_proc_is_not_reported_as_image_damage() -> None:
    long = "(00.01) Error (criu/bfd.c:199): bfd: The bfd buffer is too small \n"
    groups = "(00.01) Error (criu/proc_parse.c:1216): Error parsing proc status file\n"
    assert key(long) == "long-line"
    assert key(long + groups) == "groups"


def test_log_path_on_a_separate_line_is_named() -> None:
    explanation = explain(
        "OCI runtime restore failed: criu failed: type NOTIFY errno 0\nlog file: /run/a/restore.log: unknown\n"
    )
    assert explanation.finding
    assert explanation.finding.remedy.startswith("read it: crckpt explain /run/a/restore.log (")


def test_quoted_line_end_ends_a_path() -> None:
    explanation = explain(
        'err="CRIU RPC request failed with message:Error (criu/files-reg.c:1815): '
        "Can't lookup mount=26 for fd=0 path=/dev/shm/x\\n error:0\" id=fb8bc\n"
    )
    assert explanation.finding
    assert explanation.finding.what.startswith("/dev/shm/x (fd 0)")


def test_failed_cleanup_after_a_restore_is_not_reported_as_the_cause() -> None:
    left = "(00.06) Error (criu/mount.c:3270): mnt: Can't remove the directory /tmp/.criu: Device or resource busy\n"
    assert key(left + "(00.07) Error (criu/cr-restore.c:2324): Restoring FAILED.\n") is None
