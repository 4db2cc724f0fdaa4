"""A system call is injected into a process in any state without a visible effect, or a reason is given."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from checkout import PROJECT
from stopped_trees import orphans_adopted
from target_processes import PROGRAMS, compile_program, frozen, list_descriptors, running, state, tracer, wait_for

from crckpt.helper.calls.remote_calls import OrderResult, take_userfaultfds

UFFD = "anon_inode:[userfaultfd]"
NOT_RUNNING_MESSAGE = "does not run: its control group is frozen, or gives it almost no CPU time"

# A filter that kills the process for userfaultfd (linux/seccomp.h): it loads the call's number, compares, kills.
PROGRAM_WITH_A_KILLING_FILTER = """
import ctypes, struct, sys
program = ctypes.create_string_buffer(struct.pack("=HBBIHBBIHBBIHBBI",
    0x20, 0, 0, 0, 0x15, 0, 1, 323, 0x06, 0, 0, 0x80000000, 0x06, 0, 0, 0x7FFF0000))
head = ctypes.create_string_buffer(struct.pack("@HP", 4, ctypes.addressof(program)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, head, 0, 0) == 0
print("ready", flush=True)
if sys.stdin.readline() == "call\\n":
    libc.syscall(323, 1)
print("lives", flush=True)
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may suspend another's seccomp filters")
pytestmark = needs_root


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_program("entered.c", tmp_path_factory.mktemp("entered"), "-pthread")


def entered(pid: int) -> OrderResult:
    """The result of entering the process.

    Our descriptor is closed again; the process has no tracer and no userfaultfd.
    """
    (result,) = take_userfaultfds([pid])
    if result.descriptor >= 0:
        assert str(Path(f"/proc/self/fd/{result.descriptor}").readlink()) == UFFD
        os.close(result.descriptor)
    return result


def output_after(process: subprocess.Popen[str], typed: str = "") -> str:
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdin.write(typed)
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_wait_of_a_program_continues_after_a_userfaultfd_was_taken_from_it(program: str) -> None:
    ends = {"nanosleep": 0, "poll": 0, "futex": -errno.ETIMEDOUT, "epoll": 0, "sigtimedwait": -errno.EAGAIN}
    with ExitStack() as stack:
        waiting = {waits: stack.enter_context(running(program, waits)) for waits in ends}
        pids = [process.pid for process in waiting.values()]
        wait_for(lambda: all(state(pid) == "S" for pid in pids), "the waits to begin")
        for _ in range(2):
            for result in take_userfaultfds(pids):
                assert result.descriptor >= 0, result
                os.close(result.descriptor)
        assert [output_after(process) for process in waiting.values()] == [
            f"{name} {end}" for name, end in ends.items()
        ]


def test_read_of_a_program_gets_input_after_a_userfaultfd_was_taken_from_it(program: str) -> None:
    with running(program, "read") as process:
        wait_for(lambda: state(process.pid) == "S", "the read to begin")
        assert entered(process.pid).descriptor >= 0
        assert list_descriptors(process.pid).count(UFFD) == 0
        assert output_after(process, "x\n") == f"read {ord('x')}"


def test_signals_sent_while_calls_are_injected_arrive_exactly_once(program: str) -> None:
    with running(program, "signals") as process:

        def send() -> None:
            for _ in range(200):
                os.kill(process.pid, signal.SIGRTMIN)

        sending = threading.Thread(target=send)
        sending.start()
        results = [entered(process.pid) for _ in range(3)]
        sending.join()
        assert all(
            answer.descriptor >= 0 or "no process" in answer.why or "ended" in answer.why for answer in results
        ), results
        assert output_after(process) == "counted 200"


def test_injected_calls_abort_a_restartable_sequence_as_the_kernel_does(program: str) -> None:
    with running(program, "sequences") as process, running(program, "sequences") as other:
        # The kernel aborts a sequence when its thread loses the CPU. Here two processes share one CPU.
        for pid in (process.pid, other.pid):
            os.sched_setaffinity(pid, {min(os.sched_getaffinity(pid))})
        for _ in range(3):
            assert entered(process.pid).descriptor >= 0
            before = int(output_after(process).split()[1])
            # The pipe may still contain earlier output.
            for _ in range(4):
                assert int(output_after(process).split()[1]) > before


def test_seccomp_filter_that_kills_is_suspended_for_injected_calls() -> None:
    with running(sys.executable, "-c", PROGRAM_WITH_A_KILLING_FILTER) as process:
        assert entered(process.pid).descriptor >= 0
        assert output_after(process, "go on\n") == "lives"
    with running(sys.executable, "-c", PROGRAM_WITH_A_KILLING_FILTER) as process:
        assert output_after(process, "call\n") == "", "the filter is in force again for the program itself"


def test_no_call_is_injected_into_a_filtered_program_without_the_right_to_suspend_its_filter() -> None:
    drop = shutil.which("capsh")
    if drop is None:
        pytest.skip("capsh (libcap2-bin) is not installed")
    with running(sys.executable, "-c", PROGRAM_WITH_A_KILLING_FILTER) as process:
        imports = "from crckpt.helper.calls.remote_calls import take_userfaultfds"
        asks = f"{imports}; print(take_userfaultfds([{process.pid}])[0].why)"
        # As root without CAP_SYS_ADMIN.
        words = [drop, "--drop=cap_sys_admin", "--", "-c", f"exec {sys.executable} -c '{asks}'"]
        result = subprocess.run(words, capture_output=True, text=True, check=True, cwd=PROJECT)
        assert "seccomp" in result.stdout
        assert output_after(process, "go on\n") == "lives"


def test_stopped_process_stays_stopped_after_injected_calls(program: str) -> None:
    with running(program, "read") as process:
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: state(process.pid) == "T", "the stop")
        assert entered(process.pid).descriptor >= 0
        wait_for(lambda: state(process.pid) == "T", "it to be stopped again")
        os.kill(process.pid, signal.SIGCONT)
        assert output_after(process, "y\n") == f"read {ord('y')}"


