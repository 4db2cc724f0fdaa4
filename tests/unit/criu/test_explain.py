"""Log lines of CRIU 4.2 and their causes."""

from __future__ import annotations

import pytest

from crckpt.criu.engine import run_id
from crckpt.criu.explain import explain

LINES = [
    ("compel/src/lib/infect.c:260", "The criu itself is within dumped tree.", "inside", ""),
    ("criu/namespaces.c:460", "Can't dump nested pid namespace for 812", "nested-pid-namespace", "has its own PID"),
    ("criu/pie-util-fd.c:30", "send_fds failed (-22)", "io-uring", "io_uring"),
    ("criu/proc_parse.c:502", "Unknown shit 100600 (anon_inode:[io_uring])", "io-uring", "io_uring"),
    ("criu/proc_parse.c:502", "Unknown shit 100600 (/secretmem (deleted))", "secretmem", "secret memory"),
    (
        "criu/files-ext.c:94",
        "Can't dump file 5 of that type [20666] (chr 10:229 /dev/fuse)",
        "device",
        "fd 5 is a device or special file that CRIU cannot save: chr 10:229 /dev/fuse",
    ),
    (
        "criu/files-ext.c:94",
        "Can't dump file 7 of that type [600] (unknown anon_inode:[userfaultfd])",
        "device",
        "anon_inode:[userfaultfd]",
    ),
    (
        "criu/proc_parse.c:663",
        "Can't handle non-regular mapping on 77's map 7f0012345000",
        "device-map",
        "PID 77 maps a device at 7f0012345000",
    ),
    ("criu/proc_parse.c:738", "Can't open mapped [/a b/lib.so]: No such file or directory", "map-gone", "/a b/lib.so"),
    ("criu/proc_parse.c:745", "Can't open 77's mapfile link 7f00: Operation not permitted", "map-files", "map_files"),
    (
        "criu/sk-inet.c:200",
        "inet: Connected TCP socket, consider using --tcp-established option.",
        "tcp-established",
        "",
    ),
    ("criu/sk-inet.c:912", "inet: Connected TCP socket in image", "tcp-established", ""),
    ("criu/sk-inet.c:185", "inet: In-flight connection (l) for 2cb3c", "tcp-in-flight", ""),
    ("criu/sk-inet.c:137", "inet: Unsupported proto 262 for socket 1f", "protocol", "protocol 262"),
    ("criu/sockets.c:767", "sockets: BUG! Unknown socket collected (family 40)", "socket-family", "family 40"),
    ("criu/sk-unix.c:874", "unix: External socket is used. Consider using --ext-unix-sk option.", "unix-outside", ""),
    (
        "criu/sk-unix.c:881",
        "unix: Can't dump half of stream unix connection. name: (null); peer name: /run/dbus",
        "unix-outside",
        "",
    ),
    ("criu/sk-unix.c:888", "unix: Can't dump name-less external socket.", "unix-outside", ""),
    ("criu/sk-unix.c:418", "unix: Unix socket 1234 without peer 99", "unix-outside", ""),
    ("criu/sk-queue.c:55", "More than 1 SCM is not possible", "in-message-descriptors", ""),
    ("criu/file-lock.c:110", "Some file locks are hold by dumping tasks! You can try --file-locks", "locks", ""),
    ("criu/file-lock.c:102", "Unresolved lock found pid 88 ino 5", "lock-outside", "PID 88"),
    (
        "criu/files-reg.c:1790",
        "Can't lookup mount=24 for fd=-3 path=/usr/bin/my program",
        "mount-lookup-mapped",
        "/usr/bin/my program, which the program runs",
    ),
    ("criu/files-reg.c:1444", "Unaccessible path opened 1:2, need 3:4", "file-hidden", ""),
    (
        "criu/pstree.c:304",
        "The root process 5 is not a session leader. Consider using --shell-job option",
        "shell-job",
        "",
    ),
    ("criu/tty.c:1830", "tty: Found dangling tty with sid 5 pgid 5 (/dev/pts/3) on peer fd 0.", "shell-job", ""),
    ("criu/tty.c:410", "tty: Found slave peer index 3 without correspond master peer", "terminal-outside", ""),
    ("criu/cr-dump.c:478", "Task 5 with SysVIPC shmem map @7f doesn't live in IPC ns", "sysv-shm", ""),
    ("criu/cr-dump.c:1655", "Timeout reached. Try to interrupt: 0", "freeze-timeout", ""),
    ("criu/seize.c:952", "Zombies with threads are not supported", "thread-leader-gone", ""),
    ("criu/cr-dump.c:1256", "A root task is dead", "target-ended", ""),
    ("criu/pidfd.c:97", "pidfd: pidfd pid 71 is not a part of process tree..", "pidfd-outside", "process 71"),
    ("criu/fsnotify.c:263", "fsnotify: Can't dump that handle", "watch", ""),
    ("criu/image.c:10", "Can't write image: No space left on device", "no-space", ""),
    ("criu/cr-restore.c:1237", "Can't fork for 4321: File exists", "fork-pid", "PID 4321 is taken"),
    ("criu/pstree.c:386", "Current sid 5 intersects with pid (6) in images", "session-taken", ""),
    (
        "criu/files-reg.c:2175",
        "File srv/my log.txt has bad size 12 (expect 10)",
        "bad-size",
        "srv/my log.txt has 12 bytes, the checkpoint expects 10",
    ),
    ("criu/files-reg.c:2146", "File usr/bin/x has bad build-ID length 4 (expect 20)", "bad-build", ""),
    ("criu/files-reg.c:2294", "File srv/x has bad mode 0100600 (expect 0100644)", "bad-mode", ""),
    (
        "criu/files-reg.c:2353",
        "Can't open file srv/my log on restore: No such file or directory",
        "open-failed",
        "srv/my log is missing",
    ),
    ("criu/sk-inet.c:1059", "inet: Can't bind inet socket (id 5): Address already in use", "address", ""),
    ("criu/arch/x86/cpu.c:223", "cpu: CPU instruction capabilities do not match run time", "cpu", ""),
    ("criu/cgroup.c:1800", "cg: Cgroup dir /a b doesn't exist", "cgroup", "/a b does not exist"),
    ("criu/vdso.c:300", "vdso: Unexpected rt vDSO area bounds", "vdso", ""),
]


