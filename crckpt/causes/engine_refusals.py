"""Requests that container engines, the kubelet and LXD refuse themselves. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

REFUSALS = (
    Cause(
        "engine-state",
        "the container is not running; only a running one can be checkpointed",
        "start it, or check why it ended: podman logs NAME, docker logs NAME",
        r"is not running, cannot checkpoint|[Cc]ontainer (?:\S{1,80} )?is not running"
        r"|cannot be checkpointed in|[Cc]annot checkpoint .{0,200}not running"
        r"|cannot checkpoint (?:a |container in )?(?:state )?(?:stopped|paused|created)|container state improper"
        r"|only (?:checkpoint )?running containers can be checkpointed|can only checkpoint (?:a )?running",
        "podman, runc, docker",
    ),
    Cause(
        "engine-removed",
        "the container was started with --rm: its checkpoint would be removed with it",
        "export the checkpoint (podman container checkpoint --export FILE), or start it without --rm",
        r"cannot checkpoint containers? that (?:have|has) been started with '?--rm",
        "podman",
    ),
    Cause(
        "engine-other-user",
        "the container engine knows no such container for this user: root and each other user have containers of"
        " their own",
        "start the container as root too (sudo podman run), then list them: sudo podman ps --all",
        r"no container with (?:name or )?ID .{1,200}no such container|unable to find container .{1,200}"
        r"no such container",
        "podman",
        sure=False,
    ),
    Cause(
        "engine-address",
        "the container cannot have its old address: its network has changed, or the address is in use",
        "restore it with a new one: podman container restore --ignore-static-ip --ignore-static-mac",
        r"cannot set static IP or MAC|[Rr]equested (?:static )?(?:ip|IP)\b.{0,80}(?:not in any subnet|already"
        r" allocated|not available)|(?:IP|ip) address .{1,60} (?:is )?already (?:in use|allocated|being used)",
        "podman, docker",
    ),
    Cause(
        "engine-name-taken",
        "a container with that name or ID exists already",
        "remove it (podman rm, docker rm, runc delete), or restore under another name: podman container restore"
        " --import FILE --name NAME",
        r"[Cc]ontainer (?:name|ID|id) .{1,200} (?:is )?already in use|container with (?:given |that )?(?:ID|id|name)"
        r" .{0,100}(?:already )?(?:exists|in use)|cannot start an already running container"
        r"|is running or paused, cannot restore"
        r"|(?:name|id|ID) .{1,100} is in use: container already exists|error reserving ctr name",
        "podman, runc, CRI-O",
    ),
    Cause(
        "engine-not-its-own",
        "this is not a complete checkpoint of this container engine",
        "use one that this engine wrote, with all its files (config.json, config.dump, descriptors.json); "
        "restore images of criu with criu or crckpt",
        r"does not contain a checkpoint|complete checkpoint for this container cannot be found"
        r"|checkpoint .{1,200} does not exist|(?:config|spec)\.dump\S{0,3}"
        r" .{0,80}(?:no such file|not found|missing)|open \S{1,300}(?:checkpoints?/\S{1,200}config\.json"
        r"|descriptors\.json|(?:config|spec)\.dump|network\.status): no such file|ctr: media type not found"
        r"|has no checkpoint to restore|not a (?:valid )?checkpoint (?:archive|image)"
        r"|is not a container.s checkpoint",
        "podman, docker, containerd",
        sure=False,
        by_criu="use one that this engine wrote, with all its files (config.json, config.dump, "
        "descriptors.json); restore images of criu with criu",
    ),
    Cause(
        "engine-unreachable",
        "the docker client cannot reach its daemon, or checkpoints are not enabled there",
        'start the daemon, and enable them in /etc/docker/daemon.json: "experimental": true; then check as root: docker'
        " info",
        r"Docker daemon is running on ?(?:\S{0,2}\"\"|$)|Cannot connect to the Docker daemon",
        "docker",
        sure=False,
    ),
    Cause(
        "engine-kubelet",
        "checkpoints are not enabled in this kubelet or its container runtime",
        "enable the feature gate ContainerCheckpoint (kubelet before 1.30); CRI-O: enable_criu_support = true;"
        " containerd: 2.0 or newer",
        r"ContainerCheckpoint (?:feature|is not|disabled)|(?:unknown )?method CheckpointContainer(?: not implemented)?"
        r"|CheckpointContainer.{0,80}(?:Unimplemented|not implemented)|/checkpoint/\S{1,200}.{0,80}404"
        r"|404 page not found|enable_criu_support|(?:CRIU|checkpoint/restore) support (?:is )?(?:disabled|not enabled)",
        "kubelet, CRI-O, containerd",
    ),
    Cause(
        "engine-forbidden",
        "this user may not make checkpoints by the kubelet",
        "use a certificate of its administrators: /etc/kubernetes/pki/apiserver-kubelet-client.crt",
        r"Forbidden \(user=.{0,200}(?:resource=nodes|subresource)|nodes/(?:checkpoint|proxy).{0,80}forbidden",
        "kubelet",
    ),
    Cause(
        "engine-stateful",
        "LXD or Incus does not keep the state of this instance",
        "enable CRIU (snap set lxd criu.enable=true, then restart LXD) and make the container privileged; of a virtual"
        " machine: migration.stateful=true",
        r"Unable to use CRIU|criu\.enable|migration\.stateful|[Ss]tateful (?:stop|snapshot|start|migration)\w{0,3}"
        r" (?:requires|is not|not|isn't)|CRIU (?:isn't|is not) enabled",
        "LXD, Incus",
    ),
    Cause(
        "engine-network",
        "the container has a network that its engine cannot checkpoint: {name|see its configuration}",
        "give it only veth interfaces, or none: lxc.net.0.type = veth",
        r"[Ff]ound un-?dumpable network: (?P<name>.{1,100})",
        "LXC",
    ),
    Cause(
        "engine-volumes",
        "the container has volumes, which its engine does not include",
        "create the same volumes first, or leave them out: --ignore-volumes with podman",
        r"(?:volume|mount) .{1,200}(?:missing|not (?:available|found|exist)).{0,80}(?:checkpoint|restore)"
        r"|(?:checkpoint|restore).{0,80}(?:container with|missing|external) (?:bind mounts?|volumes?)\b",
        "podman",
        sure=False,
    ),
    Cause(
        "engine-library",
        "CRIU's library (libcriu) is missing, or too old for the program that calls it",
        "install the libcriu of a newer CRIU, and see which is loaded: ldconfig -p | grep criu",
        r"Cannot set CRIU unprivileged mode|undefined symbol: criu_|could not find symbol .{0,3}criu_"
        r"|libcriu\.so\S{0,10}: (?:cannot open|undefined|no)"
        r"|[Ff]ailed to load libcriu",
        "crun, OpenJ9",
    ),
    Cause(
        "engine-cgroup",
        "the container's control group does not exist: it was made with the other version of cgroups, or it was "
        "removed",
        "restore with the cgroup version of the dump (stat -fc %T /sys/fs/cgroup), or with"
        " manage-cgroups ignore in /etc/criu/runc.conf",
        r"(?:open(?:at2)?|stat|mkdir|freezer not supported:) /sys/fs/cgroup/\S{1,400}: no such file"
        r"|unable to apply cgroup configuration",
        "runc, crun",
        sure=False,
    ),
    Cause(
        "engine-mount",
        "a mount of the container is not on this host: {path|see the message}",
        "create or mount it at its old place: mkdir -p {path|DIRECTORY}",
        r"error mounting .{1,300} to rootfs|statfs (?P<path>/[^\s:]{1,300}): no such file"
        r"|source path does not exist: \S",
        "runc, podman, docker",
        sure=False,
    ),
    Cause(
        "engine-image-missing",
        "the image of the container is not on this host, and cannot be fetched",
        "fetch it first, the same version as at the checkpoint: podman pull IMAGE, docker pull IMAGE",
        r"image not known|pull access denied|manifest unknown|ErrImageNeverPull|ImagePullBackOff",
        "podman, docker, kubelet",
    ),
    Cause(
        "engine-tracking",
        "this kernel does not track written pages, but a pre-checkpoint needs that",
        "leave --pre-checkpoint (--pre-dump) out, or boot a kernel with CONFIG_MEM_SOFT_DIRTY",
        r"memory tracking not supported",
        "crun",
    ),
    Cause(
        "engine-socket-file",
        "the container engine cannot pack the file of a unix socket in the container",
        "export the checkpoint without changed files (--ignore-rootfs with podman), or have the program make its"
        " sockets on a tmpfs or volume",
        r"archive/tar: sockets not supported",
        "podman",
    ),
    Cause(
        "engine-labels",
        "podman loses a part of the container's SELinux label when it exports a checkpoint",
        "restore it in place, without --export and --import; or update podman",
        r"ProcessLabel and Mountlabel must either not be specified or both specified",
        "podman",
    ),
)
