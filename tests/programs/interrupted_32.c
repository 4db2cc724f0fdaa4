/*
 * A 32-bit program without any library: each of its children waits in another system call, for four seconds, and writes
 * what came of it. Lines: "waits NAME PID NUMBER", then "NAME RESULT MILLISECONDS".
 */
static long call(long number, const void *a, const void *b, const void *c, const void *d, const void *e)
{
    long result;
    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(number), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e)
                     : "memory");
    return result;
}
#define P(value) ((const void *)(value))
#define CALL5(n, a, b, c, d, e) call(n, P(a), P(b), P(c), P(d), P(e))
#define CALL4(n, a, b, c, d) CALL5(n, a, b, c, d, 0)
#define CALL3(n, a, b, c) CALL4(n, a, b, c, 0)
#define CALL2(n, a, b) CALL3(n, a, b, 0)
#define CALL1(n, a) CALL2(n, a, 0)

static const long seconds[2] = {4, 0};
static int fds[2];

static long now(void)
{
    long time[2];
    CALL2(265, 1, time);
    return time[0] * 1000 + time[1] / 1000000;
}

static long in_poll(void)
{
    struct { int fd; short events, found; } one = {fds[0], 1, 0};
    return CALL3(168, &one, 1, 4000);
}

static long in_epoll_wait(void)
{
    char found[12];
    return CALL4(256, CALL1(329, 0), found, 1, 4000);
}

static long in_nanosleep(void) { return CALL2(162, seconds, 0); }
static long in_clock_nanosleep(void) { return CALL4(267, 1, 0, seconds, 0); }

static long in_futex(void)
{
    static int word;
    return CALL4(240, &word, 0, 0, seconds);
}

static long in_semtimedop(void)
{
    static const short take[3] = {0, -1, 0};
    static const long long time[2] = {4, 0};
    long id = CALL4(117, 2, 0, 1, 0600);
    long result = CALL4(420, id, take, 1, time);
    CALL5(117, 3, id, 0, 0, take); /* IPC_RMID */
    return result;
}

static long in_sigtimedwait(void)
{
    static const unsigned mask[2] = {1 << 9, 0};
    CALL4(175, 0, mask, 0, 8);
    return CALL4(177, mask, 0, seconds, 8);
}

static long in_socketcall(void)
{
    char found[8];
    const long of_pair[] = {1, 1, 0, (long)fds};
    CALL2(102, 8, of_pair);
    const long of_option[] = {fds[0], 1, 20, (long)seconds, sizeof seconds};
    CALL2(102, 14, of_option);
    const long of_receive[] = {fds[0], (long)found, sizeof found, 0};
    return CALL2(102, 10, of_receive);
}

static const struct { const char *name; long number; long (*call)(void); } calls[] = {
    {"poll", 168, in_poll},
    {"epoll_wait", 256, in_epoll_wait},
    {"nanosleep", 162, in_nanosleep},
    {"clock_nanosleep", 267, in_clock_nanosleep},
    {"futex", 240, in_futex},
    {"semtimedop", 420, in_semtimedop},
    {"sigtimedwait", 177, in_sigtimedwait},
    {"socketcall", 102, in_socketcall},
};

static char *put(char *at, const char *text)
{
    while (*text)
        *at++ = *text++;
    return at;
}

static char *put_number(char *at, long number)
{
    char digits[12];
    int count = 0;
    unsigned long left = number < 0 ? -number : number;
    if (number < 0)
        *at++ = '-';
    do
        digits[count++] = '0' + left % 10;
    while (left /= 10);
    while (count)
        *at++ = digits[--count];
    return at;
}

static void say(const char *first, const char *name, long one, long other)
{
    char line[100], *at = put(put(line, first), name);
    *at++ = ' ';
    at = put_number(at, one);
    *at++ = ' ';
    at = put_number(at, other);
    *at++ = '\n';
    CALL3(4, 1, line, at - line);
}

void _start(void)
{
    int status;
    CALL1(42, fds);
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
        if (CALL1(2, 0) == 0) {
            say("waits ", calls[i].name, CALL1(20, 0), calls[i].number);
            long began = now();
            long result = calls[i].call();
            say("", calls[i].name, result, now() - began);
            CALL1(1, 0);
        }
    while (CALL3(7, -1, &status, 0) > 0)
        ;
    CALL1(1, 0);
}
