"""Invalid input is refused in one sentence with a hint and an exit code of its own, as text and as JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from cases import CASES
from command import PROGRAM, Crckpt
from dump_moments import assert_runs_on, manifests
from trees import PROGRAMS, started, wait_for

USAGE, STORE, UNKNOWN, ENDED, HOST, REFUSED = 2, 10, 12, 14, 20, 24
COUNTER: Final = next(case for case in CASES if case.name == "counter")
TCP_PAIR: Final = next(case for case in CASES if case.name == "tcp-pair")
NOBODY: Final = 65534
# Longer than any PID of Linux: 2**22 is the limit (include/linux/threads.h).
NO_PID: Final = 2**22 - 1


def test_dump_of_a_pid_that_does_not_exist_is_refused(crckpt: Crckpt) -> None:
    """Numbers above the limit and words that are not numbers are refused, too."""
    _refused(crckpt, ENDED, "dump", str(NO_PID), texts=(f"no process {NO_PID}",))
    _refused(crckpt, ENDED, "pre-dump", str(NO_PID), texts=(f"no process {NO_PID}",))
    _refused(crckpt, ENDED, "doctor", str(NO_PID), texts=(f"no process {NO_PID}",), also_as_text=False)
    _refused(crckpt, USAGE, "dump", "", texts=("'' is not a PID",), also_as_text=False)
    for target in ("0", "99999999999", "12three"):
        _refused(crckpt, USAGE, "dump", target, texts=(f"{target!r} is not a PID",), also_as_text=False)
    _refused(crckpt, USAGE, "dump", "pid:12", texts=("'pid:12' is not a valid target",), also_as_text=False)


def test_dump_of_a_negative_pid_is_refused(crckpt: Crckpt) -> None:
    """A shell would take `-5` for a process group."""
    _refused(crckpt, USAGE, "dump", "--", "-5", texts=("'-5' is not a PID",))


def test_program_of_another_user_cannot_name_itself_into_an_existing_job(crckpt: Crckpt) -> None:
    """A program can choose its own name; the next restore of that job would restore it."""
    as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    with _sleeping() as ours, _sleeping(*as_nobody) as theirs:
        for _ in range(2):
            crckpt.run("dump", str(ours))
        before = manifests(crckpt.store)
        texts = (
            f"process {theirs} (sleep) belongs to user {NOBODY}",
            "the job sleep has checkpoints of a program of user 0",
        )
        _refused(crckpt, USAGE, "dump", str(theirs), texts=texts)
        assert manifests(crckpt.store) == before
        for _ in range(2):
            crckpt.run("dump", str(theirs), "theirs")


@contextmanager
def _sleeping(*words: str) -> Iterator[int]:
    null = subprocess.DEVNULL
    process = subprocess.Popen((*words, "sleep", "1000"), stdin=null, stdout=null, stderr=null, start_new_session=True)
    try:
        wait_for(lambda: psutil.Process(process.pid).name() == "sleep", 60, "the program")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_dump_of_processes_that_cannot_be_frozen_is_refused(crckpt: Crckpt) -> None:
    """The processes are ancestors of crckpt, the init process of the system, and kernel threads."""
    _refused(crckpt, REFUSED, "dump", str(os.getpid()), texts=(f"process {os.getpid()} ", "freeze itself"))
    _refused(
        crckpt, REFUSED, "dump", "1", texts=("PID 1 is the init process of this system, which cannot be checkpointed",)
    )
    threads = [pid for pid in psutil.pids() if pid > 1 and not Path(f"/proc/{pid}/exe").exists() and _is_kernel(pid)]
    if not threads:
        pytest.skip("no kernel thread is visible here")
    _refused(crckpt, REFUSED, "dump", str(threads[0]), texts=(f"process {threads[0]} ", "is a kernel thread"))


def test_dump_of_a_zombie_is_refused(crckpt: Crckpt) -> None:
    """The message names the parent, which alone can reap it."""
    ended = subprocess.Popen(["true"])
    try:
        wait_for(lambda: psutil.Process(ended.pid).status() == psutil.STATUS_ZOMBIE, 60, "it to end")
        texts = (f"process {ended.pid} (true)", "has ended", f"zombie of process {os.getpid()}")
        _refused(crckpt, ENDED, "dump", str(ended.pid), texts=texts)
    finally:
        ended.wait()


def test_dump_of_a_traced_process_is_refused(crckpt: Crckpt) -> None:
    """Only one process can trace another: the tracer is named, and the tree keeps running under it."""
    with started(COUNTER) as tree, _traced(tree.pid) as tracer:
        texts = (f"process {tree.pid} (python3)", f"traced by process {tracer} (python")
        failure = _refused(crckpt, REFUSED, "dump", str(tree.pid), texts=texts)
        assert str(tracer) in failure["hint"]
        tree.wait_growth(tree.counters())


def test_established_connections_need_a_tcp_option(crckpt: Crckpt) -> None:
    """Every connection is listed. Both ends of each are in the tree."""
    with started(TCP_PAIR) as tree:
        causes = _refused(crckpt, REFUSED, "dump", str(tree.pid), texts=("connected over TCP",), also_as_text=False)[
            "causes"
        ]
        sockets = [(pid, link) for pid in tree.pids() for link in psutil.Process(pid).net_connections("tcp")]
        connections = [(pid, link) for pid, link in sockets if link.raddr]
        assert len(causes) == len(connections) == 4
        for pid, link in connections:
            ends = f"127.0.0.1:{link.laddr.port} -> 127.0.0.1:{link.raddr.port} (ESTABLISHED)"
            assert sum(f"PID {pid} has fd {link.fd} " in cause and ends in cause for cause in causes) == 1
        error = crckpt.run("dump", str(tree.pid), status=REFUSED).err
        assert all(cause.split(": choose: ")[0] in error for cause in causes)
        assert error.count("--tcp keep") == 1, "the remedy stands once"
        assert "--tcp close" in error
        assert_runs_on(tree, frozenset())
        assert not crckpt.store.exists(), "a refused dump has made a store"


def test_dump_by_an_unusable_pidfile_is_refused(crckpt: Crckpt, tmp_path: Path) -> None:
    """A pidfile that is missing, is a directory, contains no PID, or names a process that has ended."""
    contents = {"garbage": b"12a\n", "empty": b"", "binary": b"\xff\x00\n", "stale": f"{NO_PID}\n".encode()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    missing = f"pidfile:{tmp_path}/missing"
    _refused(crckpt, ENDED, "dump", missing, texts=(f"there is no pidfile {tmp_path}/missing",))
    _refused(crckpt, USAGE, "dump", f"pidfile:{tmp_path}", texts=("Is a directory",), also_as_text=False)
    for name in ("garbage", "empty", "binary"):
        texts = (f"pidfile:{tmp_path}/{name} contains ", "not a PID")
        _refused(crckpt, USAGE, "dump", f"pidfile:{tmp_path}/{name}", texts=texts, also_as_text=False)
    _refused(crckpt, ENDED, "dump", f"pidfile:{tmp_path}/stale", texts=(f"no process {NO_PID}",), also_as_text=False)


def test_dump_of_a_missing_cgroup_or_unit_is_refused(crckpt: Crckpt) -> None:
    """The cgroup and the unit are refused whether systemd runs or not."""
    _refused(crckpt, ENDED, "dump", "cgroup:/no/such", texts=("no cgroup /no/such",), also_as_text=False)
    document = crckpt.run("dump", "unit:crckpt-none.service", "--json", status=_status_without_unit()).document
    assert "crckpt-none" in document["error"]["message"] or "systemctl" in document["error"]["message"]
    assert document["error"]["hint"]


@pytest.mark.parametrize("note", ["two\nlines", "\x1b[31mred"])
def test_note_must_be_one_line_of_text(crckpt: Crckpt, tmp_path: Path, note: str) -> None:
    with _sleeping() as pid:
        _refused(crckpt, USAGE, "dump", str(pid), "--note", note, texts=(f"{note!r} is not one line of text",))
        _refused(crckpt, USAGE, "import", str(tmp_path), "job", "--note", note, texts=("is not one line of text",))
        assert not crckpt.store.exists()


def test_invalid_job_and_tag_names_are_refused(crckpt: Crckpt) -> None:
    """The invalid names would be paths, options or refs."""
    with started(COUNTER) as tree:
        for name in ("../up", ".hidden", "", "x" * 101, "a~1"):
            words: tuple[str, ...] = ("dump", str(tree.pid), "--tag", name)
            _refused(crckpt, USAGE, *words, texts=(f"{name!r} is not a valid tag name",), also_as_text=False)
        for name in ("a/b", "two words", "a:b", "-x", "ö"):
            words = ("dump", "--stop", "--", str(tree.pid), name)
            _refused(crckpt, USAGE, *words, texts=(f"{name!r} is not a valid job name",), also_as_text=False)
        assert_runs_on(tree, frozenset())
        assert not crckpt.store.exists()


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (("dump", "--stopp", "12"), ("there is no option --stopp",)),
        (("dump",), ("TARGET is missing",)),
        (("dump", "12", "job", "more"), ("there are too many arguments: more",)),
        (("dump", "12", "--tcp", "maybe"), ("--tcp", "maybe", "keep")),
        (("dump", "12", "--compress", "99"), ("--compress", "19")),
        (("dump", "12", "--compress", "much"), ("--compress", "much")),
        (("dmup", "12"), ("there is no command dmup",)),
    ],
    ids=lambda value: " ".join(value) if "dump" in value else None,
)
def test_invalid_command_lines_are_usage_errors(crckpt: Crckpt, words: tuple[str, ...], texts: tuple[str, ...]) -> None:
    """Usage errors are reported like every other failure."""
    _refused(crckpt, USAGE, *words, texts=texts)


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("store: [", ("is not YAML",)),
        ("stroe: /srv\n", ("unknown key 'stroe'",)),
        ("store: relative\n", ("store must be an absolute path", "'relative'")),
        ("criu: 12\n", ("criu must be an absolute path", "12")),
        ("compress: fast\n", ("compress must be a whole number", "'fast'")),
    ],
)
def test_invalid_configuration_is_refused(crckpt: Crckpt, tmp_path: Path, content: str, texts: tuple[str, ...]) -> None:
    """The message names the file and the wrong key or value."""
    path = tmp_path / "crckpt.yaml"
    path.write_text(content)
    _refused(crckpt, USAGE, "list", "--config", str(path), texts=(str(path), *texts), also_as_text=False)


def test_unreadable_configuration_is_refused(crckpt: Crckpt, tmp_path: Path) -> None:
    """A configuration file that is missing, is a directory, or is not text."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("missing", "binary", "."):
        path = str(tmp_path / name)
        _refused(
            crckpt,
            USAGE,
            "list",
            "--config",
            path,
            texts=("configuration", path.removesuffix("/.")),
            also_as_text=False,
        )


