#!/bin/sh
# Start a program as user 65534 in mounts that root made, as systemd's RootDirectory= does, but whose directories that
# user owns. At each place where a CRIU that looks there would execute, load or interpret something lies a trap: it writes
# its name to WORKDIR/won if it runs as root. /proc is the kernel's, or a directory without anything, or shows PID 1 where
# the program should be.
# Usage: hostile_root.sh WORKDIR CRIU real|empty|masked PROGRAM...
set -eu
work=$1 criu=$2 proc=$3
shift 3
root=$work/root
cat > "$work/trap.c" <<END
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
static void spring(const char *name)
{
    int number = geteuid() ? -1 : open("$work/won", O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (number >= 0 && write(number, name, strlen(name)) > 0)
        close(number);
}
#ifdef LIBRARY
__attribute__((constructor)) static void loaded(void) { spring("library\\n"); }
#else
int main(int count, char **words) { spring(count ? words[0] : "program\\n"); return 0; }
#endif
END
cc -o "$work/trap" "$work/trap.c"
cc -DLIBRARY -shared -fPIC -o "$work/trap.so" "$work/trap.c"

# What is in directory $1 is seen in $2; symlinks are copied.
mirror() {
    mkdir -p "$2"
    for each in "$1"/*; do
        to=$2/${each##*/}
        if [ -L "$each" ]; then
            cp -P "$each" "$to"
        elif [ -d "$each" ]; then
            mkdir "$to" && mount --rbind "$each" "$to"
        elif [ -f "$each" ]; then
            : > "$to" && mount --bind "$each" "$to"
        fi
    done
}

mkdir "$root"
mount --make-rprivate /
mount -t tmpfs tmpfs "$root"
chmod 755 "$root"
for each in /bin /sbin /lib /lib32 /lib64 /libx32; do
    [ ! -L $each ] || cp -P $each "$root"
done
mkdir -p "$root/usr/local/lib" "$root/usr/local/bin" "$root/usr/local/sbin" "$root/usr/bin" "$root/usr/sbin"
mirror /usr/lib "$root/usr/lib"
for each in /usr/lib32 /usr/lib64 /usr/libx32 /usr/share; do
    [ ! -d $each ] || { mkdir "$root$each" && mount --rbind $each "$root$each"; }
done
mount --bind /usr/bin "$root/usr/bin"
mkdir -p "$root/dev" "$root/proc" "$root/tmp" "$root/etc/criu" "$root/run" "$root/root/.criu" "$root/.criu" "$root$work"
mount --rbind /dev "$root/dev"
mount --bind "$work" "$root$work"
cp /etc/passwd /etc/group "$root/etc"

printf 'action-script %s/trap\n' "$work" > "$root/etc/criu/default.conf"
cp "$root/etc/criu/default.conf" "$root/.criu"
cp "$root/etc/criu/default.conf" "$root/root/.criu"
echo "$work/trap.so" > "$root/etc/ld.so.preload.armed"
echo 'services: trap' > "$root/etc/nsswitch.conf"
echo garbage > "$root/run/criu.kdat"
mkdir -p "$root/usr/lib/criu" "$root${criu%/*}"
cp "$work/trap.so" "$root/usr/lib/criu/trap.so"
[ -e "$root$criu" ] || cp "$work/trap" "$root$criu"
for each in sh tar env flock ip nft iptables iptables-save ip6tables ip6tables-save criu; do
    cp "$work/trap" "$root/usr/local/bin/$each"
    cp "$work/trap" "$root/usr/local/sbin/$each"
done
chown -R 65534:65534 "$root/usr/local" "$root/usr/lib/criu" "$root/etc" "$root/run" "$root/root" "$root/.criu"
chown 65534:65534 "$root" "$root/usr" "$root/usr/lib"
mount -t proc proc "$root/proc"
mkdir "$root/old"
cd "$root"
pivot_root . old
umount -l /old
cd "$work"
exec </dev/null >/dev/null 2>&1
for each in dash tar flock env; do
    mount --bind trap /usr/bin/$each
done
if [ "$proc" = masked ]; then
    mount --bind /proc/1 /proc/$$
elif [ "$proc" = empty ]; then
    umount -l /proc
fi
exec /usr/bin/python3 -c '
import os, sys
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
os.rename("/etc/ld.so.preload.armed", "/etc/ld.so.preload")
os.execv(sys.argv[1], sys.argv[1:])
' "$@"
