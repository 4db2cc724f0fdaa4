/*
 * Calls that have done nothing when they return EINTR: they can be made again (calls.c, restarted_calls.py). The numbers of each
 * (-1: none), for x86-64 and its 32-bit programs, and the low bits of the first argument for which that is so, 0 for any.
 * SOCKET: only if it is a socket, which returns EINTR if it has a timeout (SO_RCVTIMEO, SO_SNDTIMEO) and nothing was read
 * or sent. Other files are left out: a FUSE server may have done its part, and so may close(2).
 */
#define SOCKET -1
/* Events stay in the set until they are returned. */
AGAIN("epoll_wait", 232, 256, 0)
AGAIN("epoll_pwait", 281, 319, 0)
AGAIN("epoll_pwait2", 441, 441, 0)
/* All operations are done, or none. */
AGAIN("semop", 65, -1, 0)
AGAIN("semtimedop", 220, 420, 0)
AGAIN("ipc: semop", -1, 117, 1)
AGAIN("ipc: semtimedop", -1, 117, 4)
/* It returns a signal that it took. */
AGAIN("rt_sigtimedwait", 128, 177, 0)
AGAIN("rt_sigtimedwait_time64", -1, 421, 0)
/* If they took, read or sent anything, they return its count: EINTR means nothing was done. */
AGAIN("io_getevents", 208, 247, 0)
AGAIN("io_pgetevents", 333, 385, 0)
AGAIN("io_pgetevents_time64", -1, 416, 0)
AGAIN("read", 0, 3, SOCKET)
AGAIN("readv", 19, 145, SOCKET)
AGAIN("recvfrom", 45, 371, SOCKET)
AGAIN("recvmsg", 47, 372, SOCKET)
AGAIN("recvmmsg", 299, 337, SOCKET)
AGAIN("recvmmsg_time64", -1, 417, SOCKET)
AGAIN("write", 1, 4, SOCKET)
AGAIN("writev", 20, 146, SOCKET)
AGAIN("sendto", 44, 369, SOCKET)
AGAIN("sendmsg", 46, 370, SOCKET)
AGAIN("sendmmsg", 307, 345, SOCKET)
AGAIN("sendfile", 40, 187, SOCKET)
AGAIN("sendfile64", -1, 239, SOCKET)
AGAIN("accept", 43, -1, SOCKET)
AGAIN("accept4", 288, 364, SOCKET)
/* It waits for the connection that it began. Over TCP it then times out with another errno. */
AGAIN("connect", 42, 362, SOCKET)
AGAIN("socketcall: connect", -1, 102, 3)
AGAIN("socketcall: accept", -1, 102, 5)
AGAIN("socketcall: send", -1, 102, 9)
AGAIN("socketcall: recv", -1, 102, 10)
AGAIN("socketcall: sendto", -1, 102, 11)
AGAIN("socketcall: recvfrom", -1, 102, 12)
AGAIN("socketcall: sendmsg", -1, 102, 16)
AGAIN("socketcall: recvmsg", -1, 102, 17)
AGAIN("socketcall: accept4", -1, 102, 18)
AGAIN("socketcall: recvmmsg", -1, 102, 19)
AGAIN("socketcall: sendmmsg", -1, 102, 20)
