"""Terminals and sessions. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

TERMINALS = (
    Cause(
        "shell-job",
        "the tree belongs to a session whose leader is outside the tree",
        "checkpoint the session leader, or start the program with setsid",
        r"is not a session leader\. Consider using --shell-job|Found dangling tty with sid",
        "criu/pstree.c",
    ),
    Cause(
        "terminal-outside",
        "the tree uses a terminal whose other side is outside the tree",
        "checkpoint the terminal's owner too (tmux, sshd), or redirect the program's input and output",
        "without correspond master|Only one slave external peer is allowed",
        "criu/tty.c",
    ),
    Cause(
        "terminal-current",
        "{process|a process of the tree} has opened /dev/tty: CRIU can save that only if no other process before it in "
        "the tree has this terminal open, and its session leader is in the foreground",
        "close /dev/tty in the program, or open the terminal by its own name (ttyname); in tmux or screen: use bash "
        "instead of dash",
        # CRIU looks for a pty of the same session, whose group is that of the session, in this process
        # (criu/tty.c:2274).
        "ctty inheritance detected",
        "criu/tty.c",
    ),
    Cause(
        "terminal-large",
        "CRIU cannot save {path|a terminal with a number over 1000}: it knows pseudo terminals up to number 1000",
        "end other programs with terminals, then start the program again",
        r"Index \d+ on (?:ptmx|pts) is too big",
        "criu/tty.c",
    ),
    Cause(
        "no-terminal",
        "the tree had a terminal, but CRIU has none, or it is not the terminal of CRIU's session",
        "restore it from a terminal, or on a new one: crckpt restore REF --tty new",
        "Don't have tty to inherit session from|Failed to set group .+ on .+: Inappropriate ioctl",
        "criu/tty.c",
        by_criu="--shell-job on dump and restore, from a terminal",
    ),
    Cause(
        "session-missing",
        "the checkpoint has a terminal of session {session}, but not the leader of that session",
        "restore it from a terminal, or on a new one: crckpt restore REF --tty new",
        r"No task found with sid (?P<session>\d+)",
        "criu/tty.c",
        by_criu="--shell-job on dump and restore, from a terminal",
    ),
    Cause(
        "terminal-number",
        "CRIU cannot open terminal /dev/pts/{index}: another program uses it, or more than 31 lower numbers are free",
        "find that program: fuser -v /dev/pts/{index} (package psmisc); then end it; with criu, if there is none, open "
        "lower terminals before, and close them afterwards",
        r"Unable to open \S+ with specified index (?P<index>\d+)",
        "criu/tty.c",
    ),
    Cause(
        "terminal-polled",
        "the program waits for its terminal with an epoll, which takes no file and not /dev/null",
        "give it a new terminal: --tty new",
    ),
    Cause(
        "terminal-taken",
        "another program uses terminal /dev/pts/{index}",
        "find it: fuser -v /dev/pts/{index} (package psmisc); then end it",
    ),
    Cause(
        "terminal-queue",
        "a terminal has more unread input than CRIU can save",
        "wait until the program has read it, then try again",
        r"queued data overr?flow \d+ bytes limit",
        "criu/tty.c",
    ),
    Cause(
        "terminal-kind",
        "CRIU does not know this kind of terminal (serial line, virtual console)",
        "redirect the program's input and output",
        "Unable to find a tty driver",
        "criu/tty.c",
    ),
    Cause(
        "terminal-master",
        "CRIU cannot find the other side of a terminal",
        "checkpoint its owner too, or with criu: --external tty[RDEV:DEV]",
        "Unable to find a master for |The master for .+ isn't from the root mntns|Can't open (?:slave"
        "|master) pty|Can't open slave tty",
        "criu/tty.c",
    ),
    Cause(
        "terminal-again",
        "CRIU cannot restore a terminal of the tree",
        "restore it from a terminal, or on a new one: crckpt restore REF --tty new",
        "Can't open tty |Can't set sid on terminal|Can't set tty params|Unable to (?:un)?lock pty"
        "|Can't get tty (?:locked |window )?params",
        "criu/tty.c",
        sure=False,
        by_criu="--shell-job on dump and restore, from a terminal",
    ),
    Cause(
        "terminal",
        "the tree was started from a terminal and needs one",
        "restore it from a terminal, without --detach; or give it a new terminal: crckpt restore REF --tty new",
    ),
    Cause(
        "terminal-not-controlling",
        "the program did not get the new terminal as its controlling terminal: {why}",
        "^C does nothing there; end the program with kill",
    ),
    Cause(
        "terminal-not-attachable",
        "nothing can attach to the new terminal: {why}",
        "its output is in {log}",
    ),
    Cause(
        # With TIOCSTI, which some kernels allow (ioctl_tty(2)).
        "terminal-of-another",
        "the tree runs as user {user} and needs a terminal, but this terminal belongs to user {owner}: the program "
        "could type commands into it",
        "restore it on a new terminal: crckpt restore REF --tty new; or from a terminal of user {user}",
    ),
    Cause(
        "console-of-another",
        "the tree runs as user {user} and has {path} open, which belongs to user {owner} now: the program could read "
        "what is typed there, or type there",
        "log in there as user {user}, or allow it: --allow-weaker",
    ),
    Cause(
        "terminal-group-outside",
        "the first process of the tree has a terminal but does not lead a process group: CRIU cannot restore that in "
        "a new PID namespace",
        "restore it without --new-pid-namespace",
    ),
    Cause(
        "session-left-outside",
        "the program joins the session of its new terminal, which is led from outside the new PID namespace: it cannot "
        "be checkpointed again while it runs there",
        "restore it without --new-pid-namespace once its PIDs are free",
    ),
)
