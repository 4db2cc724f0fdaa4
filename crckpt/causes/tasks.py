"""Processes and threads: roots, tracers, freezing, attributes, PIDs in use. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

TASKS = (
    Cause(
        "job-shared",
        "the last checkpoint of the job {job}, {checkpoint}, is of another process, PID {pid}; crckpt restore {job} "
        "brings back only the process that was dumped last",
        "name a job for each process: crckpt dump {target} NAME",
    ),
    Cause(
        "inside",
        "crckpt itself runs in the tree and would freeze itself",
        "start crckpt from another terminal, or with setsid --fork",
        "The criu itself is within dumped tree",
        "compel/src/lib/infect.c",
        by_criu="start criu from another terminal, or with setsid --fork",
    ),
    Cause(
        "cannot-stop",
        "process {pid} (state {state}) cannot be stopped",
        "examine it: cat /proc/{pid}/status /proc/{pid}/stack",
        r"Unseizable non-zombie (?P<pid>\d+) found, state (?P<state>\S)",
        "compel/src/lib/infect.c",
    ),
    Cause(
        "attach-refused",
        "CRIU cannot attach to process {pid|(not named)}: {why|see the log}",
        "end its tracer (gdb, strace); check what forbids it: sysctl kernel.yama.ptrace_scope, journalctl -k -g denied",
        r"Can't (?:attach to|interrupt the|seize) (?P<pid>\d+)(?: task)?: (?P<why>(?!No such process).+)"
        "|Can't (?:interrupt task|attach to init): (?!No such process)",
        "compel/src/lib/infect.c",
        sure=False,
    ),
    Cause(
        "code-refused",
        "a security policy or this kernel forbids CRIU to run its code in the program, or CRIU is a 32-bit"
        " program on a 64-bit kernel",
        "check what forbids it: journalctl -k -g denied, sysctl vm.overcommit_memory; then try again",
        "compel_syscall for mprotect failed|remote_mprotect failed|Can't inject (?:syscall blob|memfd args)"
        "|Can't create memfd in victim|Can't (?:rmap|lmap) memfd",
        "compel/src/lib/infect.c",
        sure=False,
    ),
    Cause(
        "code-interrupted",
        "process {pid} got a signal, or crashed, while CRIU ran its code in it",
        "try again; if it fails again, install a newer CRIU: crckpt install-criu, and check what else traces or"
        " protects the process: journalctl -k -n 50",
        r"Unexpected (?P<pid>\d+) task interruption",
        "compel/src/lib/infect.c",
        sure=False,
    ),
    Cause(
        "prctl-refused",
        "the kernel forbids CRIU to set an attribute of a process (prctl)",
        "restore as root, with CAP_SYS_RESOURCE and CAP_CHECKPOINT_RESTORE, on kernel 5.9 or newer",
        r"prctl failed @\d+|Unable to set (?:no_new_privs|PR_SET_(?!SECUREBITS)\w+: -\d)|Can't drop the dumpable",
        "criu/pie/restorer.c",
        sure=False,
    ),
    Cause(
        "freezer-state",
        "the freezer of the tree's cgroup is in a state that CRIU does not know",
        "thaw it and try again: echo 0 > /sys/fs/cgroup/GROUP/cgroup.freeze",
        "Unable to (?:freeze|thaw) tasks|Unknown freezer state|incompatible with the freezer",
        "criu/seize.c",
        sure=False,
    ),
    Cause(
        "ended-restored",
        "process {pid} ended as soon as it ran again",
        "check whether it was killed or crashed: journalctl -k -n 50; restore with the CRIU of the dump or a newer one",
        r"Unable to detach (?P<pid>\d+): No such process",
        "criu/cr-restore.c",
        sure=False,
    ),
    Cause(
        "limits-refused",
        "CRIU is not allowed to read the limits of a process of another user (prlimit): that needs CAP_SYS_RESOURCE",
        "run crckpt as root with that capability; in a container: --cap-add SYS_RESOURCE",
        r"Can't get rlimit \d+: (?:Operation not permitted|Permission denied)",
        "criu/cr-dump.c",
        by_criu="run criu as root with that capability; in a container: --cap-add SYS_RESOURCE",
    ),
    Cause(
        "registers",
        "this CRIU is too old for this CPU or kernel: it does not know the format of a thread's registers",
        "crckpt install-criu",
        r"(?!.*No such process)(?:Failed to (?:obtain|set) (?:CPU|FPU) registers|Couldn't (?:get|set) .{0,60}"
        r"(?:registers|storage|VXRS|GS_|RI_|TM)|Can't (?:obtain|set|restore) (?:registers|regs) (?:\(pid|for \d)"
        r"|get_thread_area failed|Can't get CS register|RI bit)|Can't (?:obtain|set) FPU registers"
        r"|PTRACE_GETREGSET (?:failed|read)|Can't set xstate"
        r"|reported \d+ bytes \(expecting|Can't get thread area",
        "compel/arch/x86/src/lib/infect.c",
        sure=False,
    ),
    Cause(
        "pid-reused",
        "during the freeze a process ended and another one got its PID",
        "try again; if processes start and end all the time, freeze a cgroup with criu: --freeze-cgroup",
        "Task pid reused while suspending",
        "compel/src/lib/infect.c",
    ),
    Cause(
        "not-stopped",
        "process {pid} still runs after it was stopped",
        "try again; check whether another program traces it: grep TracerPid /proc/{pid}/status",
        r"SEIZE (?P<pid>\d+): (?:task not stopped after seize|can't wait task|can't read signfo"
        "|can't parse stopped siginfo)",
        "compel/src/lib/infect.c",
    ),
    Cause(
        "breakpoint",
        "thread {tid} is at a breakpoint of a debugger (SIGTRAP)",
        "continue it in the debugger, or detach first",
        r"Can't dump the (?P<tid>\d+) thread with a pending SIGTRAP",
        "compel/src/lib/infect.c",
    ),
    Cause(
        "stop-signal",
        "process {pid} was stopped by signal {signal}, which CRIU does not expect",
        "continue it: kill -CONT {pid}",
        r"SEIZE (?P<pid>\d+): unsupported stop signal (?P<signal>\d+)",
        "compel/src/lib/infect.c",
    ),
    Cause(
        "freeze-timeout",
        "a thread of the tree did not stop within the time limit (it is in uninterruptible sleep, or new processes "
        "start all the time)",
        "see which: ps -e -o pid,stat,wchan,comm | grep ' D', then try again",
        r"Timeout reached\. Try to interrupt",
        "criu/cr-dump.c",
    ),
    Cause(
        "unanswered",
        "crckpt did not answer while the tree was frozen: crckpt was stopped, or this host is overloaded",
        "find what stops crckpt (^Z, SIGSTOP, a debugger, a frozen control group), then try again",
        "crckpt's (?:preload: no answer while the tree was frozen|hold: no answer while CRIU waited at post-dump)",
        "crckpt/tracking/preload/gate.c, crckpt/criu/hold.c",
    ),
    Cause(
        "unanswered-before",
        "crckpt did not answer CRIU before the freeze: crckpt was stopped, or this host is overloaded",
        "find what stops crckpt (^Z, SIGSTOP, a debugger, a frozen control group), then try again",
        "crckpt's hold: no answer while CRIU waited at pre-dump",
        "crckpt/criu/hold.c",
    ),
    Cause(
        "unanswered-built",
        "crckpt did not answer CRIU after CRIU had built the tree: crckpt was stopped, or this host is overloaded",
        "find what stops crckpt (SIGSTOP, a debugger, a frozen control group), then try again",
        "crckpt's hold: no answer while CRIU waited at post-restore",
        "crckpt/criu/hold.c",
    ),
    Cause(
        "thread-leader-gone",
        "the main thread of a process of the tree has ended while other threads run",
        "wait until the process has ended, or change the program",
        "Zombie thread not supported|Zombies with threads are not supported|Individually stopped threads",
        "criu/seize.c",
    ),
    Cause(
        "target-ended",
        "the program ended during the freeze",
        "check whether it still runs",
        "A root task is dead",
        "criu/cr-dump.c",
    ),
    Cause(
        "freezer-path",
        "the directory of --freeze-cgroup is not a cgroup",
        "find the program's cgroup: cat /proc/PID/cgroup",
        "Neither a cgroupv1 .* control file found",
        "criu/seize.c",
    ),
    Cause(
        "freezer",
        "cgroup {path} does not freeze",
        "see which thread does not stop: ps -e -o pid,stat,wchan,comm; then try again with more time: --timeout "
        "SECONDS with criu",
        r"Unable to freeze cgroup (?P<path>\S+)",
        "criu/seize.c",
    ),
    Cause(
        "bits",
        "process {pid|(not named)} is a 32-bit program, which this CRIU cannot save",
        "use a 64-bit build of the program, or a CRIU built with CONFIG_COMPAT",
        r"Can't dump task (?P<pid>\d+) running in 32-bit mode|Pid \d+ is \S+ bit: Only 64 bit tasks",
        "compel/arch/x86/src/lib/infect.c",
    ),
    Cause(
        "segments",
        "process {pid} has its own segment descriptors (LDT), like Wine and old emulators",
        "run it in a virtual machine, and checkpoint that",
        r"Can't dump task (?P<pid>\d+) with LDT descriptors",
        "compel/arch/x86/src/lib/infect.c",
    ),
    Cause(
        "rseq",
        "process {pid|(not named)} uses restartable sequences, which this kernel does not report to CRIU",
        # PTRACE_GET_RSEQ_CONFIGURATION is of Linux 5.13 (ptrace(2)).
        "start it with GLIBC_TUNABLES=glibc.pthread.rseq=0, or boot a kernel of 5.13 or newer",
        r"\b(?P<pid>\d+) has rseq but kernel lacks get_rseq_conf|fail to read rseq|PTRACE_GET_RSEQ_CONFIGURATION, \d"
        r"|[Ff]ixup rseq for \d",
        "criu/cr-dump.c",
    ),
    Cause(
        "rseq-again",
        "the restartable sequences of the tree cannot be set up on this kernel",
        "boot a kernel with CONFIG_RSEQ, of the same version as at the dump",
        r"rseq: can't restore as kernel doesn't support it|unsupported RSEQ ABI version|failed sys_rseq\(",
        "criu/cr-restore.c",
    ),
    Cause(
        "groups",
        "{process|a process of the tree} is in more groups than CRIU can save",
        "run it in fewer groups: CRIU saves 973, and only if their list in /proc/PID/status is shorter than 4096 bytes",
        # The number that follows is no PID: CRIU writes how many groups there are (criu/pie/parasite.c:363).
        r"Too many groups in task \d+|Error parsing proc status file",
        "criu/pie/parasite.c",
    ),
    Cause(
        "timers",
        "POSIX timers of the tree cannot be saved or restored",
        "boot a kernel with CONFIG_CHECKPOINT_RESTORE",
        "Can't create (?:posix timer - |timers, kernel don't give)|Unexpected timer id"
        "|Have no NSpid support to dump notify thread|Parse error in posix timers proc file"
        "|Can't restore posix timers",
        "criu/pie/restorer.c",
    ),
    Cause(
        "login-uid",
        "the login user of a process cannot be set",
        "restore as root (CAP_AUDIT_CONTROL)",
        r"Setting loginuid for (?:\d+|CT init) task failed",
        "criu/cr-restore.c",
    ),
    Cause(
        "oom-score",
        "a process cannot get its old OOM score adjustment",
        "restore as root (CAP_SYS_RESOURCE)",
        r"Write \S+ to /proc/self/oom_score_adj failed",
        "criu/cr-restore.c",
    ),
    Cause("gone", "there is no process {pid}", "find its PID: pgrep -af NAME (package procps)"),
    Cause("ourselves", "process {pid} is crckpt itself", "name the program that you want to checkpoint"),
    Cause(
        "ancestor",
        "crckpt runs in the tree of process {pid} ({comm}) and would freeze itself",
        "start crckpt from another terminal, or put this before the command: setsid --fork",
    ),
    Cause(
        "kernel-thread",
        "process {pid} ({comm}) is a kernel thread",
        "name a program: only programs can be checkpointed",
    ),
    Cause(
        "init",
        "PID 1 is the init process of this system, which cannot be checkpointed",
        "name a program: its PID, or unit:NAME",
    ),
    Cause(
        "zombie",
        "process {pid} ({comm}) has ended (it is a zombie of process {ppid})",
        "nothing is left to save: name a program that runs",
    ),
    Cause(
        "traced",
        "process {pid} ({comm}) is traced by process {tracer} ({tracer_comm}), and only one process can trace at a "
        "time",
        "end the debugger or strace first: kill {tracer}",
    ),
    Cause(
        "traced-by-root",
        "process {pid} ({comm}) is traced by process {tracer} ({tracer_comm}), the root of the tree",
        "end the tracing in the program first, or checkpoint another program than a debugger",
    ),
    Cause(
        "being-dumped",
        "process {pid} ({comm}) is already being checkpointed or restored by process {tracer} (criu)",
        "try again when it has ended",
    ),
    Cause(
        "thread-apart",
        "thread {tid} of process {pid} ({comm}) has its own {what} (unshare(2), setns(2)), and CRIU saves only that of "
        "the first thread",
        "try again when the thread has ended or has come back (setns(2)); or let a process do its work",
    ),
    Cause(
        "cpu-clocks",
        "the CPU clocks of the program begin at 0 again: it had used {time} of CPU time (clock(3), getrusage(2), "
        "limits and timers of CPU time)",
        "",
    ),
    Cause(
        "wall-clock-timer",
        "process {pid} ({comm}) has a timer of the wall clock (timer_create with CLOCK_REALTIME); if the program set "
        "it to an absolute time, a restored one is late by the pause",
        "",
    ),
    Cause(
        "exit-signal",
        "process {pid} ({comm}) tells its parent by signal {signal} that it has ended (clone(2)); after a restore it "
        "does so by SIGCHLD, signal 17",
        "leave out --stop, so that the tree runs on; or end it anyway: --force",
    ),
    Cause(
        "frozen-group",
        "process {pid} is frozen by its control group ({group})",
        "thaw it: systemctl thaw, podman unpause, or: {thaw}",
    ),
    Cause(
        "foreign-limits",
        "process {pid} ({comm}) runs as user {uid}, but crckpt cannot read its limits without CAP_SYS_RESOURCE",
        "run crckpt with that capability (in a container: --cap-add SYS_RESOURCE)",
    ),
    Cause(
        "no-free-descriptor",
        "process {pid} ({comm}) has {used} descriptors open and may open {limit}; CRIU's code in it needs 4 more",
        "raise its limit: prlimit --pid {pid} --nofile={more}:{hard}",
    ),
    Cause(
        "no-free-address",
        "process {pid} ({comm}) has used up the address space that its limit allows (ulimit -v), and CRIU's code in it "
        "needs more",
        "raise its limit: prlimit --pid {pid} --as=unlimited:",
    ),
    Cause(
        "no-free-map",
        "process {pid} ({comm}) has {used} memory maps, and this kernel allows {limit}; CRIU's code in it needs 8 more",
        "raise the limit: sysctl -w vm.max_map_count={more}",
    ),
    Cause(
        "call-interrupted",
        "{call} of thread {tid} (PID {pid}) returns EINTR after the dump and after a restore",
        "",
    ),
    Cause(
        "call-interrupted-again",
        "a stop signal or a debugger interrupted the system call of thread {tid} (PID {pid}): it may return EINTR "
        "after the dump, and returns EINTR after a restore",
        "",
    ),
    Cause(
        "pid-taken",
        "{kind} {pid} is in use by {comm}{owner}",
        "end it (it may be the program itself, still running), wait for it, or use --new-pid-namespace",
    ),
    Cause(
        "pid-ours",
        "{kind} {pid}, which the tree needs, is that of this command by chance",
        "run it again: it gets another one",
    ),
    Cause(
        "pid-unreaped",
        "{kind} {pid} is in use by {comm}, a zombie of process {parent}",
        "{advice|end that process, which does not reap its children}, or use --new-pid-namespace",
    ),
    Cause(
        "stopped-job",
        "process {pid} ({comm}) was stopped when it was dumped, as by ^Z; restored with --detach it has no shell that "
        "could continue it, and the kernel ends it by SIGHUP",
        "restore it in a terminal without --detach, then type fg; or on a new terminal, where it runs: --tty new",
    ),
    Cause(
        "parent-death",
        "process {pid} no longer gets signal {signal} when its parent ends (PR_SET_PDEATHSIG): its parent is now "
        "an init",
        "",
    ),
    Cause(
        "root-ended",
        "the root, process {pid}, was restored and ended with status 0",
        "",
    ),
)
