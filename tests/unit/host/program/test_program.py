"""Programs have the names that people give them, whatever interpreter or wrapper runs them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from growth import grows_linearly
from hypothesis import given
from hypothesis import strategies as st

from crckpt.host.program import Program, identify, is_same_program
from crckpt.store.layout import NAME

PYTHON = "/usr/bin/python3.11"
JAVA = "/usr/lib/jvm/java-17/bin/java"


@pytest.mark.parametrize(
    ("executable", "line", "name"),
    [
        (PYTHON, "python3 train.py", "train"),
        (PYTHON, "python3 -u -W ignore -X dev ./jobs/train.py --epochs 3", "train"),
        (PYTHON, "python3 -um http.server 80", "http.server"),
        (PYTHON, "python3 -mhttp.server", "http.server"),
        (PYTHON, "python3 -c print()", "python3"),
        (PYTHON, "python3", "python3"),
        (PYTHON, "python3 -", "python3"),
        (PYTHON, "/venv/bin/python3 /venv/bin/gunicorn app:app", "gunicorn"),
        (PYTHON, "python3 /opt/shop/__main__.py", "shop"),
        ("/usr/bin/bash", "-bash", "bash"),
        ("/usr/bin/bash", "/bin/bash -o pipefail backup.sh /home", "backup"),
        ("/usr/bin/bash", "bash -ec exec", "bash"),
        ("/usr/bin/dash", "sh ./run", "run"),
        ("/usr/bin/node", "node -r dotenv/config --inspect server.mjs", "server"),
        ("/usr/bin/node", "node /srv/shop/dist/index.js", "shop"),
        ("/usr/bin/perl", "perl -w -I lib -Mstrict bin/collect.pl", "collect"),
        ("/usr/bin/ruby3.1", "ruby -Ilib -r set worker.rb", "worker"),
        ("/usr/bin/php8.2", "php -d memory_limit=1G artisan queue:work", "artisan"),
        ("/usr/bin/php8.2", "php -f cron.php", "cron"),
        ("/usr/lib/R/bin/exec/R", "R --no-echo --no-restore --file=fit.R", "fit"),
        (JAVA, "java -Xmx1g -Dx=y -jar /opt/app.jar serve", "app"),
        (JAVA, "java -jar /opt/app-1.2.3-SNAPSHOT.jar", "app"),
        (JAVA, "java -cp /a:/b org.acme.Main x", "Main"),
        (JAVA, "java --add-opens a/b=c -p mods -m org.acme/org.acme.Server", "Server"),
        (JAVA, "java Ticks.java", "Ticks"),
        ("/usr/bin/timeout", "timeout -k 5 1h nice -n 5 python3 train.py", "train"),
        ("/usr/bin/timeout", "timeout 1h ./server --port 1", "server"),
        ("/usr/bin/env", "env -i -u C A=b python3 train.py", "train"),
        ("/usr/bin/nohup", "nohup ./server", "server"),
        ("/usr/bin/stdbuf", "stdbuf -oL -e 0 ./server", "server"),
        ("/usr/bin/coreutils", "timeout 1h ./server", "server"),
        ("/usr/bin/timeout", "timeout", "timeout"),
        ("/bin/busybox", "httpd -f", "httpd"),
        ("/usr/bin/redis-check-rdb", "redis-server *:6379", "redis-server"),
        ("/memfd:x (deleted)", "x", "memfd-x"),
        ("/opt/server (deleted)", "./server", "server"),
    ],
)
def test_program_is_named_by_its_script_module_or_executable(executable: str, line: str, name: str) -> None:
    words = line.split()
    comm = "redis-server" if "redis" in line else words[0].rsplit("/", maxsplit=1)[-1]
    if executable.startswith("/memfd"):
        comm = "3"
    assert identify(executable, words, "/home/a", comm=comm).name == name


@pytest.mark.parametrize(("title", "name"), [("redis-server *:6379", "redis-server"), ("other *:1", "redis-check-rdb")])
@pytest.mark.parametrize("more", ["", " unixsocket:/run/x"])
def test_program_with_a_changed_title_is_named_by_its_beginning(title: str, more: str, name: str) -> None:
    """redis-server is a link to another program. A title counts only as far as the kernel confirms it by the comm."""
    assert identify("/usr/bin/redis-check-rdb", [title + more], comm="redis-server").name == name


def test_program_of_a_service_is_named_by_its_unit() -> None:
    for unit, name in (("nginx.service", "nginx"), ("getty@tty1.service", "getty-tty1"), (r"a\x2db.service", "a-b")):
        assert identify(PYTHON, ["python3", "x.py"], unit=f"/system.slice/{unit}").name == name


@pytest.mark.parametrize(
    ("title", "name"), [("gunicorn: master [app]", "gunicorn"), ("celery worker", "celery"), (" ", "python3")]
)
def test_program_may_replace_its_command_line(title: str, name: str) -> None:
    found = identify(PYTHON, [title], comm="python3")
    assert (found.name, found.script) == (name, None)
    # A forged first word is not the name of an executable.
    assert identify("/usr/sbin/nginx", ["postgres: writer"], comm="nginx").name == "nginx"


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("../../-rf\x1b[31m\n.py", "rf-31m"),
        ("--help", "python3"),
        ("/", "python3"),
        (".py", "py"),
        ("..", "python3"),
        ("cafe.py", "job-cafe"),
        ("2024.py", "job-2024"),
        ("\u6a21\u578b.py", "python3"),
        ("x" * 500, "x" * 64),
    ],
    ids=ascii,
)
def test_name_of_a_program_has_only_valid_characters(script: str, name: str) -> None:
    assert identify(PYTHON, ["python3", script]).name == name


@given(st.text(), st.lists(st.text()), st.text(), st.text(), st.sampled_from(["", PYTHON, JAVA, "/bin/sh", "/bin/env"]))
def test_any_command_line_gives_a_valid_name(
    executable: str, words: list[str], directory: str, comm: str, known: str
) -> None:
    found = identify(known or executable, words, directory, comm=comm)
    assert NAME.fullmatch(found.name)
    assert re.fullmatch(r"[0-9a-f]{4,64}", found.name) is None
    assert len(found.name) <= len("job-") + 64
    assert is_same_program(found, found)
    assert isinstance(found.title, str)


def of(executable: str, line: str, directory: str = "/home/a", unit: str = "") -> Program:
    return identify(executable, line.split(), directory, comm=line.split(maxsplit=1)[0], unit=unit)


SAME: Sequence[tuple[Program, Program]] = (
    (of(PYTHON, "python3 train.py --seed 1"), of("/usr/bin/python3.12", "python3 /home/a/train.py --seed 2")),
    (of(PYTHON, "python3 train.py"), of("/usr/bin/timeout", "timeout 1h python3 train.py")),
    # Daemons go to the root directory.
    (of(PYTHON, "python3 train.py"), of(PYTHON, "python3 train.py", "/")),
    (of("/opt/server", "server"), of("/opt/server (deleted)", "server -v")),
    (of("/opt/server", "server"), of("/usr/bin/timeout", "timeout 1h server")),
    (of(PYTHON, "python3"), of("/usr/bin/python3.13", "python3")),
    (of(PYTHON, "python3 -m app"), of(PYTHON, "python3 -m app --debug", "/srv")),
    (of(JAVA, "java -jar /opt/app-1.0.jar"), of("/usr/lib/jvm/java-21/bin/java", "java -jar /opt/app-1.1.jar")),
    (of(PYTHON, "python3 a.py", unit="/s/x.service"), of("/opt/x", "x", unit="/s/x.service")),
    (of(PYTHON, "gunicorn:"), of(PYTHON, "python3 x.py")),
    (of("", "python3 x.py"), of(PYTHON, "python3 x.py")),
    (of("", "server"), of("/opt/server", "server")),
)
OTHER: Sequence[tuple[Program, Program]] = (
    (of(PYTHON, "python3 train.py"), of(PYTHON, "python3 eval.py")),
    (of(PYTHON, "python3 train.py"), of(PYTHON, "python3 train.py", "/home/b")),
    (of(PYTHON, "python3 train.py"), of(PYTHON, "python3")),
    (of(PYTHON, "python3 train.py"), of("/usr/bin/bash", "bash train.sh")),
    (of(PYTHON, "python3 -c 1"), of(PYTHON, "python3 -c 2")),
    (of(PYTHON, "python3 -m a"), of(PYTHON, "python3 -m b")),
    (of("/opt/a/server", "server"), of("/opt/b/server", "server")),
    (of("/bin/busybox", "httpd"), of("/bin/busybox", "ntpd")),
    (of(JAVA, "java -cp x A"), of(JAVA, "java -cp x B")),
    (of(PYTHON, "python3 a.py", unit="/s/x.service"), of(PYTHON, "python3 b.py", unit="/s/y.service")),
    (of(PYTHON, "gunicorn:"), of("/opt/x", "x")),
    (of("", "python3 x.py"), of(PYTHON, "python3 y.py")),
)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_same_program_is_recognized_by_executable_and_script(one: Program, other: Program) -> None:
    assert is_same_program(one, other)
    assert is_same_program(other, one)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_different_programs_are_distinguished(one: Program, other: Program) -> None:
    assert not is_same_program(one, other)
    assert not is_same_program(other, one)


def test_title_of_a_program_does_not_contain_code_of_its_command_line() -> None:
    """The code may contain a password."""
    assert of("/bin/sh", "sh -c login=secret").title == "sh -c ..."
    assert of(PYTHON, "python3 -m http.server").title == "python3 -m http.server"
    assert of(PYTHON, "python3 x.py").title == "/home/a/x.py"
    assert of("/opt/server", "server").title == "/opt/server"


@pytest.mark.parametrize("word", ["/{-1.}", "-{u}", "{-1.-1}.jar"])
def test_time_is_linear_in_the_length_of_a_forged_word(word: str) -> None:
    """A process may have words of 128 KiB, and every dump of it reads them."""
    begin, repeated, end = re.split("[{}]", word)

    def prepare(length: int) -> Callable[[], None]:
        forged = begin + repeated * (length // len(repeated)) + end
        return lambda: name_and_compare(identify(PYTHON, ("python3", forged, *["-u"] * (length // 128)), "/home/a"))

    assert grows_linearly(prepare, 128_000)


def name_and_compare(found: Program) -> None:
    assert NAME.fullmatch(found.name)
    assert is_same_program(found, found)
    assert len(found.title) < 1000


@pytest.mark.parametrize("executable", [PYTHON, JAVA, "/usr/bin/env", "/usr/bin/timeout"])
@pytest.mark.parametrize("word", ["-u", "a=b", "nice", "-k", "--"])
def test_time_is_linear_in_the_number_of_forged_words(executable: str, word: str) -> None:
    def prepare(count: int) -> Callable[[], None]:
        # The words are the same object, because the time to fill the CPU's cache is not that of crckpt.
        words = (executable, *[word] * count)
        return lambda: name_and_compare(identify(executable, words))

    assert grows_linearly(prepare, 60_000)
