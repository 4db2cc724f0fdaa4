"""The environment variables and files that crckpt reads, for the man pages and the documents."""

from __future__ import annotations

from typing import Final

VARIABLES: Final = (
    ("CRCKPT_STORE", "The store, as `--store`. It wins over the configuration file."),
    ("CRCKPT_CONFIG", "The configuration file, as `--config`."),
    ("CRCKPT_CRIU", "The CRIU to try first, after `--criu` and before the configuration file."),
    ("PATH", "Without a CRIU of these, crckpt looks for `criu` here, then in `/usr/local/lib/crckpt/criu`."),
    ("XDG_DATA_HOME", "Other users than root: the store is `crckpt` in it. Default: `~/.local/share`."),
    ("XDG_CONFIG_HOME", "Other users than root: the configuration is `crckpt.yaml` in it. Default: `~/.config`."),
    ("XDG_CACHE_HOME", "Other users than root: which CRIU works is remembered in it. Default: `~/.cache`."),
    ("XDG_RUNTIME_DIR", "Other users than root: sockets of trackers are in it. Default: `/tmp`."),
    ("SSH_CONNECTION", "The ends of the ssh connection: neither can move with a program (`--move-ip`)."),
    ("COLUMNS", "The width of help and of `crckpt list`, in place of the terminal's."),
    ("NO_COLOR", "If it is set, output has no colours, and help no bold words. `TERM=dumb` does the same for help."),
)
"""Each with its meaning in Markdown."""

FILES: Final = (
    ("/etc/crckpt.yaml", "The configuration. For other users than root: `~/.config/crckpt.yaml`."),
    ("/var/lib/crckpt", "The store. For other users than root: `~/.local/share/crckpt`."),
    ("/usr/local/lib/crckpt/criu", "A CRIU for crckpt alone, where `PATH` has none that works."),
    ("/var/cache/crckpt/criu.json", "Which CRIU works on this kernel. May be deleted."),
    ("/run/crckpt", "Sockets of trackers and of new terminals, and which trees are tracked."),
    ("/var/log/crckpt/JOB.log", "What a program writes to its new terminal. From 10 MiB on it becomes `JOB.log.1`."),
)
