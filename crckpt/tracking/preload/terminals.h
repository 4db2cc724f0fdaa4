/* Terminals: what CRIU writes to them. Source: terminals.c. */
#pragma once

#include <sys/types.h>

/* write(2), which the kernel passes on as it is if the file is a terminal. */
ssize_t write_unread(int number, const void *from, size_t length);