def test_directory_that_is_not_a_store_is_refused(crckpt: Crckpt, tmp_path: Path) -> None:
    """The directory is neither read as a store nor made one."""
    other, file = tmp_path / "other", tmp_path / "file"
    other.mkdir()
    (other / "letter").write_text("mine")
    file.write_text("mine")
    with started(COUNTER) as tree:
        for words in (("list",), ("dump", str(tree.pid))):
            _refused(crckpt, STORE, *words, "--store", str(other), texts=(f"{other} is not a store of crckpt",))
            _refused(crckpt, STORE, *words, "--store", str(file), texts=(str(file),), also_as_text=False)
            _refused(crckpt, STORE, *words, "--store", f"{file}/below", texts=(str(file),), also_as_text=False)
        assert_runs_on(tree, frozenset())
    _refused(crckpt, STORE, "list", texts=(f"no store at {crckpt.store}",))
    assert [path.name for path in other.iterdir()] == ["letter"]
    assert file.read_text() == "mine"
    assert not crckpt.store.exists()


def test_store_readable_by_others_is_refused(crckpt: Crckpt) -> None:
    """The hint repairs a wrong mode and a wrong owner in one line."""
    with started(COUNTER) as tree:
        crckpt.run("dump", str(tree.pid), "job")
        dump: tuple[str, ...] = ("dump", str(tree.pid), "job")
        crckpt.store.chmod(0o750)
        for words in (dump, ("list",)):
            failure = _refused(crckpt, STORE, *words, texts=(str(crckpt.store), "mode 750"), also_as_text=False)
        subprocess.run(failure["hint"].split(), check=True)
        os.chown(crckpt.store, NOBODY, NOBODY)
        for words in (dump, ("verify", "--all")):
            failure = _refused(crckpt, STORE, *words, texts=(str(crckpt.store), f"uid {NOBODY}"), also_as_text=False)
        subprocess.run(failure["hint"].split(), check=True)
        crckpt.run(*dump)
        assert manifests(crckpt.store) == 2


