/* CRIU's own sockets with abstract names, which any user of the network namespace can reach. */
#pragma once

#include <sys/socket.h>

/* The beginnings of their names (criu/parasite-syscall.c, criu/files.c). */
#define OF_CODE "/crtools-pr-"
#define OF_DESCRIPTORS "/crtools-fd-"

/* Whether this is an abstract name that begins so. */
int is_name_of_criu(const struct sockaddr *address, socklen_t length, const char *kind);

/* Have the kernel say of each message to this socket who has sent it. */
void ask_who_sends(int socket);

/* Whether this socket has such a name. */
int has_name(int socket, const char *kind);
