/*
 * At a restore CRIU's processes send each other descriptors as datagrams to the abstract names `crtools-fd-PID-...`
 * (criu/files.c). Every user of the network namespace can read in /proc/net/unix which of them are bound, bind the others
 * before CRIU does, and send: also a descriptor of which the last close never ends. So here
 *
 *   a name is a keyed hash of CRIU's: nobody can tell one of them from another;
 *   a message begins with a secret, and a filter drops all others in their sender's call: none of them comes to the socket,
 *   and none of their descriptors to us.
 *
 * CRIU's store of descriptors (criu/fdstore.c) is a socket that is connected to itself: it takes none but its own messages
 * then, and no message at all between its bind(2) and its connect(2).
 */
#include "restore_library.h"

#include <arpa/inet.h>
#include <linux/filter.h>

#define TRANSPORT "/crtools-fd-"
#define WORDS 4

/* CRIU's processes have it by fork(2). */
static struct {
    uint64_t key[2];
    uint32_t message[WORDS];
} secret;
static int has_secret;

__attribute__((constructor)) static void make_secret(void)
{
    has_secret = syscall(SYS_getrandom, &secret, sizeof secret, 0l) == sizeof secret;
}

#define TURN(value, bits) ((value) << (bits) | (value) >> (64 - (bits)))
#define ROUND                                                                                                       \
    a += b, b = TURN(b, 13) ^ a, a = TURN(a, 32), c += d, d = TURN(d, 16) ^ c, a += d, d = TURN(d, 21) ^ a, c += b, \
        b = TURN(b, 17) ^ c, c = TURN(c, 32)

/* SipHash-2-4 of these words. */
static uint64_t hash(const uint64_t *words, size_t count)
{
    uint64_t a = secret.key[0] ^ 0x736f6d6570736575, b = secret.key[1] ^ 0x646f72616e646f6d;
    uint64_t c = secret.key[0] ^ 0x6c7967656e657261, d = secret.key[1] ^ 0x7465646279746573;
    for (size_t i = 0; i <= count; i++) {
        uint64_t word = i < count ? words[i] : (uint64_t)(count * sizeof word) << 56;
        d ^= word;
        ROUND, ROUND;
        a ^= word;
    }
    c ^= 0xff;
    ROUND, ROUND, ROUND, ROUND;
    return a ^ b ^ c ^ d;
}

/* The name instead of CRIU's. Returns its length. */
static socklen_t hide(const struct sockaddr *address, socklen_t length, struct sockaddr_un *hidden)
{
    uint64_t words[(sizeof *hidden + 7) / 8] = {0};
    memcpy(words, address, MIN(length, sizeof *hidden));
    *hidden = (struct sockaddr_un){.sun_family = AF_UNIX};
    int written = snprintf(hidden->sun_path + 1, sizeof hidden->sun_path - 1, TRANSPORT "%016llx",
                           (unsigned long long)hash(words, sizeof words / sizeof *words));
    return offsetof(struct sockaddr_un, sun_path) + 1 + written;
}

/* Take only messages that begin with the secret, or none at all. */
static int filter(int socket, int takes_ours)
{
    struct sock_filter code[2 * WORDS + 2];
    int count = 0;
    for (int i = 0; takes_ours && i < WORDS; i++) {
        code[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4u * i);
        code[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(secret.message[i]), 0,
                                                     (unsigned char)(2 * (WORDS - i) - 1));
    }
    if (takes_ours)
        code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
    code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = {count, code};
    return syscall(SYS_setsockopt, socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

/* CRIU itself binds and connects it, once: a later one is a program's. */
static int has_store;

int is_store(const struct sockaddr *address, socklen_t length)
{
    return !has_store && is_abstract(address, length, "/criu-fdstore-");
}

/* A process binds its own before any socket of its program, which may have such a name, too. */
int bind_transport(int socket, const struct sockaddr *address, socklen_t length)
{
    static pid_t has_transport;
    struct sockaddr_un hidden;
    pid_t pid = syscall(SYS_getpid);
    int is_transport = has_transport != pid && is_abstract(address, length, TRANSPORT);
    if (!is_transport && !is_store(address, length))
        return syscall(SYS_bind, socket, address, length);
    if (!has_secret || filter(socket, is_transport))
        return -1;
    if (!is_transport)
        return syscall(SYS_bind, socket, address, length);
    has_transport = pid;
    begin_files();
    length = hide(address, length, &hidden);
    return syscall(SYS_bind, socket, &hidden, length);
}

int connect_store(int socket, const struct sockaddr *address, socklen_t length)
{
    int nothing = 0;
    if (syscall(SYS_connect, socket, address, length))
        return -1;
    has_store = 1;
    return syscall(SYS_setsockopt, socket, SOL_SOCKET, SO_DETACH_FILTER, &nothing, sizeof nothing);
}

/* A message of CRIU's has one part (criu/scm.c). This is it, after the secret. */
static int add_secret(const struct msghdr *message, void *found, struct iovec parts[2], struct msghdr *whole)
{
    if (message->msg_iovlen != 1) {
        errno = EMSGSIZE;
        return 0;
    }
    parts[0] = (struct iovec){found, sizeof secret.message};
    parts[1] = *message->msg_iov;
    *whole = *message;
    whole->msg_iov = parts;
    whole->msg_iovlen = 2;
    return 1;
}

VISIBLE ssize_t sendmsg(int socket, const struct msghdr *message, int flags)
{
    struct sockaddr_un hidden;
    struct iovec parts[2];
    struct msghdr whole;
    if (!is_abstract(message->msg_name, message->msg_namelen, TRANSPORT))
        return syscall(SYS_sendmsg, socket, message, flags);
    if (!add_secret(message, secret.message, parts, &whole))
        return -1;
    whole.msg_namelen = hide(message->msg_name, message->msg_namelen, &hidden);
    whole.msg_name = &hidden;
    ssize_t sent = syscall(SYS_sendmsg, socket, &whole, flags);
    return sent < 0 ? sent : sent - (ssize_t)sizeof secret.message;
}

static int is_transport(int socket)
{
    struct sockaddr_un named;
    socklen_t length = sizeof named;
    int before = errno;
    int is_named = !syscall(SYS_getsockname, socket, &named, &length);
    errno = before;
    return is_named && is_abstract((const void *)&named, length, TRANSPORT);
}

VISIBLE ssize_t recvmsg(int socket, struct msghdr *message, int flags)
{
    uint32_t found[WORDS];
    struct iovec parts[2];
    struct msghdr whole;
    if (!is_transport(socket))
        return syscall(SYS_recvmsg, socket, message, flags);
    if (!add_secret(message, found, parts, &whole))
        return -1;
    ssize_t length = syscall(SYS_recvmsg, socket, &whole, flags);
    if (length < 0)
        return length;
    message->msg_namelen = whole.msg_namelen;
    message->msg_controllen = whole.msg_controllen;
    message->msg_flags = whole.msg_flags;
    return length - (ssize_t)sizeof found;
}
