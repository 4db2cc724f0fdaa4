"""The kinds of trees that tests checkpoint.

Programs that are not ours (redis, tmux) are asked through their own clients.
"""

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from trees import NOBODY, PYTHON, READY_S, Case, Part, wait_for

REDIS_KEYS: Final = 100_000
SGD_STEPS: Final = 4_000

_COUNT_KEYS: Final = """
redis.call('SELECT', 1)
local counter = redis.call('INCR', 'counter')
redis.call('SELECT', 0)
local digest = ''
for i = 1, 100000 do digest = redis.sha1hex(digest .. redis.call('GET', 'key:' .. i)) end
return counter .. ' ' .. redis.call('DBSIZE') .. ' ' .. digest
"""
_SET_KEYS: Final = "for i = 1, 100000 do redis.call('SET', 'key:' .. i, 'value ' .. i * 7) end"
_SHELL_COUNTS: Final = "i=0; while :; do echo $((i += 1)); read -t 0.03; done"


def _python(name: str, *arguments: str) -> tuple[str, ...]:
    return (PYTHON, f"{{programs}}/{name}.py", "{workdir}", *arguments)


def _ask_redis(workdir: Path, *words: str) -> str:
    return _output("redis-cli", "-s", f"{workdir}/redis.sock", *words)


def _ask_tmux(workdir: Path, *words: str) -> str:
    return _output("tmux", "-S", f"{workdir}/tmux.sock", *words)


def _output(*argv: str) -> str:
    result = subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return result.stdout


def _fill_redis(workdir: Path) -> None:
    wait_for((workdir / "redis.sock").exists, READY_S, "redis to listen")
    _ask_redis(workdir, "EVAL", _SET_KEYS, "0")


def _look_at_redis(workdir: Path) -> Mapping[str, Part]:
    counter, size, digest = _ask_redis(workdir, "EVAL", _COUNT_KEYS, "0").split()
    ok = int(size) == REDIS_KEYS
    return {"": Part(0, int(counter), ok, f"{size} keys", True, True, {"digest": digest, "keys": size})}


def _greets_redis(workdir: Path) -> None:
    port = _ask_redis(workdir, "CONFIG", "GET", "port").split()[1]
    assert _output("redis-cli", "-p", port, "GET", "key:10").strip() == "value 70"


def _open_session(workdir: Path) -> None:
    wait_for((workdir / "tmux.sock").exists, READY_S, "tmux to listen")
    _ask_tmux(workdir, "new-session", "-d", "-s", "counting", "bash", "-c", _SHELL_COUNTS)


def _look_at_session(workdir: Path) -> Mapping[str, Part]:
    lines = [int(line) for line in _ask_tmux(workdir, "capture-pane", "-p", "-t", "counting").split()]
    last = max(lines, default=0)
    consecutive = lines == list(range(last - len(lines) + 1, last + 1))
    names = _ask_tmux(workdir, "list-panes", "-a", "-F", "#{session_name} #{pane_pid} #{pane_tty}")
    return {"": Part(0, last, consecutive, f"lines {lines}", True, True, {"panes": names})}


def _greets_on_unix(workdir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as guest:
        guest.settimeout(30)
        guest.connect(str(workdir / "stream.sock"))
        assert guest.recv(100).startswith(b"hello ")


def _greets_on_tcp(workdir: Path) -> None:
    for host, port in zip(("127.0.0.1", "::1"), (workdir / "ports").read_text().split(), strict=True):
        with socket.create_connection((host, int(port)), timeout=60) as guest:
            assert guest.recv(100).startswith(b"hello ")


def _log_is_whole(workdir: Path) -> None:
    lines = (workdir / "growing.log").read_text().splitlines()
    assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]


def _locks_are_held(workdir: Path) -> None:
    assert not _gets(workdir / "flock.lock", lambda fd: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)), "flock is free"
    for name in ("posix", "ofd", "child"):
        path = workdir / f"{name}.lock"
        assert not _gets(path, lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 149)), f"{name} is free"
        assert _gets(path, lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 150)), f"{name} grew"


def _gets(path: Path, lock: Callable[[int], None]) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        lock(fd)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


CASES: Final = (
    Case("counter", _python("counter")),
    Case("growing-log", _python("growing_log"), probe=_log_is_whole),
    Case("threads", _python("threads")),
    Case("family", _python("family")),
    Case("pipes", _python("pipes")),
    Case("unix-sockets", _python("unix_sockets"), probe=_greets_on_unix),
    Case("tcp-listen", _python("tcp_listen"), probe=_greets_on_tcp),
    Case("tcp-pair", _python("tcp_pair"), tcp="keep"),
    Case("events", _python("events")),
    Case("maps", _python("maps")),
    Case("sysv-ipc", ("unshare", "--ipc", *_python("sysv_ipc")), needs=("unshare",)),
    Case("deleted-files", _python("deleted_files")),
    Case("locks", _python("locks"), probe=_locks_are_held),
    Case("signals", _python("signals")),
    Case("asyncio", _python("asyncio_tasks")),
    Case("rarities", _python("rarities")),
    Case("apart", ("unshare", "--uts", "--time", "--monotonic", "5000000", *_python("apart")), needs=("unshare",)),
    Case(
        "nobody",
        (
            *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
            *(PYTHON, "{workdir}/programs/counter.py", "{workdir}"),
        ),
        needs=("setpriv",),
        user=NOBODY,
    ),
    Case(
        "tmux",
        ("tmux", "-S", "{workdir}/tmux.sock", "-f", "/dev/null", "-D"),
        needs=("tmux", "bash"),
        observe=_look_at_session,
        settle=_open_session,
    ),
    Case(
        "redis",
        (
            *("redis-server", "--save", "", "--appendonly", "no", "--unixsocket", "{workdir}/redis.sock"),
            *("--bind", "127.0.0.1", "--port", "{port}", "--dir", "{workdir}"),
        ),
        needs=("redis-server", "redis-cli"),
        observe=_look_at_redis,
        settle=_fill_redis,
        probe=_greets_redis,
    ),
    Case("node", ("node", "{programs}/ticks.js", "{workdir}"), needs=("node",)),
    Case(
        "jvm",
        ("java", "-XX:+UseSerialGC", "-Xmx64m", "-XX:-UsePerfData", "{programs}/Ticks.java", "{workdir}"),
        needs=("java", "javac"),
    ),
)
TRAINING: Final = Case("sgd", (sys.executable, "{programs}/sgd.py", "{workdir}", str(SGD_STEPS)))
