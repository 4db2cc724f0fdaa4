"""The destination of a move: reached as an unprivileged user, killed in the middle, or unreachable."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hosts import CannotMakeLab, talking
from migrations import FIRST, JOB, copies, end, migrate_with_fault, served, wait_until_settled, wait_until_stopped
from namespaces import Namespaces
from two_hosts import in_namespaces

_REFUSED = 24
_FAILED_THERE = 30
_SUDOERS = "/etc/sudoers.d/crckpt"
_MAY_RECEIVE = "ada ALL=(root) NOPASSWD: /usr/local/bin/crckpt receive, /usr/local/bin/crckpt receive *\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[Namespaces]:
    """The hosts, with a user `ada` on the destination. Skipped with the lab's own words where it cannot be made."""
    try:
        with in_namespaces() as found:
            found.run("destination", "useradd", "--create-home", "--password", "*", "--shell", "/bin/bash", "ada")
            copy = "mkdir -p ~ada/.ssh && cp ~root/.ssh/authorized_keys ~ada/.ssh && chown -R ada ~ada/.ssh"
            found.run("destination", "bash", "-c", copy)
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


def allow(lab: Namespaces, rule: str) -> None:
    """Let sudo on the destination have this rule."""
    lab.run("destination", "sh", "-c", f"cat >{_SUDOERS} && chmod 440 {_SUDOERS}", stdin=rule)


def migrate(lab: Namespaces, pid: int, crckpt: str, status: int) -> str:
    """Migrate as ada by this command; return what is printed to stderr."""
    words = ("crckpt", "migrate", str(pid), "ada@destination", JOB, "--remote-crckpt", crckpt)
    return lab.run("source", *words, status=status).err


def test_move_by_sudo_on_the_destination_works(lab: Namespaces) -> None:
    allow(lab, _MAY_RECEIVE)
    with served(lab) as pid:
        migrate(lab, pid, "sudo crckpt", 0)
        (process,) = copies(lab)
        assert (process.host, process.pid) == ("destination", pid)
        status = lab.run("destination", "cat", f"/proc/{pid}/status").out
        assert "Uid:\t0\t0\t0\t0" in status


def test_address_of_the_connection_is_refused_with_sudo(lab: Namespaces) -> None:
    allow(lab, _MAY_RECEIVE)
    config = "/root/.ssh/config"
    with served(lab, address=lab.service(4)) as pid:
        lab.run("source", "sh", "-c", f"cat >{config}", stdin=f"BindAddress {lab.service(4)}\n")
        try:
            words = ("crckpt", "migrate", str(pid), "ada@destination", JOB, "--remote-crckpt", "sudo crckpt")
            moved = f"{lab.services[4]}@{lab.device}"
            error = lab.run("source", *words, "--tcp", "keep", "--move-ip", moved, "--check", status=_REFUSED).err
        finally:
            lab.run("source", "rm", config)
        assert f"the connection between the hosts uses {lab.service(4)}, which moves" in error


def test_unprivileged_remote_user_is_refused_with_a_hint(lab: Namespaces) -> None:
    with served(lab) as pid:
        output = migrate(lab, pid, "crckpt", _FAILED_THERE)
        assert "root is needed to receive a process" in output
        assert "--remote-crckpt 'sudo crckpt'" in output
        for rule in ("ada ALL=(root) ALL\n", "", "ada ALL=(root) NOPASSWD: /usr/bin/true\n"):
            allow(lab, rule)
            output = migrate(lab, pid, "sudo crckpt", _FAILED_THERE)
            assert "crckpt on ada@destination ended with status 1" in output
            assert "sudo: " in output
            assert "visudo on ada@destination: USER ALL=(root) NOPASSWD: /PATH/TO/crckpt" in output
        (process,) = copies(lab)
        assert (process.host, process.is_running) == ("source", True)


def test_program_stays_in_the_ssh_session_without_systemd(lab: Namespaces) -> None:
    """No systemd exists that could give it its own scope."""
    session = "/sys/fs/cgroup/session-9.scope"
    lab.run("destination", "mkdir", session)
    script = f'#!/bin/sh\necho $$ >{session}/cgroup.procs\nexec crckpt "$@"\n'
    lab.run("destination", "sh", "-c", "cat >/root/in-session && chmod 755 /root/in-session", stdin=script)
    with served(lab) as pid:
        words = ("crckpt", "migrate", str(pid), "destination", JOB, "--remote-crckpt", "/root/in-session")
        result = lab.run("source", *words)
        assert (
            "the control group of the ssh session, /session-9.scope, and systemd may end it" in result.err + result.out
        )
        assert [copy.host for copy in copies(lab)] == ["destination"]


def test_address_moves_to_a_device_with_another_name(lab: Namespaces) -> None:
    """The address moves, and the client's connection with it, there and back."""
    net, device = lab.services[4], lab.device
    rename(lab, device, "ens3")
    try:
        with served(lab, address=lab.service(4)) as pid, talking(lab, 4) as client:
            client.wait_for_replies()
            words = ("crckpt", "migrate", str(pid), "destination", JOB, "--tcp", "keep", "--move-ip")
            refused = lab.run("source", *words, f"{net}@{device}", status=_REFUSED).err
            assert f"there is no network device {device}" in refused
            assert f"--move-ip {net}@DEV:ens3" in refused
            lab.run("source", *words, f"{net}@{device}:ens3")
            report = client.wait_for_replies()
            assert (report["wrong"], report["ended"], report["hosts"]) == (None, None, ["source", "destination"])
            back = ("crckpt", "migrate", str(pid), "source", JOB, "--tcp", "keep", "--move-ip")
            lab.run("destination", *back, f"{net}@ens3:{device}")
            report = client.wait_for_replies()
            assert (report["wrong"], report["ended"]) == (None, None)
            assert [copy.host for copy in copies(lab)] == ["source"]
    finally:
        rename(lab, "ens3", device)
        lab.bring_service_back(4)


def rename(lab: Namespaces, device: str, name: str) -> None:
    """Rename the destination's device."""
    # Without its IPv6 address, ssh would wait for that first.
    lab.run("destination", "sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/all/keep_addr_on_down")
    for words in (("down",), ("name", name)):
        lab.run("destination", "ip", "link", "set", device, *words)
    lab.run("destination", "ip", "link", "set", name, "up")


@pytest.mark.parametrize("moment", [FIRST["destination"], "send.Lacking"])
def test_crckpt_killed_at_the_destination_leaves_the_tree_at_the_source(lab: Namespaces, moment: str) -> None:
    with served(lab) as pid:
        process = migrate_with_fault(lab, pid, "destination", f"CRCKPT_STOP_AT={moment}")
        (stopped,) = [each for each in wait_until_stopped(lab, "destination", process) if "receive" in each.command]
        lab.send_signal(stopped, signal.SIGKILL)
        result = end(process)
        assert result.status == _FAILED_THERE
        assert "crckpt on destination was killed, perhaps because its memory ran out" in result.err
        wait_until_settled(lab)
        (copy,) = copies(lab)
        assert copy.host == "source"
