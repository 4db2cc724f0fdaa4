"""The sockets by which CRIU's processes send each other descriptors at a restore (transport.c) are for them alone."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import pytest

from crckpt.tracking.preload.library import RESTORE_LIBRARY

pytestmark = pytest.mark.skipif(not RESTORE_LIBRARY.exists(), reason="there was no C compiler")

SEND_FUNCTION: Final = """
import array, json, os, re, socket, subprocess, sys

def send(sender, text, descriptors, *address):
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    sender.sendmsg([text], [rights], 0, *address)
"""
STRANGER_PROGRAM: Final = f"""{SEND_FUNCTION}
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
    for text in (b"", b"theirs", b"x" * 1000):
        for _ in range(50):
            send(sender, text, [2, 2], "\\0" + sys.argv[1][1:])
print("sent")
"""
"""Another process of the host, of any user, which knows nothing of CRIU but the name."""
PRELUDE: Final = f"""{SEND_FUNCTION}
def shown(before):
    return [name for name in re.findall(r" (@/cr\\S+)", open("/proc/net/unix").read()) if name not in before]

def stranger(name):
    words = [sys.executable, "-c", {STRANGER_PROGRAM!r}, name]
    environment = {{name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}}
    return subprocess.run(words, capture_output=True, text=True, timeout=30, env=environment).stdout.strip()

def criu_name(pid):
    return f"\\0/crtools-fd-{{pid}}-{{run}}"

def bound(name):
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.setblocking(False)
    receiver.bind(name)
    return receiver

before, run = shown(()), os.getpid()
"""
SENDING_PROGRAM: Final = """
receiver, sender = bound(criu_name(1)), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
names = shown(before)
results = [stranger(name) for name in names]
for text, descriptors in ((b"ours", [2, 2]), (b"more of ours", [2])):
    if not os.fork():
        send(sender, text, descriptors, criu_name(1))
        os._exit(0)
    os.wait()
results += [stranger(name) for name in names]
count = len(os.listdir("/proc/self/fd"))
for _ in range(2):
    text, descriptors, flags, _ = socket.recv_fds(receiver, 100, 2)
    results.append([text.decode(), len(descriptors), flags])
try:
    results.append(socket.recv_fds(receiver, 100, 2))
except BlockingIOError:
    results.append("nothing more")
print(json.dumps([*results, len(os.listdir("/proc/self/fd")) - count]))
"""
PROGRAM_WITH_SQUATTED_NAMES: Final = """
receiver = bound(criu_name(1))
(name,) = shown(before)
others = [criu_name(2), "\\0" + re.sub(r"fd-[0-9]+", "fd-2", name[1:])]
squatters = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in others]
for squatter, other in zip(squatters, others):
    # As a program without the library does.
    squatter.set_inheritable(True)
    number = {"NUMBER": str(squatter.fileno())}
    subprocess.run([sys.executable, "-c", NAME_HOLDER, other[1:]], close_fds=False, env=number)
if not os.fork():
    sender = bound(criu_name(2))
    sender.setblocking(True)
    send(sender, b"text", [2], criu_name(1))
    send(sender, socket.recv_fds(sender, 100, 2)[0], [2], criu_name(1))
    os._exit(0)
receiver.setblocking(True)
texts = [socket.recv_fds(receiver, 100, 2)[0].decode()]
send(receiver, b"answer", [2], criu_name(2))
texts.append(socket.recv_fds(receiver, 100, 2)[0].decode())
print(json.dumps(texts))
"""
NAME_HOLDER: Final = """
import os, socket, sys
socket.socket(fileno=int(os.environ["NUMBER"])).bind("\\0" + sys.argv[1])
"""
STORING_PROGRAM: Final = """
store = bound("\\0/criu-fdstore-1-%d" % os.getpid())
(name,) = shown(before)
results = [stranger(name)]
store.connect("\\0" + name[1:])
results.append(stranger(name))
send(store, b"x", [2])
text, descriptors, flags, _ = socket.recv_fds(store, 100, 2)
results.append([text.decode(), len(descriptors)])
# A program's own socket can have such a name.
program = bound("\\0/criu-fdstore-of-a-program")
send(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), b"to a program", [2], "\\0/criu-fdstore-of-a-program")
results.append(socket.recv_fds(program, 100, 2)[0].decode())
print(json.dumps(results))
"""


def run(code: str) -> object:
    """Return what a program prints that was started with the library."""
    words = [
        "env",
        f"LD_PRELOAD={RESTORE_LIBRARY}",
        sys.executable,
        "-c",
        f"NAME_HOLDER = {NAME_HOLDER!r}\n{PRELUDE}{code}",
    ]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout)


def test_messages_of_other_programs_never_arrive_at_criu() -> None:
    """Messages of others, even of root, fill no queue and bring no descriptor. CRIU's own arrive completely."""
    assert run(SENDING_PROGRAM) == ["sent", "sent", ["ours", 2, 0], ["more of ours", 1, 0], "nothing more", 3]


def test_name_of_one_socket_of_criu_does_not_reveal_the_others() -> None:
    """Another process cannot take a name before CRIU does."""
    assert run(PROGRAM_WITH_SQUATTED_NAMES) == ["text", "answer"]


def test_descriptor_store_of_criu_accepts_only_its_own_messages() -> None:
    """Others cannot send before the store is connected to itself, nor after that (EPERM: the sender prints nothing)."""
    assert run(STORING_PROGRAM) == ["sent", "", ["x", 1], "to a program"]