def test_store_of_a_newer_format_is_refused(crckpt: Crckpt) -> None:
    """The message has both versions. The store is not changed."""
    with started(COUNTER) as tree:
        crckpt.run("dump", str(tree.pid), "job")
        path = crckpt.store / "store.json"
        facts = path.read_text()
        path.write_text(json.dumps(json.loads(facts) | {"format": 2}))
        for words in (("dump", str(tree.pid), "job"), ("gc",), ("restore", "job")):
            _refused(crckpt, STORE, *words, texts=(str(crckpt.store), "format 2", "format 1"), also_as_text=False)
        path.write_text("{")
        _refused(crckpt, STORE, "list", texts=("store.json is damaged",), also_as_text=False)
        path.write_text(facts)
        crckpt.run("verify", "--all")
        assert manifests(crckpt.store) == 1


def test_unknown_refs_are_answered_with_similar_names(crckpt: Crckpt) -> None:
    """Every command that takes a ref lists similar names."""
    with started(COUNTER) as tree:
        crckpt.run("dump", str(tree.pid), "trainer", "--tag", "golden")
    for command in ("show", "restore", "verify", "rm"):
        failure = _refused(crckpt, UNKNOWN, command, "trianer", texts=("no job 'trianer'",), also_as_text=False)
        assert "trainer" in failure["hint"]
    assert (
        "trainer:golden"
        in _refused(crckpt, UNKNOWN, "show", "trainer:goldn", texts=("job 'trainer' has no tag 'goldn'",))["hint"]
    )
    assert "crckpt list" in _refused(crckpt, UNKNOWN, "show", "zzz", texts=("zzz",), also_as_text=False)["hint"]
    past = _refused(crckpt, UNKNOWN, "show", "trainer~1", texts=("trainer has only 1 checkpoint",), also_as_text=False)
    assert "trainer~0" in past["hint"]
    for ref in ("0123456789", "trainer~x", "../trainer", ""):
        _refused(crckpt, UNKNOWN, "show", ref, texts=("there is no ",), also_as_text=False)