def test_32_bit_program_continues_after_its_userfaultfd_was_taken(tmp_path: Path) -> None:
    flags = ("-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-stack-protector", "-fno-pic", "-no-pie")
    try:
        program = compile_program("entered_32.c", tmp_path, *flags)
    except subprocess.CalledProcessError:
        pytest.skip("gcc makes no 32-bit programs here")
    with running(program, ready="") as process:
        if process.poll() is not None:
            pytest.skip("this kernel runs no 32-bit programs")
        assert output_after(process, "a\n") == "a"
        assert entered(process.pid).descriptor >= 0
        assert UFFD not in list_descriptors(process.pid)
        assert output_after(process, "b\n") == "b"


@contextmanager
def traced(pid: int, *argv: str) -> Iterator[int]:
    tracing = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: tracer(pid) == tracing.pid, f"{argv[0]} to attach")
        yield tracing.pid
    finally:
        tracing.kill()
        tracing.communicate()


@pytest.mark.parametrize("debugger", ["tracer", "gdb"])
def test_injection_into_a_traced_process_reports_the_tracer(program: str, debugger: str) -> None:
    if shutil.which("gdb") is None and debugger == "gdb":
        pytest.skip("gdb is not installed")
    with running(program, "read") as process:
        if debugger == "gdb":
            words = ["gdb", "--quiet", "-nx", "-iex", "set debuginfod enabled off", "-p", str(process.pid)]
        else:
            words = [sys.executable, str(PROGRAMS / "tracer.py"), str(process.pid)]
        with traced(process.pid, *words) as pid:
            assert entered(process.pid).why.startswith(f"PID {process.pid} is already traced by PID {pid} (")
        assert output_after(process, "z\n") == f"read {ord('z')}"


