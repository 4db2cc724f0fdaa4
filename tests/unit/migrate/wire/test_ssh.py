"""ssh gets safe arguments, and its failures are explained with a next step."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from connections import HELLO

from crckpt.errors import HostCannot, Interrupted, RemoteError, UsageError
from crckpt.migrate.wire.connection import Connection, ConnectionLost, PrintedText
from crckpt.migrate.wire.messages import Hello, Stored
from crckpt.migrate.wire.ssh import adapt_to_configuration, check_host, make_command, make_host_words, started

# Takes no options; a shell parses the command, as over there.
_SSH = """#!/bin/sh
shift
host=$1
eval "exec $2"
"""

_RECEIVE = f"""#!{sys.executable}
import os, sys
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.messages import Hello, Stored
with Connection(0, 1, "source") as side:
    side.send(side.receive(Hello))
    print(sys.argv[1:], file=sys.stderr, flush=True)
    side.receive(Stored)
"""


@pytest.fixture
def ssh(tmp_path: Path) -> Callable[[str], tuple[str, ...]]:
    """Makes a program in the place of ssh."""

    def make(text: str = _SSH) -> tuple[str, ...]:
        program = tmp_path / "ssh"
        program.write_text(text)
        program.chmod(0o700)
        return (str(program),)

    return make


@pytest.fixture
def receive(tmp_path: Path) -> str:
    """A program in the place of the remote crckpt, whose path needs quotes."""
    program = tmp_path / "the crckpt; exit 3"
    program.write_text(_RECEIVE)
    program.chmod(0o700)
    return shlex.quote(str(program))


@contextmanager
def connection_to(crckpt: str, ssh: tuple[str, ...], store: str | None = None) -> Iterator[Connection]:
    """A connection to what ssh starts."""
    with (
        started("root@there", crckpt, store, ssh=ssh) as remote,
        Connection(remote.incoming, remote.outgoing, "root@there", explain_end=remote.explain_end) as connection,
    ):
        yield connection


def test_two_sides_of_an_ssh_connection_exchange_messages(ssh: Callable[[], tuple[str, ...]], receive: str) -> None:
    with connection_to(receive, ssh(), "/a store/$(id)") as connection:
        connection.send(HELLO)
        assert connection.receive(Hello) == HELLO
        connection.send(Stored())
        with pytest.raises(ConnectionLost, match="has ended"):
            connection.receive(Stored)


def test_arguments_of_ssh_arrive_unchanged_at_the_other_host(ssh: Callable[[], tuple[str, ...]], receive: str) -> None:
    broken = Path(*shlex.split(receive)).read_text().replace("side.receive(Stored)", "sys.exit(7)")
    Path(*shlex.split(receive)).write_text(broken)
    with connection_to(receive, ssh(), "/a store/$(id)") as connection:
        connection.send(HELLO)
        connection.receive(Hello)
        with pytest.raises(RemoteError, match="crckpt on root@there ended with status 7") as caught:
            connection.receive(Stored)
    assert "['receive', '--store', '/a store/$(id)']" in caught.value.message


def test_ssh_command_ends_with_host_and_remote_command() -> None:
    assert make_command("root@there", "crckpt", None)[-3:] == ("--", "root@there", "crckpt receive")
    assert make_command("there", "'/opt/my crckpt'", "/s t")[-1] == "'/opt/my crckpt' receive --store '/s t'"


def test_arguments_of_the_remote_command_are_quoted() -> None:
    assert make_command("there", "sudo -n crckpt", None)[-1] == "sudo -n crckpt receive"
    assert make_command("there", "sudo $(id)", None)[-1] == "sudo '$(id)' receive"
    for command in ("", " ", "'"):
        with pytest.raises(UsageError, match="is not a command"):
            make_command("there", command, None)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "-oProxyCommand=reboot",
        "root@",
        "@there",
        "root@-oProxyCommand=x",
        "a b",
        "a\nb",
        "a\x1bb",
        "$(id)",
        "a;b",
        "ssh://-oProxyCommand=x",
        "ssh://root@-x",
        "a\x9bb",
        "a\u202eb",
        "a\udcffb",
    ],
)
def test_invalid_destination_host_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="is not a host name for ssh"):
        check_host(host)


@pytest.mark.parametrize(
    "host", ["there", "root@192.0.2.1", "fe80::1%eth0", "user@realm@there", "DOMAIN\\user@there", "ssh://there:22", "ä"]
)
def test_valid_destination_host_is_accepted(host: str) -> None:
    assert check_host(host) == host


@pytest.mark.parametrize("host", ["there:22", "root@there:22", "192.0.2.1:2222", "there:"])
def test_destination_with_a_port_suggests_an_ssh_uri(host: str) -> None:
    with pytest.raises(UsageError, match="names a port") as caught:
        check_host(host)
    assert caught.value.hint == f"type ssh://{host}; or set Port in ~/.ssh/config"
    assert check_host(f"ssh://{host}") == f"ssh://{host}"


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("root@[fd77::2]:22", ("-p", "22", "--", "root@fd77::2")),
        ("ssh://root@[fd77::2]:22", ("-p", "22", "--", "root@fd77::2")),
        ("ssh://[fd77::2]/", ("--", "fd77::2")),
        ("[fe80::1%eth0]", ("--", "fe80::1%eth0")),
        ("ssh://there:22", ("--", "ssh://there:22")),
        ("root@fd77::2", ("--", "root@fd77::2")),
    ],
)
def test_destination_with_an_ipv6_address_can_have_a_port(host: str, words: tuple[str, ...]) -> None:
    """ssh itself accepts IPv6 addresses neither in a URI nor in brackets."""
    assert make_host_words(host) == words


def test_no_agent_display_or_ticket_is_forwarded(tmp_path: Path) -> None:
    """The configuration of a user may forward an agent, a display or tickets to every host."""
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh")
    lends = "ForwardAgent yes\nForwardX11 yes\nPermitLocalCommand yes\nTunnel yes\nGSSAPIDelegateCredentials yes\n"
    configuration = tmp_path / "config"
    configuration.write_text(lends)
    ssh, *options, _, _, _ = make_command("there", "crckpt", None)
    words = (ssh, "-F", str(configuration), *options, "-G", "there")
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in ("forwardagent", "forwardx11", "permitlocalcommand", "tunnel", "gssapidelegatecredentials"):
        (value,) = (line.split()[1] for line in found if line.split()[0] == name)
        assert value in ("no", "false"), name


def test_output_of_the_other_host_cannot_control_the_terminal(ssh: Callable[[str], tuple[str, ...]]) -> None:
    shown: list[str] = []
    was_shown = threading.Event()

    def show(text: str) -> None:
        shown.append(text)
        was_shown.set()

    # Text that comes before the other side answers: perhaps a question.
    program = ssh("#!/bin/sh\nprintf 'Code:\\033]0;x\\007\\302\\233 \\r\\nnext\\n' >&2\nexec sleep 1000\n")
    with suppress(Interrupted), started("there", ssh=program, show=show):
        was_shown.wait()
        raise Interrupted("enough")
    mark = "\N{REPLACEMENT CHARACTER}"
    assert shown == [f"Code:{mark}]0;x{mark}{mark} \nnext\n"]


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        (
            "#!/bin/sh\necho 'ssh: connect to host there port 22: Connection refused' >&2\nexit 255\n",
            "ssh cannot connect to root@there: ssh: connect to host there port 22: Connection refused",
            "ssh root@there",
        ),
        (
            "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' '\\n' >&2\necho ' last' >&2\nexit 255\n",
            "ssh cannot connect to root@there: last",
            "ssh root@there",
        ),
        (
            "#!/bin/sh\necho no command: receive >&2\nexit 2\n",
            "status 2: no command: receive",
            "same version",
        ),
        (
            "#!/bin/sh\necho 'crckpt: root is needed to receive a process' >&2\nexit 20\n",
            "status 20: crckpt: root is needed to receive a process",
            "crckpt doctor",
        ),
        (
            "#!/bin/sh\nexit 255\n",
            "ended with status 255 and gave no reason: crckpt there was killed before it answered, or ssh may not say "
            "why (LogLevel)",
            "ssh root@there dmesg | grep -i 'killed process'",
        ),
        (
            "#!/bin/sh\necho 'crckpt: only node1 knows' >&2\nexit 31\n",
            "ended with status 31: crckpt: only node1 knows",
            "crckpt doctor",
        ),
        ("#!/bin/sh\necho no >&2\nexit 7\n", "crckpt on root@there ended with status 7: no", "crckpt doctor"),
        # A login shell that does nothing.
        ("#!/bin/sh\nexit 1\n", "crckpt on root@there ended with status 1", "login shell"),
        ("#!/bin/sh\nkill -11 $$\n", "crckpt on root@there was ended by signal 11", "crckpt doctor"),
        ("#!/bin/sh\nkill -9 $$\n", "ended by signal 9, perhaps because its memory ran out", "dmesg"),
        ("#!/bin/sh\nexit 137\n", "ended by signal 9, perhaps because its memory ran out", "dmesg"),
    ],
)
def test_error_explains_why_ssh_has_ended(
    ssh: Callable[[str], tuple[str, ...]], text: str, words: str, hint: str
) -> None:
    with connection_to("crckpt", ssh(text)) as connection, pytest.raises(RemoteError) as caught:
        connection.receive(Hello)
    assert caught.value.message.endswith(words)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("sudo_output", "status", "hint"),
    [
        ("sudo: a password is required", 1, "NOPASSWD"),
        ("Sorry, user ada is not allowed to execute '/usr/bin/crckpt receive' as root on there.", 1, "NOPASSWD"),
        ("sudo: sorry, you must have a tty to run sudo", 1, "!requiretty"),
        ("sudo: crckpt: command not found", 1, "secure_path"),
        ("sudo: unable to open /etc/sudoers: Input/output error", 1, "see what this says: ssh -p 22 ada@fd77::2 sudo"),
        ("sh: 1: sudo: not found", 127, "check that this works: ssh -p 22 ada@fd77::2 sudo crckpt --version"),
        # sudo only warns, and crckpt failed.
        ("sudo: unable to resolve host there: Name or service not known", 30, "sudo crckpt doctor"),
    ],
)
def test_error_explains_why_sudo_failed_on_the_other_host(
    ssh: Callable[[str], tuple[str, ...]], sudo_output: str, status: int, hint: str
) -> None:
    program = ssh(f"#!/bin/sh\necho {shlex.quote(sudo_output)} >&2\nexit {status}\n")
    with (
        started("ada@[fd77::2]:22", "sudo crckpt", ssh=program) as remote,
        Connection(remote.incoming, remote.outgoing, "there", explain_end=remote.explain_end) as connection,
        pytest.raises(RemoteError) as caught,
    ):
        connection.receive(Hello)
    assert sudo_output in caught.value.message
    assert hint in caught.value.hint
    assert ("NOPASSWD" in hint) == ("NOPASSWD" in caught.value.hint)


def test_missing_root_on_the_other_host_is_an_ordinary_error(ssh: Callable[[], tuple[str, ...]]) -> None:
    """The error arrives as a message although the remote command has not begun to receive."""
    nobody = f"unshare --user --map-user=65534 --map-group=65534 {shlex.quote(sys.executable)} -P -m crckpt"
    with connection_to(nobody, ssh()) as connection:
        connection.send(HELLO)
        with pytest.raises(RemoteError) as caught:
            connection.receive(Hello)
    assert caught.value.message == "root@there: root is needed to receive a process"
    assert caught.value.hint == "log in as root there, or use sudo: --remote-crckpt 'sudo crckpt'"


def test_error_says_that_crckpt_is_missing_on_the_other_host(ssh: Callable[[], tuple[str, ...]]) -> None:
    words = "/nowhere/crckpt cannot be run on root@there: .*not found"
    with connection_to("/nowhere/crckpt", ssh()) as connection, pytest.raises(RemoteError, match=words) as caught:
        connection.receive(Hello)
    assert "--remote-crckpt /PATH/TO/crckpt" in caught.value.hint


def test_error_says_that_a_shell_on_the_other_host_prints_text(
    ssh: Callable[[str], tuple[str, ...]], receive: str
) -> None:
    text = _SSH.replace("shift\n", "shift\necho Welcome to there!\n")
    words = "printed text before crckpt's first message: Welcome to there!"
    with connection_to(receive, ssh(text)) as connection, pytest.raises(PrintedText, match=words):
        connection.receive(Hello)


def test_error_says_that_ssh_is_missing() -> None:
    with pytest.raises(HostCannot, match="cannot run /nowhere/ssh"), started("there", ssh=("/nowhere/ssh",)):
        pass


def test_keys_typed_at_the_terminal_do_not_end_ssh(ssh: Callable[[str], tuple[str, ...]]) -> None:
    """The keys also do not end an ssh that is started by a shell of the first one."""
    numbers = (signal.SIGINT, signal.SIGTSTP, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    text = "#!/bin/sh\nsh -c 'grep SigIgn /proc/self/status' >&2\nexit 255\n"
    with connection_to("crckpt", ssh(text)) as connection, pytest.raises(RemoteError) as caught:
        connection.receive(Hello)
    ignored = int(caught.value.message.rpartition(":")[2].split()[-1], 16)
    assert all(ignored >> (number - 1) & 1 for number in numbers)
    assert [signal.getsignal(number) for number in numbers] == handlers
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(numbers)


def test_interruption_ends_a_prompting_ssh(ssh: Callable[[str], tuple[str, ...]]) -> None:
    shown: list[str] = []
    was_shown = threading.Event()

    def show(text: str) -> None:
        shown.append(text)
        was_shown.set()

    def connect() -> None:
        with (
            started("there", ssh=ssh("#!/bin/sh\necho $$ >&2\nexec sleep 1000\n"), show=show) as remote,
            Connection(remote.incoming, remote.outgoing, "there"),
        ):
            was_shown.wait()
            raise Interrupted("^C")

    with pytest.raises(Interrupted):
        connect()
    with pytest.raises(ProcessLookupError):
        os.kill(int(shown[0]), 0)


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh")
def test_ssh_explains_why_it_cannot_connect() -> None:
    with (
        started("127.0.0.1", ssh=("ssh", "-F", "none", "-p", "1")) as remote,
        Connection(remote.incoming, remote.outgoing, "there", explain_end=remote.explain_end) as connection,
        pytest.raises(RemoteError, match=r"ssh cannot connect to 127.0.0.1: .*Connection refused"),
    ):
        connection.receive(Hello)


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh")
@pytest.mark.parametrize(
    ("setting", "option"),
    [
        ("", ""),
        ("ConnectTimeout 90", "-oConnectTimeout=10"),
        ("StdinNull yes", "-oStdinNull=no"),
        ("SessionType none", "-oSessionType=default"),
        ("SessionType subsystem", "-oSessionType=default"),
        ("ForkAfterAuthentication yes", "-oForkAfterAuthentication=no"),
    ],
)
def test_ssh_options_of_the_user_that_conflict_do_not_apply(tmp_path: Path, setting: str, option: str) -> None:
    """The time to connect is limited, unless the user's options limit it."""
    file = tmp_path / "config"
    file.write_text(f"Host there\n{setting}\n")
    words = ("ssh", "-T", "-F", str(file))
    wanted = {"-oConnectTimeout=10"} ^ {option} - {""}
    assert {*adapt_to_configuration("root@there", words)[len(words) :]} == wanted