@pytest.mark.parametrize(("source", "text", "key", "says"), LINES, ids=[f"{line[2]}-{line[0]}" for line in LINES])
def test_each_line_has_a_known_cause(source: str, text: str, key: str, says: str) -> None:
    explanation = explain(f"(00.012345) Running as root\n(00.012399) Error ({source}): {text}\n")
    assert explanation.finding is not None
    assert explanation.finding.key == key
    assert says in explanation.finding.what
    assert "{" not in str(explanation.finding)
    assert explanation.lines == (f"(00.012399) Error ({source}): {text}",)


def test_warning_of_criu_can_be_the_cause() -> None:
    explanation = explain(
        "(00.01) Warn  (compel/src/lib/infect.c:132): Unable to interrupt task: 42 (Operation not permitted)\n"
        "(00.02) Error (criu/cr-dump.c:2053): Dumping FAILED.\n"
    )
    assert explanation.finding is not None
    assert explanation.finding.what == "process 42 cannot be stopped: Operation not permitted"
    assert explanation.lines == ("(00.02) Error (criu/cr-dump.c:2053): Dumping FAILED.",)


def test_warning_of_criu_is_the_cause_only_without_errors() -> None:
    """If the main thread has ended, the cause is the ended process, not the failure to stop it."""
    explanation = explain(
        "(00.01) Warn  (compel/src/lib/infect.c:132): Unable to interrupt task: 42 (Operation not permitted)\n"
        "(00.02) Error (criu/seize.c:882): Zombies with threads are not supported\n"
        "(00.03) Error (compel/src/lib/infect.c:417): Unable to detach from 41: No such process\n"
    )
    assert explanation.finding is not None
    assert explanation.finding.key == "thread-leader-gone"


def test_first_log_line_with_a_known_cause_gives_the_explanation() -> None:
    explanation = explain(
        "(00.01) Error (criu/x.c:1): something new\n"
        "(00.02) Error (criu/sk-inet.c:185): inet: In-flight connection (l) for 2c\n"
        "(00.03) Error (criu/files-reg.c:2294): File x has bad mode 0100600 (expect 0100644)\n"
    )
    assert explanation.finding is not None
    assert explanation.finding.key == "tcp-in-flight"
    assert len(explanation.lines) == 3


@pytest.mark.parametrize(
    "text",
    [
        "(00.00) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted",
        'Error (criu/util.c:642): execvp("iptables-save", ...) failed: No such file or directory',
        "(00.04) Error (criu/util.c:1723): ip6tables-legacy-restore -V failed",
        "(00.00) Error (criu/tun.c:1): tun: Unable to create tun: No such file or directory",
        "(00.00) Dumping file Can't fork for 5: File exists",
        "",
    ],
)
def test_lines_of_successful_logs_have_no_cause(text: str) -> None:
    explanation = explain(text)
    assert (explanation.finding, explanation.lines) == (None, ())


def test_complaint_without_a_mark_before_the_log_is_open_is_the_cause() -> None:
    explanation = explain("CRIU needs to have the CAP_SYS_ADMIN or the CAP_CHECKPOINT_RESTORE capability: \n")
    assert explanation.finding is not None
    assert explanation.finding.key == "no-privileges"


def test_unknown_errors_are_quoted_up_to_a_limit() -> None:
    explanation = explain("".join(f"(00.0{n}) Error (criu/new.c:{n}): news {n}\n" for n in range(20)))
    assert explanation.finding is None
    assert [line[-6:] for line in explanation.lines] == [f"news {n}" for n in range(8)]


def test_run_id_is_found_in_a_log_of_criu() -> None:
    log = "(00.000) Version: 4.2.1\n(00.001) CRIU run id = 4bd8b0a5-ae26-4c42-8bcb-b63bfe8e8dd2\n"
    assert run_id(log) == "4bd8b0a5-ae26-4c42-8bcb-b63bfe8e8dd2"
    assert run_id("") is None


LAST_LINE = "(00.9) Error (criu/sk-netlink.c:77): netlink: The socket has data to read\n"


def test_explanation_contains_a_repeated_line_only_once() -> None:
    log = "".join(f"(00.{number}) Error (criu/new.c:1): again\n" for number in range(100_000)) + LAST_LINE
    explanation = explain(log)
    assert explanation.finding
    assert explanation.finding.key == "netlink-data"
    assert len(explanation.lines) == 2
