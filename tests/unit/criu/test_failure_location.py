"""Find where CRIU was when it failed, by its log."""

from __future__ import annotations

import pytest

from crckpt.criu.explain import FailureLocation, explain

DUMP = """\
(00.01) Dumping task (pid: 812 comm: postgres)
(00.02) Dumping opened files (pid: 812)
(00.02) ----------------------------------------
(00.03) 812 fdinfo 3: pos:                0 flags:           100001/0x1
(00.03) Dumping path for 3 fd via self 17 [/srv/log]
(00.04) 812 fdinfo 7: pos:                0 flags:                2/0
"""
DEVICE = "(00.05) Error (criu/files-ext.c:94): Can't dump file 7 of that type [20600] (chr 10:229)\n"
DUMP_WITH_A_MAP = (
    DUMP[: DUMP.index("(00.02) Dumping opened")] + "(00.02) Dumping path for -3 fd via self 16 [/usr/lib/libm.so.6]\n"
)
UNREADABLE = "(00.05) Error (criu/proc_parse.c:502): Unknown shit 100600 (/secretmem (deleted))\n"
HIDDEN_FILE_LINE = "(00.05) Error (criu/files-reg.c:1444): Unaccessible path opened 65024:27, need 65024:28\n"
LOCKS = "(00.07) Error (criu/file-lock.c:110): Some file locks are hold by dumping tasks!\n"
MISSING = "(00.02)    812: Error (criu/files-reg.c:2353): Can't open file srv/x on restore: No such file or directory\n"
SIZE = "(00.02)    812: Error (criu/files-reg.c:2175): File srv/log has bad size 5 (expect 1)\n"


@pytest.mark.parametrize(
    ("log", "place"),
    [
        (DUMP + DEVICE, "process 812 (postgres), fd 7"),
        (DUMP[: DUMP.index("(00.04)")] + DEVICE, "process 812 (postgres), fd 3 (/srv/log)"),
        (DUMP + "(00.06) ----------------------------------------\n" + LOCKS, "None"),
        (DUMP + "(00.06) Dumping file-locks\n" + LOCKS, "None"),
        (DEVICE, "None"),
        (SIZE, "process 812"),
        (
            MISSING + SIZE + "(00.03)    812: Error (criu/files.c:1221): Unable to open fd=3 id=0x16\n",
            "process 812, fd 3",
        ),
        (DUMP_WITH_A_MAP + UNREADABLE, "process 812 (postgres)"),
        (DUMP_WITH_A_MAP + HIDDEN_FILE_LINE, "process 812 (postgres) (/usr/lib/libm.so.6)"),
        (SIZE + "(00.03)    812: Error (criu/files.c:1221): Unable to open fd=3 id=0x16\n", "process 812, fd 3"),
        (SIZE + "(00.03)    813: Error (criu/files.c:1221): Unable to open fd=3 id=0x16\n", "process 812"),
    ],
)
def test_location_of_a_failure_is_found_in_the_log(log: str, place: str) -> None:
    explanation = explain(log)
    assert explanation.finding is not None
    assert str(explanation.place) == place


def test_failure_without_a_location_in_the_log_has_none() -> None:
    assert explain("").place is None
    assert str(FailureLocation(5)) == "process 5"


def test_outside_end_of_a_unix_socket_is_found_by_inode() -> None:
    extern = "(00.038925) unix: \tDumped extern: id 0xe ino 4555832 peer 0 type 2 state 10 name 26 bytes\n"
    refused = (
        "(00.038928) Error (criu/sk-unix.c:874): unix: External socket is used. Consider using --ext-unix-sk option."
    )
    explanation = explain(extern + refused)
    assert (explanation.place, explanation.outside_end) == (None, 4555832)
    assert explain(refused).outside_end == 0