def test_process_in_uninterruptible_sleep_gets_no_injected_call(program: str) -> None:
    with running(program, "uninterruptible") as process:
        wait_for(lambda: state(process.pid) == "D", "vfork to wait")
        result = entered(process.pid)
        assert result.why == f"PID {process.pid} is in uninterruptible sleep (in vfork)"
        assert "try again" in result.hint
        assert tracer(process.pid) == 0, "nobody has seized it"
        (child,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        os.kill(child, signal.SIGKILL)
        assert process.wait() == 0


def test_calls_are_injected_into_another_thread_if_the_main_one_sleeps_uninterruptibly(program: str) -> None:
    with running(program, "partly uninterruptible") as process:
        wait_for(lambda: state(process.pid) == "D", "vfork to wait")
        assert entered(process.pid).descriptor >= 0
        assert UFFD not in list_descriptors(process.pid)


def test_program_is_unharmed_if_crckpt_is_killed_while_it_injects_calls(program: str) -> None:
    asks = "import sys; from crckpt.helper.calls.remote_calls import take_userfaultfds\nprint('ready', flush=True)\n"
    asks += "while True: take_userfaultfds([int(sys.argv[1])])"
    # The system's init may take seconds to reap a helper.
    with orphans_adopted(), running(program, "read") as process:
        for moment in range(6):
            with running(sys.executable, "-c", asks, str(process.pid), cwd=PROJECT) as asking:
                if moment % 2:
                    wait_for(lambda: tracer(process.pid) != 0, "it to be entered")
                else:
                    wait_for(lambda: helpers_of(asking.pid) != [], "the helper to start")
                helpers = helpers_of(asking.pid)
                asking.kill()
            wait_for(partial(reaped, helpers), "the helper to end")
            assert tracer(process.pid) == 0, "nobody holds it"
            assert UFFD not in list_descriptors(process.pid)
        assert entered(process.pid).descriptor >= 0
        assert output_after(process, "k\n") == f"read {ord('k')}"


def helpers_of(pid: int) -> list[Path]:
    return [Path(f"/proc/{child}") for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def reaped(helpers: list[Path]) -> bool:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return not any(helper.exists() for helper in helpers)


def test_process_that_does_not_stop_is_released(program: str) -> None:
    """The process sleeps only after the first look, so its state is not visible before."""
    hidden = (
        "import os, sys\nfrom crckpt.host.syscalls import ptrace\nptrace._state = lambda pid, tid: 'S'\n"
        "try:\n with ptrace.stopped(int(sys.argv[1])): pass\n"
        "except ptrace.Refused as error: print(error.message)"
    )
    with running(program, "uninterruptible") as process:
        wait_for(lambda: state(process.pid) == "D", "vfork to wait")
        result = subprocess.run(
            [sys.executable, "-c", hidden, str(process.pid)],
            capture_output=True,
            text=True,
            check=True,
            cwd=PROJECT,
        )
        assert result.stdout == f"PID {process.pid} {NOT_RUNNING_MESSAGE}\n"
        assert tracer(process.pid) == 0, "the death of who seized it has let it go"
        (child,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        os.kill(child, signal.SIGKILL)
        assert process.wait() == 0


def test_process_that_does_not_run_during_an_injected_call_keeps_its_registers(program: str) -> None:
    """The process is stopped with our registers, and then does not run for a long time."""
    with running(program, "read") as process:
        for _ in range(3):
            with frozen(process.pid) as group:
                result = entered(process.pid)
                assert result.why == f"PID {process.pid} {NOT_RUNNING_MESSAGE}"
                assert "cgroup.freeze" in result.hint
                assert "frozen 1" in (group / "cgroup.events").read_text()
        assert tracer(process.pid) == 0
        assert UFFD not in list_descriptors(process.pid)
        assert output_after(process, "z\n") == f"read {ord('z')}"


def test_helper_that_injects_calls_is_not_ended_by_a_signal(program: str) -> None:
    """systemd sends the signal to all processes of a unit.

    The group is frozen, so that the helper stays in its call.
    """
    with running(program, "read") as process:
        with frozen(process.pid):
            results: list[OrderResult] = []
            asking = threading.Thread(target=lambda: results.append(entered(process.pid)))
            asking.start()
            wait_for(lambda: bool(tracer(process.pid)) and blocks_all(process.pid), "it to be in the call")
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                os.kill(tracer(process.pid), number)
            asking.join()
            assert results[0].why == f"PID {process.pid} {NOT_RUNNING_MESSAGE}"
        assert output_after(process, "z\n") == f"read {ord('z')}"


def blocks_all(pid: int) -> bool:
    return "SigBlk:\tfffffffffffbfeff" in Path(f"/proc/{pid}/status").read_text()


def test_descriptor_replaced_by_another_thread_is_left_alone(tmp_path: Path) -> None:
    """The other thread replaces our descriptor between the call that creates it and the one that closes it."""
    os.mkfifo(tmp_path / "fifo")
    redirects = (
        "import os, sys, threading\n"
        "fifo = os.open(sys.argv[1], os.O_RDWR)\n"
        "def redirect(): os.read(fifo, 1); os.dup2(0, fifo + 1)\n"
        "threading.Thread(target=redirect, daemon=True).start()\n"
        "print('ready', flush=True)\n"
        "threading.Event().wait()\n"
    )
    enters = (
        "import os, sys\nfrom crckpt.errors import HostCannot\nfrom crckpt.host.proc import identify\n"
        "from crckpt.helper.calls import taken_userfaultfd\n"
        "pid, fifo = int(sys.argv[1]), sys.argv[2]\nreal = taken_userfaultfd.borrow\n"
        "def late(pid, descriptor):\n"
        "    with open(fifo, 'wb') as file: file.write(b'.')\n"
        "    while 'userfaultfd' in os.readlink(f'/proc/{pid}/fd/{descriptor}'): pass\n"
        "    return real(pid, descriptor)\n"
        "taken_userfaultfd.borrow = late\n"
        "try: taken_userfaultfd.take_one(identify(pid))\n"
        "except HostCannot as error: print(error.message)"
    )
    with running(sys.executable, "-c", redirects, str(tmp_path / "fifo")) as process:
        result = subprocess.run(
            [sys.executable, "-c", enters, str(process.pid), str(tmp_path / "fifo")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout == "another thread has taken the number of crckpt's descriptor\n"
        files = Path(f"/proc/{process.pid}/fd")
        assert (files / "4").readlink() == (files / "0").readlink()


def test_process_without_its_main_thread_is_refused(program: str) -> None:
    with running(program, "leaderless") as process:
        wait_for(lambda: state(process.pid) == "Z", "the main thread to exit")
        assert entered(process.pid).why == f"PID {process.pid}: the main thread has exited"


def test_process_with_a_full_descriptor_table_is_reported(program: str) -> None:
    with running(program, "read") as process:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, 3))
        result = entered(process.pid)
        assert result.why == "it has no free file descriptor (RLIMIT_NOFILE)"
        assert output_after(process, "w\n") == f"read {ord('w')}"


def test_program_with_syscall_user_dispatch_is_left_alone(program: str) -> None:
    with running(program, "dispatch") as process:
        assert "PR_SET_SYSCALL_USER_DISPATCH" in entered(process.pid).why
        assert tracer(process.pid) == 0
        assert process.poll() is None


def test_several_processes_are_entered_with_one_answer_each(program: str) -> None:
    with running(program, "read") as first, running(program, "read") as second:
        results = take_userfaultfds([first.pid, 2**22 - 1, second.pid])
        assert [answer.pid for answer in results] == [first.pid, 2**22 - 1, second.pid]
        assert [answer.descriptor >= 0 for answer in results] == [True, False, True]
        assert results[1].why == f"there is no process {2**22 - 1}"
        for answer in results:
            if answer.descriptor >= 0:
                os.close(answer.descriptor)
        assert output_after(second, "v\n") == f"read {ord('v')}"
