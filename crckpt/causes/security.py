"""Privileges, seccomp, security modules. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

SECURITY = (
    Cause(
        "no-privileges",
        "CRIU lacks privileges",
        "run crckpt as root",
        "CRIU needs to have the CAP_SYS_ADMIN|Running as non-root requires|You need to be root to run this command",
        "criu/cr-check.c",
    ),
    Cause(
        "criu-unsafe",
        "programs can take control of the code that CRIU {version} runs in them (CVE-2026-18107), and this one is not "
        "root's",
        "crckpt install-criu (4.2.1 or newer); or: apt-get install gcc libc6-dev, then install crckpt again",
    ),
    Cause(
        "seccomp-filter",
        "the seccomp filters of the tree cannot be read",
        "run crckpt as root outside of any container (CAP_SYS_ADMIN, and no seccomp filter)",
        "Can't fetch (?:filter|seccomp metadata) on tid_real|Can't collect filter on|Can't (?:find"
        "|create) entry on tid_real|Dumping seccomp filters not supported",
        "criu/seccomp.c",
    ),
    Cause(
        "seccomp-unsupported",
        "this CRIU is too old to save seccomp filters",
        "use CRIU 1.8 or later: crckpt install-criu",
        "SECCOMP_MODE_FILTER not currently supported",
        "criu 1.7, proc_parse.c",
        fixed=(1, 8),
    ),
    Cause(
        "seccomp-suspend",
        "CRIU cannot suspend the program's seccomp filter for the dump",
        # What PTRACE_O_SUSPEND_SECCOMP needs (ptrace(2)).
        "run crckpt as root outside of any container (CAP_SYS_ADMIN, and no seccomp filter), on Linux 4.3 or newer; "
        "or start the program without a filter: docker run --security-opt seccomp=unconfined",
        "suspending seccomp failed|failed to suspend seccomp|PTRACE_O_SUSPEND_SECCOMP",
        "compel/src/lib/ptrace.c",
    ),
    Cause(
        "seccomp-again",
        "a seccomp filter of the tree cannot be restored",
        "restore as root, on a kernel with CONFIG_SECCOMP_FILTER",
        "seccomp: (?:PR_SET_SECCOMP|SECCOMP_SET_MODE_FILTER|SECCOMP_MODE_STRICT) returned"
        "|seccomp: Unknown seccomp mode"
        r"|sys_seccomp\(\) returned|prctl\(PR_SET_SECCOMP, \S+ returned",
        "criu/pie/restorer.c",
    ),
    Cause(
        "capabilities",
        "the tree had capabilities that cannot be set on this host",
        "restore as root; in a container give it the capabilities of the program (CAP_SETPCAP)",
        r"Unable to drop capability \d+: |Unable to restore capabilities|Unable to raise ambient capability",
        "criu/pie/restorer.c",
    ),
    Cause(
        "users",
        "the user or groups of the program cannot be set on this host",
        "restore as root, in a user namespace that has these IDs",
        r"Can't setgroups\(|Unable to set (?:real, effective and saved|fsuid|fsgid|PR_SET_SECUREBITS"
        "|SECURE_NO_SETUID_FIXUP)",
        "criu/pie/restorer.c",
    ),
    Cause(
        "security-profile",
        "the program's AppArmor or SELinux profile cannot be set",
        "load that profile on this host; or choose another one with criu: --lsm-profile TYPE:NAME",
        "can't write lsm profile|couldn't write policy for|apparmor parsing failed|write AA policy .+ failed"
        "|failed to write policy in AA namespace|write AA policy failed|failed to restore aa namespace"
        "|AA (?:policy|namespace)|aa policy|(?:scanning|requesting) aa |apparmor load file",
        "criu/pie/restorer.c",
    ),
    Cause(
        "security-label",
        "CRIU cannot read the security label of the program (AppArmor, SELinux)",
        "test it: cat /proc/PID/attr/current; a BPF program of a security module may forbid it",
        "err scanfing|Can't read LSM|failed to read apparmor",
        "criu/lsm.c",
    ),
    Cause(
        "selinux-context",
        "this CRIU cannot save a program that SELinux confines",
        "install a newer CRIU: crckpt install-criu",
        "Non unconfined selinux contexts not supported",
        "criu/lsm.c",
    ),
    Cause(
        "kernel-newer",
        "this CRIU is too old for the kernel, which has more capabilities than it knows",
        "crckpt install-criu",
        "Kernel reports more capabilities than this CRIU",
        "criu/kerndat.c",
    ),
    Cause(
        "security-module",
        "the tree ran under a security module that this kernel does not have, or that CRIU 3.0 to 3.2 did not see",
        "boot with it (security=apparmor, or selinux=1), or dump the tree unconfined; instead of CRIU 3.0 to"
        " 3.2 use a newer one: crckpt install-criu",
        "LSM specified but (?:apparmor|selinux) not supported by kernel|mismatched lsm types",
        "criu/lsm.c",
    ),
    Cause(
        "selinux-label",
        "SELinux does not let CRIU set the label of a socket",
        "find what it forbids: ausearch -m avc -ts recent; then allow it for criu",
        r"SELinux socket context|socket SELinux context|Reading xattr security\.selinux"
        "|getting selinux profile failed|Invalid selinux context|Getting SELinux context for PID",
        "criu/lsm.c",
    ),
    Cause(
        "transport-refused",
        "a security module (SELinux, AppArmor) forbids the program to talk to CRIU",
        "find the denial: ausearch -m avc -ts recent, or journalctl -k -g DENIED; then allow it, or use a CRIU built"
        " with SELinux",
        "Unable to connect a transport socket: (?:Permission denied|Operation not permitted)",
        "compel/src/lib/infect.c",
        sure=False,
    ),
)
