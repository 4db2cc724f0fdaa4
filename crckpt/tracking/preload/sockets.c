/*
 * Sockets with a path, at a restore. CRIU removes the file of that name, binds, and changes owner and mode; if the
 * socket's name had been removed, it moves the file that has the name now away and back. All that is done by path
 * (criu/sk-unix.c): here only root can redirect these paths (trusted.c). bind(2) and connect(2) take no directory, and the
 * socket must get the program's name: they are made with the rights of the user who could replace a part of the path.
 * CRIU removes old sockets before it makes the processes: here the process does it that binds, with its own rights.
 */
#include "restore_library.h"

#include <sys/time.h>

/* linux/un.h: open the file that the socket has bound. */
#define SIOCUNIXFILE 0x89E0

/* Copy the path of a socket, and end it with a zero. Whether it has one. */
static int has_path(const struct sockaddr *address, socklen_t length, char path[sizeof(struct sockaddr_un)])
{
    const struct sockaddr_un *named = (const void *)address;
    const size_t start = offsetof(struct sockaddr_un, sun_path), most = length - start;
    if (length <= start || most > sizeof named->sun_path || named->sun_family != AF_UNIX || !*named->sun_path)
        return 0;
    memcpy(path, named->sun_path, most);
    path[most] = 0;
    return 1;
}

/* Make a call for which the kernel looks up a path, or changes a directory, with the rights of this user. */
static int call_as(uid_t user, long call, int number, const void *at, long last)
{
    long before = user ? syscall(SYS_setfsuid, user) : 0;
    int result = syscall(call, number, at, last), why = errno;
    if (user)
        syscall(SYS_setfsuid, before);
    errno = why;
    return result;
}

/* Remove a socket as the process that has it now; as root only where nobody but root can have put it. */
static int unlink_socket(const struct place *place)
{
    struct stat found;
    if (syscall(SYS_newfstatat, place->directory, place->last, &found, (long)AT_SYMLINK_NOFOLLOW))
        return -1;
    if (!S_ISSOCK(found.st_mode)) {
        errno = EPERM;
        return -1;
    }
    int result;
    if (AS_HOLDER(result, syscall(SYS_unlinkat, place->directory, place->last, 0l)) &&
        (!result || !is_forbidden() || !place->is_roots))
        return result;
    return call_as(place->user, SYS_unlinkat, place->directory, place->last, 0);
}

VISIBLE int bind(int socket, const struct sockaddr *address, socklen_t length)
{
    char path[sizeof(struct sockaddr_un)];
    struct place place;
    if (!has_path(address, length, path))
        return bind_transport(socket, address, length);
    if (!find_place(AT_FDCWD, path, 0, &place))
        return -1;
    int result = call_as(place.user, SYS_bind, socket, address, length);
    if (result && errno == EADDRINUSE) {
        if (!unlink_socket(&place))
            result = call_as(place.user, SYS_bind, socket, address, length);
        else
            errno = EADDRINUSE;
    }
    close_and_return(place.directory, result);
    int file = result ? -1 : syscall(SYS_ioctl, socket, SIOCUNIXFILE, 0l);
    if (file >= 0) {
        remember_made(file);
        syscall(SYS_close, file);
    }
    return result;
}

/* Clients are told who called it (SO_PEERCRED), at once. */
VISIBLE int listen(int socket, int backlog)
{
    int result;
    return AS_HOLDER(result, syscall(SYS_listen, socket, backlog)) ? result : syscall(SYS_listen, socket, backlog);
}

/* CRIU's own sockets: in /proc, the server of images, which comes first, and sockets that were removed. */
static int is_address_of_criu(const char *path)
{
    static int is_begun;
    struct statfs there;
    if (*path != '/')
        return !syscall(SYS_statfs, ".", &there) && there.f_type == PROC_SUPER_MAGIC;
    return starts_with(path, "/proc/self/fd/") && !is_begun++;
}

/*
 * Connect as the holder, of whom the server is told (SO_PEERCRED), to a socket that is the right one whatever its mode: the
 * name is abstract, or leads to what the process has open. Only the name is looked up with root's rights.
 */
static int connect_to_own(int socket, const struct sockaddr *address, socklen_t length)
{
    if (!become_holder())
        return syscall(SYS_connect, socket, address, length);
    syscall(SYS_setfsuid, 0l);
    int result = syscall(SYS_connect, socket, address, length);
    become_builder();
    return result;
}

/*
 * Connect to the socket that was found, and not to what the path leads to by now: another user who listens there would
 * take the program for one of root's (SO_PEERCRED). A user's program gets a connection only with its own rights: its user
 * may have put root's directory there. A program of root connects with the rights of the socket's owner.
 */
VISIBLE int connect(int socket, const struct sockaddr *address, socklen_t length)
{
    char path[sizeof(struct sockaddr_un)];
    struct stat found;
    int result;
    if (is_store(address, length))
        return connect_store(socket, address, length);
    if (!has_path(address, length, path) || is_address_of_criu(path))
        return length >= sizeof address->sa_family && address->sa_family == AF_UNIX
                   ? connect_to_own(socket, address, length)
                   : syscall(SYS_connect, socket, address, length);
    int number = open_place(AT_FDCWD, path, 1, 0);
    if (number < 0)
        return -1;
    /* connect(2) takes no descriptor. */
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "/proc/self/fd/%d", number);
    if (syscall(SYS_fstat, number, &found))
        return close_and_return(number, -1);
    if (!AS_HOLDER(result, syscall(SYS_connect, socket, &at, sizeof at)))
        result = call_as(found.st_uid, SYS_connect, socket, (const void *)&at, sizeof at);
    return close_and_return(number, result);
}

VISIBLE int chdir(const char *path)
{
    int number = open_place(AT_FDCWD, path, 1, O_DIRECTORY);
    return number < 0 ? -1 : close_and_return(number, syscall(SYS_fchdir, number));
}

VISIBLE int unlinkat(int from, const char *name, int flags)
{
    if (from != AT_FDCWD || is_of_criu(last_part(name)))
        return unlink_in_parent(from, name, flags);
    if (is_criu_itself()) {
        errno = ENOENT;
        return -1;
    }
    return IN_PLACE(from, name, unlink_socket(&place));
}

VISIBLE int rmdir(const char *path)
{
    return IN_PLACE(AT_FDCWD, path, syscall(SYS_unlinkat, place.directory, place.last, AT_REMOVEDIR));
}

VISIBLE int rename(const char *path, const char *name)
{
    struct place from;
    if (!find_place(AT_FDCWD, path, 0, &from))
        return -1;
    int result = IN_PLACE(AT_FDCWD, name, syscall(SYS_renameat, from.directory, from.last, place.directory, place.last));
    return close_and_return(from.directory, result);
}

/* Removed files that are pipes, devices or symlinks (criu/files-reg.c, create_ghost_dentry). */
VISIBLE int mknod(const char *path, mode_t mode, dev_t device)
{
    return IN_PLACE(AT_FDCWD, path, syscall(SYS_mknodat, place.directory, place.last, mode, device));
}

VISIBLE int symlink(const char *text, const char *path)
{
    return IN_PLACE(AT_FDCWD, path, syscall(SYS_symlinkat, text, place.directory, place.last));
}

VISIBLE int lutimes(const char *path, const struct timeval times[2])
{
    struct timespec exact[2];
    for (int i = 0; i < 2; i++)
        exact[i] = (struct timespec){times[i].tv_sec, times[i].tv_usec * 1000};
    return IN_PLACE(AT_FDCWD, path, syscall(SYS_utimensat, place.directory, place.last, exact, AT_SYMLINK_NOFOLLOW));
}
