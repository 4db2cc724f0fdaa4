"""All attributes of processes and threads: how a dump reads each one, how a restore sets it, and what tests that."""

from __future__ import annotations

from typing import Final, NamedTuple


class Coverage(NamedTuple):
    """One attribute, `of` each thread or of the process as a whole (`!`: it protects).

    - `read`: how a dump reads it: `outside` (from /proc or by a system call on its id), `asked` (crckpt makes the
      process call the kernel), by `CRIU`, or `not`
    - `back`: how a restore sets it: `outside` (by its id), `inside` (a system call in the process), `CRIU`, or `not`
    - `test`: its name in tests/programs/attributes.py; empty if a test is impossible or elsewhere
    - `note`: why something is not done
    """

    name: str
    of: str
    read: str
    back: str
    test: str
    title: str
    note: str = ""


_TABLE: Final = """
# name              of       read    back    test            title
affinity            thread   outside outside affinity        the CPU affinity
io_priority         thread   outside outside ioprio          the I/O priority
time_slice          thread   outside outside slice           the time slice
utilization         thread   outside outside -               the utilization clamp
deadline            thread   outside outside deadline        the deadline scheduling
# After the policy: the kernel gives threads with a real-time policy no slack.
timer_slack         thread   outside outside timer_slack     the timer slack
personality         thread   outside inside  personality     the personality
memory_errors       thread   outside inside  mce_kill        the policy for memory errors
io_flusher          thread   outside inside  -               the mark of an I/O flusher
memory_policy       thread   outside inside  -               the memory policy
directories         thread!  outside inside  -               its own working directory, root and umask
login_uid           thread!  outside inside  -               the login user for the audit log
core_filter         process  outside outside coredump_filter the core dump filter
autogroup_nice      process  outside outside autogroup       the autogroup's nice value
memory_merge        process  outside inside  memory_merge    the merging of memory
segments            process  asked   inside  -               the segments of its own (modify_ldt)
lock_future         process  asked   inside  mlock_future    the locking of new maps
no_written_code     process! asked   inside  mdwe            the refusal of writable code (PR_SET_MDWE)
landlock            process! asked   not     landlock        the Landlock domain
session_keyring     process! asked   not     session_keyring the session keyring
# From here on: what CRIU saves and sets itself, as tests check, and what neither does.
nice                thread   CRIU    CRIU    nice            the nice value
policy              thread   CRIU    CRIU    policy          the scheduling policy
reset_on_fork       thread   CRIU    CRIU    reset_on_fork   the reset of the policy on fork
oom_score_adj       process  CRIU    CRIU    oom_score_adj   the OOM score adjustment
subreaper           process  CRIU    CRIU    subreaper       the mark of a subreaper
thp_disable         process  CRIU    CRIU    thp_disable     the refusal of huge pages
rlimits             process  CRIU    CRIU    rlimits         the resource limits
umask               process  CRIU    CRIU    umask           the umask
dumpable            process! CRIU    CRIU    dumpable        the dumpable flag
no_new_privs        thread!  CRIU    CRIU    no_new_privs    no_new_privs
securebits          thread!  CRIU    CRIU    securebits      the securebits
bounding_set        thread!  CRIU    CRIU    bounding_set    the capability sets
groups              thread!  CRIU    CRIU    groups          the supplementary groups
seccomp             thread!  CRIU    CRIU    seccomp         the system call filters
thp_except_advised  process  not     not     -               huge pages where advised, and only there
cpuid               thread   not     not     -               the fault on CPUID
tsc                 thread   not     not     -               the fault on RDTSC (PR_SET_TSC)
speculation         thread   not     not     -               the control of speculation
dispatch            thread   not     not     -               the dispatch of own system calls
keyrings            thread   not     not     -               keys in thread, process and session keyrings
"""
_NOTES: Final = {
    "utilization": "tested only on a kernel with CONFIG_UCLAMP_TASK",
    "io_flusher": "needs CAP_SYS_RESOURCE",
    "memory_policy": "read on hosts with several NUMA nodes only; the policies of single maps (mbind) are lost",
    "directories": "tested by test_kept_state.py; threads that share them with each other, but not with the first "
    "thread, each get their own",
    "login_uid": "tested by test_login_users.py; the audit session gets another number",
    "segments": "tested by test_kept_state.py",
    "landlock": "the kernel says that there is one, but not its rules; asked of the first thread",
    "session_keyring": "the tree gets the keyring of the restoring crckpt, or a new one for another user; keys are "
    "lost",
    "thp_except_advised": "CRIU refuses them everywhere after the restore",
    "speculation": "not set by any test host",
    **dict.fromkeys(("cpuid", "tsc", "dispatch", "keyrings"), "the kernel shows it only to the thread itself"),
}


def _read_row(row: str) -> Coverage:
    name, of, read, back, test, title = row.split(maxsplit=5)
    return Coverage(name, of, read, back, test.strip("-"), title, _NOTES.get(name, ""))


COVERAGE: Final = tuple(_read_row(row) for row in _TABLE.strip().splitlines() if not row.startswith("#"))
