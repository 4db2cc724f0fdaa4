"""Images, plugins, servers and options. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

IMAGES = (
    Cause(
        "plugin-missing",
        "the checkpoint was made with the CRIU plugin {name}",
        "install it, and pass its directory to criu: --libdir DIRECTORY",
        r"Missing required plugin: (?P<name>\S+)",
        "criu/image.c",
    ),
    Cause(
        "plugin-broken",
        "CRIU plugin {path|(not named)} does not load: {why|see the log}",
        "install what it needs, or remove it: ldd {path|PLUGIN}",
        r"Unable to load (?P<path>\S+): (?P<why>.*)|(?:Corrupted|Can't load) plugin ",
        "criu/plugin.c",
    ),
    Cause(
        "plugin-failed",
        "CRIU plugin {name} does not start",
        "check that its device and driver are present (GPU: nvidia-smi, rocm-smi), or remove it",
        r'Failed in init\(\d+\) of "(?P<name>.*)"',
        "criu/plugin.c",
    ),
    Cause(
        "uprobes-flag",
        "the checkpoint was made with --allow-uprobes",
        "restore with the same flag",
        "Dumped with --allow-uprobes",
        "criu/image.c",
    ),
    Cause(
        "images-version",
        "the images are of version {version}, which this CRIU does not know",
        "restore with the CRIU that made them, or a newer one: crckpt install-criu",
        r"Not supported images version (?P<version>\d+)",
        "criu/image.c",
    ),
    Cause(
        "images-old",
        "the images are too old for this CRIU",
        "restore with the CRIU that made them",
        "Too old image, no longer supported|Images c[ou]rrupted or too old criu was used",
        "criu/image.c",
    ),
    Cause(
        "image-kind",
        "{path} is not the kind of image that its name says",
        "check them: crckpt verify REF; or dump again",
        "[Mm]agic doesn't match for (?P<path>.+)",
        "criu/image.c",
        by_criu="take another copy of the images, or dump again",
    ),
    Cause(
        "image-unreadable",
        "image {path} cannot be opened",
        "check its directory, owner and mode (on NFS: no_root_squash): ls -l {path}",
        r"Unable to open (?P<path>\S+\.img)(?!: Read-only)",
        "criu/image.c",
    ),
    Cause(
        "images-damaged",
        "the images are incomplete or damaged",
        "check them: crckpt verify REF; or restore an older checkpoint: crckpt restore REF --or-older",
        "Image corrupted on pid|[Ii]mage corruption|Failed unpacking object|Unexpected EOF on |Img trimmed"
        r"|Inconsistent sched params|Invalid timer (?:interval|value)|Pdeath signal is too big|Unknown image format"
        r"|Can't restore cur > max|Unknown (?:task state|state in code) \d|pstree item has (?:in|un)valid pid"
        r"|seccomp: (?:Corrupted filter|Unexpected position)|Corrupted pstree entry|Unexpected task \d+ in a tree"
        r"|No IDS for root task|No (?:rcv wscale|timestamp|unsq len) in the image|Missing pstree image"
        r"|Can't open core data for \d|Thread has optional fields present|Caps size mismatch"
        r"|Read \d+ bytes while \d+ expected from |Remap for non existing file"
        "|The image file was truncated|Core (?:task state|IDS|info) data missed|Corrupted (?:root cgset"
        "|TUN link entry|master peer|slave peer)|Can't find regfile for|No entry for reg-file-ID"
        "|Unexpected EOF$|Can't read core data|Bad number of sigactions in the image|VMA-s are not sorted",
        "criu/protobuf.c",
        by_criu="take another copy of the images, or dump again",
    ),
    Cause(
        "images-arch",
        "the images are of {machine|another kind of machine, or of a 32-bit program}",
        "restore on a machine like the one where they were made",
        "Core march mismatch",
        "criu/cr-restore.c",
    ),
    Cause(
        "images-directory",
        "the directory of the images cannot be entered",
        "use an existing one: --images-dir DIRECTORY",
        r"Couldn't open image dir|Can't open dir \S+: |Can't open images directory",
        "criu/crtools.c",
    ),
    Cause(
        "log-file",
        "the log {path} cannot be created",
        "check that its directory exists and is writable: ls -ld {path}",
        r"Can't create log file (?P<path>.+?)(?:: |$)",
        "criu/log.c",
    ),
    Cause(
        "pid-file",
        "CRIU cannot create the PID file {path|(not named)}",
        "remove the old one: rm {path|FILE}",
        "pidfile: Can't open (?P<path>.+): |Can't write pidfile|pidfile: Can't write",
        "criu/log.c",
    ),
    Cause(
        "page-server",
        "the page server does not answer",
        "check that it runs there and can be reached: criu page-server --port PORT",
        r"[Tt]he page server doesn't answer|Can't (?:connect to server|write to page server|send PSI \d+ to server)"
        "|Can't write pages to socket|Error reading data from page server|Remote side closed connection"
        "|A socket was closed unexpectedly"
        r"|Can't read pagemap from socket|async data from page server|page-xfer: .*\bsocket\b|Unable to spice data",
        "criu/page-xfer.c",
    ),
    Cause(
        "page-socket",
        "the socket to the page server is not a TCP connection",
        "pass a TCP connection, not a unix socket or a pair; or install a newer CRIU: crckpt install-criu",
        r"Unable to restore TCP_(?:CORK|NODELAY)",
        "criu/util.c",
    ),
    Cause(
        "server-port",
        "the {kind} server cannot listen on its port",
        "use a free one: --port PORT",
        r"Can't (?:bind|init|listen on) (?P<kind>\S+) server",
        "criu/util.c",
    ),
    Cause(
        "server-name",
        "{host} is not a known host",
        "give an address: --address IP",
        r"Failed to resolve hostname: (?P<host>\S+?)(?:: |$)",
        "criu/util.c",
    ),
    Cause(
        "server-address",
        "{address} is not an address",
        "use an IPv4 or IPv6 address: --address IP",
        r'Invalid server address "(?P<address>.*?)"',
        "criu/util.c",
    ),
    Cause(
        "tls",
        "the encrypted connection of CRIU fails",
        "check the certificates and names on both sides, or leave --tls out",
        "CRIU was built without TLS support|tls: .+|Invalid certificate",
        "criu/tls.c",
    ),
    Cause(
        "streamer",
        "the receiver of --stream is missing or has ended",
        "start it first: criu-image-streamer, or use crckpt",
        "Unable to connect to (?:image streamer|local) socket|Failed to communicate with the image streamer",
        "criu/img-streamer.c",
        by_criu="start it first: criu-image-streamer",
    ),
    Cause(
        "configuration",
        "criu's configuration file is invalid",
        "see man criu, or use no file: criu --no-default-config",
        "Unsupported configuration file format",
        "criu/config.c",
    ),
    Cause(
        "deprecated",
        "CRIU no longer does {what}",
        "allow it with criu: --deprecated",
        r"Deprecated functionality \((?P<what>.*)\) rejected",
        "criu/config.c",
    ),
    Cause(
        "criu-start",
        "CRIU does not start: {why}",
        "crckpt install-criu, or install what is missing",
        r"(?:error while loading shared libraries: |Can't exec criu swrk: |(?=version .GLIBC_[\d.]{1,9}. not found))"
        "(?!Operation not permitted)(?P<why>.+)",
        "criu",
    ),
    Cause(
        "criu-capabilities",
        "CRIU cannot be started: its file has capabilities that this container or user lacks",
        "add them: --cap-add CHECKPOINT_RESTORE --cap-add SYS_PTRACE --cap-add SETPCAP, or --privileged; see which:"
        " getcap $(which criu)",
        "Can't exec criu swrk: Operation not permitted",
        "criu",
    ),
    Cause(
        "client-gone",
        "the program that started this CRIU (a container engine, a library) has ended or closed the connection",
        "read the log of that program",
        "Can't (?:read|recv) request: (?!Interrupted)",
        "criu/cr-service.c",
        sure=False,
    ),
    Cause(
        "service-request",
        "criu's service refuses a request: {why|see the log}",
        "check the version of the client (a container engine, a library), and that the directory of the images exists",
        r"Neither images_dir_fd nor images_dir|images-dir or work-dir is required|No subdirs are allowed in log_file"
        r"|(?:inherit_fd|rst_sibling) is not allowed|Can't chdir to work_dir: (?P<why>.+)|(?-i:RPC error: )"
        r"|Can't (?:initialize service socket|listen for socket connections)|Failed unpacking request",
        "criu/cr-service.c",
    ),
    Cause(
        "arguments",
        "an option of criu is invalid",
        "read criu --help",
        "invalid argument for -|Unknown (?:cgroups mode|file validation method|FPU mode) "
        "|Invalid value for --network-lock|namespace flags confl?ict|Failed to (?:add veth pair|add skip-mnt)"
        "|Failed while parsing --|--restore-sibling only makes sense|Unable to parse value of --"
        "|only valid on restore"
        "|criu: (?:unrecognized|invalid) option|excessive parameters? for command|Error: (?:pid not specified"
        "|command is required|unknown command)|crtools.c:\\d{1,6}\\): (?:pid not specified|command is required"
        "|unknown (?:command|cpuinfo sub-command)|cpuinfo requires)|is available for the restore command only"
        "|--exec-cmd requires|cannot be used (?:together|with the)|is restore-only option|Cannot pre-dump with"
        "|invalid namespace type|join-ns pid namespace not|Conflicting flags: |Unsupported empty namespace"
        "|invalid argument \\S+ for --",
        "criu/config.c",
    ),
)
