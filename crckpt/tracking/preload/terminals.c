/*
 * What a terminal holds unread. CRIU reads it at a dump, and writes it to the other side again: at the end of the dump if
 * the tree keeps running, and at a restore (criu/tty.c). The kernel would change it a second time, as it changes what a
 * program writes or a user types: a line end gets one more return, what is typed is echoed again, ^C is a signal. So
 * write it with these settings switched off.
 */
#include "library.h"

#include <asm/ioctls.h>
#include <asm/termbits.h>

/* The first three may be those of the user who runs CRIU. */
#define STANDARD 3
#define MOST_WAITS 1000

static int count_unread(int number)
{
    int count = 0;
    syscall(SYS_ioctl, number, FIONREAD, &count);
    return count;
}

/* What is written to a master is received later, by a thread of the kernel, with the settings of that time. */
static void wait_until_received(int slave, int count)
{
    struct timespec moment = {0, 100000};
    for (int i = 0; i < MOST_WAITS && count_unread(slave) < count; i++)
        syscall(SYS_nanosleep, &moment, NULL);
}

ssize_t write_unread(int number, const void *from, size_t length)
{
    struct termios before, plain;
    int why = errno;
    if (number < STANDARD || syscall(SYS_ioctl, number, TCGETS, &before)) {
        errno = why;
        return syscall(SYS_write, number, from, length);
    }
    plain = before;
    /* Of a master these are the settings of its other side. Lines stay lines (ICANON): CRIU has read whole ones. */
    plain.c_oflag &= ~OPOST;
    plain.c_iflag &= ~(ISTRIP | INLCR | IGNCR | ICRNL | IUCLC | PARMRK);
    plain.c_lflag &= ~(ECHO | ECHONL | ISIG | IEXTEN);
    int slave = syscall(SYS_ioctl, number, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    int unread = count_unread(slave);
    syscall(SYS_ioctl, number, TCSETS, &plain);
    ssize_t written = syscall(SYS_write, number, from, length);
    why = errno;
    if (slave >= 0 && written > 0)
        wait_until_received(slave, unread + written);
    syscall(SYS_ioctl, number, TCSETS, &before);
    if (slave >= 0)
        syscall(SYS_close, slave);
    errno = why;
    return written;
}