def test_dump_and_restore_need_root_and_list_does_not(crckpt: Crckpt) -> None:
    """The errors of dump and restore say that root is needed. `list` reads the user's own store."""
    # A user namespace makes us nobody without taking away what the owner may read: the checkout may lie in /root.
    nobody = ("unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}", str(PROGRAM))
    with started(COUNTER) as tree:
        for words in (("dump", str(tree.pid)), ("restore", "job")):
            for option in ((), ("--json",)):
                result = _run(crckpt.environment, *nobody, *words, *option)
                assert result.returncode == HOST, result.stderr
                failure = _one_failure(result, as_json=bool(option))
                assert "root is needed" in failure["message"]
                assert "sudo" in failure["hint"]
        assert_runs_on(tree, frozenset())
    home = crckpt.store.parent / "home"
    home.mkdir()
    environment = {name: value for name, value in crckpt.environment.items() if name != "CRCKPT_STORE"}
    own = _run(environment | {"XDG_DATA_HOME": str(home)}, *nobody, "list", "--json")
    assert own.returncode == STORE
    assert f"no store at {home}/crckpt" in _one_failure(own, as_json=True)["message"]


def test_dump_without_a_working_criu_is_refused_with_all_reasons(crckpt: Crckpt) -> None:
    """The error lists each CRIU with the reason why it does not work. The tree is not touched."""
    # The cache and the private prefix of crckpt are hidden from this command.
    hide = 'for d in /usr/local/lib/crckpt /var/cache/crckpt; do [ ! -d $d ] || mount -t tmpfs none $d; done; exec "$@"'
    hidden = ("unshare", "--mount", "--propagation", "private", "sh", "-c", hide, "sh")
    environment = crckpt.environment | {"CRCKPT_CRIU": "/nonexistent/criu"}
    with started(COUNTER) as tree:
        command = (str(PROGRAM), "dump", str(tree.pid), "--criu", "/bin/false", "--json")
        result = _run(environment, *hidden, "/usr/bin/env", "PATH=/nonexistent", *command)
        assert result.returncode == HOST, result.stderr
        failure = _one_failure(result, as_json=True)
        assert "no CRIU works on this host" in failure["message"]
        assert "install-criu" in failure["hint"]
        assert any("/bin/false (--criu): it is not CRIU: " in cause for cause in failure["causes"])
        assert any("/nonexistent/criu" in cause and "it does not exist" in cause for cause in failure["causes"])
        assert_runs_on(tree, frozenset())
        assert not crckpt.store.exists()


