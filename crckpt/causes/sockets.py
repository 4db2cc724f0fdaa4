"""Sockets and connections. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

SOCKETS = (
    Cause(
        "tcp-established",
        "the tree has an established TCP connection",
        "choose: --tcp keep or --tcp close",
        "Connected TCP socket, consider using|Connected TCP socket in image|Need to set the --tcp-close",
        "criu/sk-inet.c",
        by_criu="choose, on dump and restore: --tcp-established (keep it) or --tcp-close (close it)",
    ),
    Cause(
        "tcp-in-flight",
        "the program has not yet accepted a TCP connection",
        "try again in a moment, or leave it out: --skip-in-flight (a tree that runs on still gets the connection; a "
        "restored one does not, and with --stop the peer sees a reset)",
        r"In-flight connections? (?:\(l\) for|can be ignored)",
        "criu/sk-inet.c",
        by_criu="try again in a moment, or leave it out: --skip-in-flight",
    ),
    Cause(
        "protocol",
        "a socket uses IP protocol {number}, which CRIU cannot save (262 is MPTCP)",
        "for MPTCP in Go programs: GODEBUG=multipathtcp=0",
        r"Unsupported proto (?P<number>\d+)",
        "criu/sk-inet.c",
    ),
    Cause(
        "socket-family",
        "a socket of family {number} cannot be saved (40 vsock, 38 crypto, 29 CAN)",
        "close it in the program",
        r"Unknown socket collected \(family (?P<number>\d+)\)",
        "criu/sockets.c",
    ),
    Cause(
        "ping-socket",
        "the tree has a socket for pings (ICMP), which its group is not allowed to have on this host",
        "allow them: sysctl -w net.ipv4.ping_group_range='0 2147483647'; or restore with CAP_NET_RAW",
        r"Can't create inet socket: Permission denied",
        "criu/sk-inet.c",
    ),
    Cause(
        "raw-socket",
        "the tree has a raw or packet socket, which needs CAP_NET_RAW",
        "restore as root; in a container with --cap-add NET_RAW",
        r"Can't create (?:inet|packet) socket: Operation not permitted",
        "criu/sk-inet.c",
    ),
    Cause(
        "corked",
        "a UDP socket of the tree has unsent data (UDP_CORK)",
        "try again in a moment",
        "Can't dump corked dgram socket",
        "criu/sk-inet.c",
    ),
    Cause(
        "socket-program",
        "an extended BPF program filters a socket of the tree (SO_ATTACH_BPF), and CRIU cannot save it",
        "detach it in the program; a classic filter (SO_ATTACH_FILTER) is saved",
        "Can't get socket filter len: Permission denied",
        "criu/sockets.c",
    ),
    Cause(
        "socket-namespace",
        "a socket of the tree belongs to another network namespace than its process",
        "close it in the program, or open it in the namespace where the program runs",
        r"unix: Unix socket (?:0x)?[0-9a-f]+ not found",
        "criu/sk-unix.c",
    ),
    Cause(
        "socket-type",
        "an internet socket of type {type} cannot be saved",
        "close it in the program: CRIU knows stream, datagram and raw sockets",
        r"Can't dump (?P<type>\d+) inet socket",
        "criu/sk-inet.c",
    ),
    Cause(
        "tcp-state",
        "a TCP socket is in a state that CRIU does not know, or its state changed during the dump",
        "try again in a moment",
        r"Unknown inet socket \S+ state|Socket state \d+ obtained but expected|Wrong socket in listen state"
        "|on unconnected socket|returned from unconnected socket|Failed to obtain TCP_INFO",
        "criu/sk-inet.c",
    ),
    Cause(
        "no-nftables",
        "this CRIU was built without nftables",
        "install a CRIU with nftables: crckpt install-criu; with criu: --network-lock iptables",
        "CRIU was built without libnftables support",
        "criu/net.c",
    ),
    Cause(
        "packets-not-held",
        "packets cannot be blocked while CRIU saves TCP connections",
        "run crckpt as root (CAP_NET_ADMIN), with nf_tables (modprobe)",
        "Failed to lock TCP connection|Locking (?:network|connection) failed|Iptables configuration failed"
        "|(?:CHAIN|RULE)_[A-Z_]{1,20} failed|Unable to write iptables config"
        r"|ip6?tables-restore: line \d{1,4} failed|nable to initialize table"
        r"|an't initialize ip6?tables table|nftables: .*(?:failed|error)",
        "criu/net.c",
        by_criu="run criu as root (CAP_NET_ADMIN), with nf_tables (modprobe): --network-lock nftables",
    ),
    Cause(
        "tcp-repair",
        "the kernel refuses access to a TCP connection (TCP_REPAIR)",
        "run crckpt as root (CAP_NET_ADMIN); a connection with TLS in the kernel can only be closed: --tcp close",
        r"libsoccr_save\(\) failed|Unable to set TCP_REPAIR|Can't turn TCP repair mode ON",
        "criu/sk-tcp.c",
        by_criu="run criu as root (CAP_NET_ADMIN); a connection with TLS in the kernel can only be closed: --tcp-close",
    ),
    Cause(
        "firewall-drops",
        "the firewall of this host drops the packets with which CRIU rebuilds a half-closed TCP connection",
        # SOCCR_MARK (soccr/soccr.h:11).
        "allow outgoing packets with CRIU's mark 0xc114 (the rule KUBE-FIREWALL of Kubernetes drops mark 0x8000, "
        "which that includes); or drop the connections: --tcp close",
        r"Unable to send a fin packet.{0,120}Operation not permitted",
        "soccr/soccr.c",
        sure=False,
        by_criu="allow outgoing packets with CRIU's mark 0xc114 (the rule KUBE-FIREWALL of Kubernetes drops "
        "mark 0x8000, which that includes); or drop the connections: --tcp-close",
    ),
    Cause(
        "tcp-rebuild",
        "a kept TCP connection cannot be rebuilt on this host",
        "give its local address to an interface: ip addr add ADDRESS dev lo; check that nothing uses its port: ss -tan",
        "Can't connect inet socket back|Can't bind inet socket back: Invalid argument",
        "criu/sk-inet.c",
    ),
    Cause(
        "interface-missing",
        "the network interface of a socket is missing ({interface|its name is not known})",
        "create it again; list all: ip link",
        r"couldn't find ifindex for (?P<interface>\S+)|couldn't find ifname for \d"
        # SO_BINDTODEVICE of SOL_SOCKET.
        r"|Can't set 1:25 \(len \d+\): No such device",
        "criu/sk-inet.c",
    ),
    Cause(
        "packet-interface",
        "a packet socket cannot be bound to its network interface ({interface|its name is not known})",
        "create it again; list all: ip link",
        "Can't bind packet socket(?: to (?P<interface>[^:]+))?: ",
        "criu/sk-packet.c",
    ),
    Cause(
        "packet-multicast",
        "a packet socket listens to several hardware addresses",
        "close it in the program (packet capture)",
        "Multiple MC membership not supported|Unknown mc membership type|To big mcaddr",
        "criu/sk-packet.c",
    ),
    Cause(
        "packet-ring",
        "PID {pid} reads packets from memory that it shares with the kernel (PACKET_RX_RING), which a restore makes "
        "anew: the program then misses packets, or sees none",
        "leave out --stop, and start the program again instead of restoring it; or end it anyway: --force",
    ),
    Cause(
        "packet-details",
        "the kernel gives no details of a packet socket",
        "load the module: modprobe af_packet_diag; update libnl (before 3.2.25 it drops some answers of the kernel)",
        r"No packet sock (?:info|mclist) in nlm|Can't find packet socket \d",
        "criu/sk-packet.c",
    ),
    Cause(
        "socket-option",
        "socket option {level}:{option} cannot be read: this CRIU does not match this kernel",
        "crckpt install-criu",
        r"Can't get (?P<level>\d+):(?P<option>\d+) opt",
        "criu/sockets.c",
    ),
    Cause(
        "socket-option-again",
        "a socket option cannot be restored",
        "restore as root (CAP_NET_ADMIN)",
        r"Can't set (?!1:25 \(len \d+\): No such device)\d+:\d+ \(len \d+\)"
        "|Unable to set socket SO_SNDBUF|Can't restore filter",
        "criu/sockets.c",
    ),
    Cause(
        "socket-list",
        "the kernel does not list all its sockets (family {family})",
        "load the modules: modprobe -a inet_diag tcp_diag udp_diag raw_diag unix_diag netlink_diag af_packet_diag",
        r"Sockets \(family (?P<family>\d+),? proto \d+\) are not collected",
        "criu/sockets.c",
    ),
    Cause(
        "netns-socket",
        "a socket of the tree belongs to another network namespace",
        "close it, or start the program with no descriptors inherited from elsewhere",
        "Unable to dump a socket from an external network namespace",
        "criu/net.c",
    ),
    Cause(
        "unix-journal",
        "{socket} is connected to the journal of systemd, which is outside the tree",
        "let its unit write to a file: StandardOutput=append:/var/log/NAME.log and StandardError=inherit",
    ),
    Cause(
        "unix-outside",
        "{socket|a unix socket} is connected to a process outside the tree",
        "end the other process (a client, for example; ss -xp of package iproute2 shows it), or checkpoint the parent "
        "of both; of a service that writes to the journal of systemd: StandardOutput=append:/var/log/NAME.log",
        "External socket is used|Can't dump half of (?:a )?stream unix connection|name-less external socket"
        r"|Unix socket \S+ with(?:out| unreachable) peer",
        "criu/sk-unix.c",
    ),
    Cause(
        "in-message-descriptors",
        "a unix socket contains unread descriptors or credentials",
        "try again in a moment",
        "More than 1 SCM is not possible|Control messages in queue, not supported",
        "criu/sk-queue.c",
    ),
    Cause(
        "unix-type",
        "unix socket {inode} is of type {type}, which CRIU does not know",
        "close it in the program",
        r"Unsupported type \((?P<type>\d+)\) on socket (?P<inode>\d+)",
        "criu/sk-unix.c",
    ),
    Cause(
        "unix-in-flight",
        "the program has not yet accepted a connection to a unix socket",
        "try again in a moment",
        "In-flight connection on non-listening socket|Found a closed in-flight socket"
        "|Non-empty write queue on an in-flight socket|Dangling connection",
        "criu/sk-unix.c",
    ),
    Cause(
        "unix-flag",
        "the checkpoint has a unix socket that was connected to a process outside the tree",
        "use criu with the flag of the dump: --ext-unix-sk",
        "External socket found in image",
        "criu/sk-unix.c",
    ),
    Cause(
        "unix-removed",
        "a unix socket whose file was removed cannot be restored",
        "create its directory again, and make it writable",
        "ghost: (?:Can't|Too long name)",
        "criu/sk-unix.c",
    ),
    Cause(
        "unix-linked",
        "a symlink leads to the unix socket {path} now, and other users than root can change it",
        "put the directory back, or give the symlink and the directories above it to root: namei -l {path}",
        r"(?<!ghost: )Can't bind id \S+ ino \d+ addr (?P<path>.+): Too many levels of symbolic links",
        "criu/sk-unix.c",
    ),
    Cause(
        "unix-bind",
        "unix socket {path|(not named)} cannot be bound: {why|its name is in use}",
        "check that its directory exists and that its name is free: ls -l {path|FILE}; ss -xl (@NAME has no file)",
        r"(?<!ghost: )Can't bind id \S+ ino \d+ addr (?P<path>.+): (?!Too many levels)(?P<why>.+)"
        r"|unix: Can't bind (?!id \S).{0,200}Address already in use",
        "criu/sk-unix.c",
    ),
    Cause(
        "unix-connect",
        "a unix socket of the tree cannot find its peer",
        "start its server first, or checkpoint both together",
        r"Can't connect (?:0x)?[0-9a-f]{1,16} socket: |Peer (?:0x)?[0-9a-f]{1,16} unresolved for ",
        "criu/sk-unix.c",
    ),
    Cause(
        "unix-name",
        "CRIU cannot find the path of a unix socket, or cannot bind the socket to it again",
        "check that its directory exists and is writable; on kernels before 4.10 do not move the directory",
        "Can't resolve name for socket|Unable to resolve unix socket name|unix: Can't (?:readlink"
        "|change working dir)|Can't bind socket after move|couldn't move socket|Can't (?:stat|change) socket",
        "criu/sk-unix.c",
        sure=False,
    ),
    Cause(
        "unix-state",
        "this CRIU is too old for the kernel: it does not know the states of its unix sockets",
        "crckpt install-criu",
        "Non-stream socket .+ in established state"
        r"|Unknown state \d+ for unix socket",
        "criu/sk-unix.c",
    ),
    Cause(
        "netlink-data",
        "a netlink socket holds messages that the program has not read",
        "try again in a moment",
        "The socket has data to read",
        "criu/sk-netlink.c",
    ),
    Cause(
        "netlink-groups",
        "a netlink socket listens to groups that CRIU cannot save",
        "close it in the program",
        "has more than 32 groups|is bound to groups but not to portid|Groups above 32 are not supported",
        "criu/sk-netlink.c",
    ),
    Cause(
        "address",
        "an address of the tree cannot be bound on this host",
        "free the port (ss -tan; a closed connection occupies it for 60 s), or add the address to an interface",
        "Can't bind inet socket(?! back: Invalid argument)|Can't listen on a socket",
        "criu/sk-inet.c",
    ),
    Cause(
        "tcp-layer",
        "a kernel layer ({layer}) handles the TCP connection fd {fd} of PID {pid}, but CRIU does not save its keys "
        "and state: a restored program would send plain text",
        "close the connection: --tcp close; or let the program encrypt without the kernel",
    ),
    Cause(
        "tcp",
        "PID {pid} has fd {fd} connected over TCP: {local} -> {remote} ({status})",
        "choose: --tcp keep (the connection continues) or --tcp close (the program sees it closed)",
    ),
    Cause(
        "tcp-keys",
        "fd {fd} of process {pid} ({comm}) accepts only signed TCP segments (TCP_MD5SIG), and CRIU loses the keys: a "
        "restore is refused without --allow-weaker",
        "leave out --stop, so that the tree runs on; or end it anyway: --force",
    ),
    Cause(
        "peer-of-another",
        "fd {fd} of process {pid} ({comm}) is connected to a process of user {user}; after a restore, that peer "
        "would look like root: a "
        "restore is refused without --allow-weaker",
        "leave out --stop, so that the tree runs on; or end it anyway: --force",
    ),
    Cause(
        "socket-loses",
        "a restore would lose of fd {fd} of process {pid} ({comm}): {what}",
        "try again in a moment, when the program has read it; or end it anyway: --force",
    ),
    Cause(
        "unix-renamed",
        "fd {fd} of process {pid} is a unix socket that was bound as {name}, without a directory, and renamed later: "
        "CRIU cannot save it",
        "let the program bind it by a path that begins with /",
    ),
    Cause(
        "unix-moved",
        "fd {fd} of process {pid} ({comm}) is a unix socket that was bound as {name} and has another name now, which "
        "crckpt cannot find in that directory: after a restore, clients would not find it there",
        "leave out --stop, so that the tree runs on; or end it anyway: --force",
    ),
    Cause(
        "in-flight-skipped",
        "crckpt does not save a TCP connection that waits to be accepted at fd {fd} of PID {pid}: a restore does not "
        "bring it back, and with --stop its peer sees a reset",
        "",
    ),
    Cause(
        "port-taken",
        "{protocol} port {address} is taken by another program",
        "find it: ss {options} 'sport = :{port}' (package iproute2); then end it",
    ),
    Cause(
        "port-closing",
        "TCP port {address} is not free yet: its last connections were closed, and the kernel keeps them for another "
        "{seconds} s (TIME_WAIT)",
        "try again in {seconds} s",
    ),
    Cause(
        "unix-taken",
        "another program has the unix socket {name}",
        "find it: ss -xap src {name} (package iproute2); then end it",
    ),
    Cause(
        "unix-occupied",
        "another file is where the unix socket {name} of the tree must be",
        "move it away: ls -l {name}",
    ),
    Cause(
        "unix-missing",
        "the directory of the unix socket {name} is missing",
        "create it again, with its owner and mode: mkdir -p {directory}",
    ),
    Cause(
        "unix-unwritable",
        "crckpt cannot make the unix socket {name}: its directory is read-only, or belongs to another user",
        "make it writable: findmnt -T {directory}",
    ),
    Cause(
        "unix-absent",
        "no program has the unix socket {name}, to which the tree is connected",
        "start its server first",
    ),
    Cause(
        "netlink-taken",
        "another program has netlink port {port} (protocol {protocol})",
        "find it: ss -f netlink -ap | grep :{port} (package iproute2); then end it",
    ),
    Cause(
        "network-lock", "this CRIU cannot block packets with nftables, which --tcp keep needs", "crckpt install-criu"
    ),
)