def test_dump_skips_a_broken_criu_given_with_the_option_criu(crckpt: Crckpt) -> None:
    """The first CRIU that works is used. The document names this CRIU and those that were tried before."""
    with started(COUNTER) as tree:
        words = ("dump", str(tree.pid), "--criu", "/bin/false", "--dry-run")
        result = crckpt.run(*words, "--json").document["result"]
        assert result["criu"] != "/bin/false"
        assert result["criu"] in result["command"]
        (why,) = result["criu_passed_over"]
        assert why.startswith("/bin/false (--criu) was skipped: ")
        assert f"note: {why}\n" in crckpt.run(*words).out
        assert crckpt.run("doctor", *words[1:-1], "--json").document["result"]["criu_passed_over"] == [why]


def test_dry_run_checks_the_store_and_everything_else(crckpt: Crckpt, tmp_path: Path) -> None:
    """What a dry run accepts also works. --no-preflight applies only to real runs."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").touch()
    with started(COUNTER) as tree:
        words = ("dump", str(tree.pid), "--dry-run")
        _refused(crckpt, 10, *words, "--store", str(tmp_path / "taken"), texts=("is not a store of crckpt",))
        crckpt.run(*words, "--store", str(tmp_path / "none"))
        assert not (tmp_path / "none").exists()
    with started(next(case for case in CASES if case.name == "tcp-pair")) as tree:
        against_advice = ("dump", str(tree.pid), "--dry-run", "--no-preflight")
        _refused(crckpt, 24, *against_advice, texts=("connected over TCP",))


def test_or_older_cannot_be_combined_with_no_preflight(crckpt: Crckpt) -> None:
    texts = ("--or-older cannot be combined with --no-preflight",)
    _refused(crckpt, 2, "restore", "job", "--or-older", "--no-preflight", texts=texts)


def test_verify_all_cannot_be_combined_with_a_checkpoint(crckpt: Crckpt) -> None:
    _refused(crckpt, 2, "verify", "job", "--all", texts=("--all and job cannot be combined",))


def _refused(
    crckpt: Crckpt, status: int, *words: str, texts: tuple[str, ...], also_as_text: bool = True
) -> Mapping[str, Any]:
    """Run crckpt with --json, and without it if `also_as_text`. Return the failure; it contains all of `texts`."""
    document: Mapping[str, Any] = {}
    for as_json in (True, False) if also_as_text else (True,):
        result = _run(crckpt.environment, str(PROGRAM), *_with_json(words, as_json))
        assert result.returncode == status, f"{words}: {result.returncode}\n{result.stdout}{result.stderr}"
        found = _one_failure(result, as_json=as_json)
        for text in texts:
            assert any(text in part for part in (found["message"], *found["causes"])), found
        document = document or found
    return document


def _with_json(words: tuple[str, ...], as_json: bool) -> tuple[str, ...]:
    return (words[0], "--json", *words[1:]) if as_json else words


def _one_failure(done: subprocess.CompletedProcess[str], *, as_json: bool) -> Mapping[str, Any]:
    """The failure in the output of a command that prints it once, in the documented form, and prints nothing else."""
    assert "Traceback" not in done.stderr
    if as_json:
        assert not done.stderr
        document = json.loads(done.stdout)
        assert set(document) == {"schema", "command", "status", "error"}
        assert (document["schema"], document["status"]) == (1, "error")
        error: dict[str, Any] = document["error"]
        assert set(error) == {"code", "message", "hint", "causes"}
        assert error["code"] == done.returncode
        assert "\n" not in error["message"]
        return error
    assert not done.stdout
    lines = done.stderr.splitlines()
    assert lines[0].startswith("crckpt: ")
    hint = lines.pop().removeprefix("  hint: ") if lines[-1].startswith("  hint: ") else ""
    assert all(line.startswith(("  - ", "    hint: ")) for line in lines[1:])
    assert hint or len(lines) > 2, "of several reasons each has its own remedy"
    return {
        "message": lines[0].removeprefix("crckpt: "),
        "hint": hint,
        "causes": [line.removeprefix("  - ") for line in lines[1:]],
    }


def _run(environment: Mapping[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def _status_without_unit() -> int:
    """The exit code for a missing unit, or for a host without systemctl."""
    found = any(Path(place, "systemctl").exists() for place in ("/bin", "/usr/bin"))
    return USAGE if found else HOST


def _is_kernel(pid: int) -> bool:
    """A kernel thread has no program and no arguments."""
    try:
        return psutil.Process(pid).cmdline() == [] and psutil.Process(pid).ppid() in (0, 2)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def _traced(pid: int) -> Iterator[int]:
    """Trace the process while the block runs; give the tracer's PID."""
    argv = [sys.executable, str(PROGRAMS / "tracer.py"), str(pid)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == "traced\n"
        yield tracer.pid
        tracer.communicate()
