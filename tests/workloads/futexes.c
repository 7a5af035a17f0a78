/* futexes N: futex calls made by hand, N of each kind, each on a word of its own.
 *
 * Options as in signloop: --wait and --wait-end. */
#define _GNU_SOURCE
#include "workload.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#ifndef SYS_futex_wait
#define SYS_futex_wait 455
#endif
#ifndef FUTEX2_SIZE_U32
#define FUTEX2_SIZE_U32 2
#endif

/* Not static: the tracer's report names each word by its symbol. A PI futex's word is the owner's
 * tid; the others just do not change. */
_Atomic uint32_t f_eagain[4], f_timeout[4], f_eintr[4], f_wait[4], f_bitset[4], f_pi[4], f_waitv[4],
    f_wait2[4];

static pid_t waiter;
static atomic_bool pi_held;
static unsigned long eagains, timeouts, eintrs, woken, bitsets, pis, waitvs, wait2s;

static long futex(_Atomic uint32_t *word, int operation, uint32_t value,
                  const struct timespec *timeout, uint32_t mask)
{
    return syscall(SYS_futex, word, operation, value, timeout, NULL, mask);
}

static void pause_ms(long ms)
{
    struct timespec time = { .tv_nsec = ms * 1000000 };
    nanosleep(&time, NULL);
}

static void ignore(int signal)
{
    (void)signal;
}

/* What the other thread does for one wait: it lets the waiter fall asleep first, and tries again
 * where it was too early. */
enum act { NOTHING, WAKE, SIGNAL, HOLD };

static struct order {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum act act;
    _Atomic uint32_t *word;
} order = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NOTHING, NULL };

static atomic_bool returned;

static void ask(enum act act, _Atomic uint32_t *word)
{
    returned = false;
    pthread_mutex_lock(&order.lock);
    order.act = act;
    order.word = word;
    pthread_cond_signal(&order.changed);
    pthread_mutex_unlock(&order.lock);
}

static void *obey(void *argument)
{
    (void)argument;
    for (;;) {
        pthread_mutex_lock(&order.lock);
        while (order.act == NOTHING)
            pthread_cond_wait(&order.changed, &order.lock);
        enum act act = order.act;
        _Atomic uint32_t *word = order.word;
        order.act = NOTHING;
        pthread_mutex_unlock(&order.lock);
        if (act == HOLD) {
            if (futex(word, FUTEX_LOCK_PI_PRIVATE, 0, NULL, 0) != 0)
                die("LOCK_PI: %s", strerror(errno));
            pi_held = true;
            pause_ms(20);
            futex(word, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, 0);
            continue;
        }
        pause_ms(10);
        while (!returned) {
            if (act == SIGNAL)
                syscall(SYS_tgkill, getpid(), waiter, SIGUSR2);
            else
                futex(word, FUTEX_WAKE_PRIVATE, 1, NULL, 0);
            pause_ms(10);
        }
    }
    return NULL;
}

/* One call of each kind; the counters tell what came of it. */
__attribute__((noinline, visibility("default"))) void round_of_calls(void)
{
    struct timespec soon = { .tv_nsec = 15000000 };

    if (futex(f_eagain, FUTEX_WAIT_PRIVATE, 1, NULL, 0) != 0 && errno == EAGAIN)
        eagains++;
    if (futex(f_timeout, FUTEX_WAIT_PRIVATE, 0, &soon, 0) != 0 && errno == ETIMEDOUT)
        timeouts++;
    ask(SIGNAL, NULL);
    if (futex(f_eintr, FUTEX_WAIT_PRIVATE, 0, NULL, 0) != 0 && errno == EINTR)
        eintrs++;
    returned = true;
    pause_ms(25);
    ask(WAKE, f_wait);
    if (futex(f_wait, FUTEX_WAIT_PRIVATE, 0, NULL, 0) == 0)
        woken++;
    returned = true;
    pause_ms(25);
    ask(WAKE, f_bitset);
    if (futex(f_bitset, FUTEX_WAIT_BITSET_PRIVATE | FUTEX_CLOCK_REALTIME, 0, NULL, 1) == 0)
        bitsets++;
    returned = true;
    pause_ms(25);

    pi_held = false;
    ask(HOLD, f_pi);
    while (!pi_held)
        ;
    if (futex(f_pi, FUTEX_LOCK_PI_PRIVATE, 0, NULL, 0) == 0)
        pis++;
    futex(f_pi, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, 0);

    struct {
        uint64_t value, address;
        uint32_t flags, reserved;
    } list[1] = { { 0, (uintptr_t)f_waitv, FUTEX2_SIZE_U32 | FUTEX_PRIVATE_FLAG, 0 } };
    ask(WAKE, f_waitv);
    if (syscall(SYS_futex_waitv, list, 1, 0, NULL, CLOCK_MONOTONIC) == 0)
        waitvs++;
    returned = true;
    pause_ms(25);
    ask(WAKE, f_wait2);
    if (syscall(SYS_futex_wait, f_wait2, 0UL, 0xffffffffUL, FUTEX2_SIZE_U32 | FUTEX_PRIVATE_FLAG, NULL,
                CLOCK_MONOTONIC)
        == 0)
        wait2s++;
    returned = true;
    pause_ms(25);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        die("Usage: futexes N [--wait] [--wait-end]");
    unsigned long count = parse_count(argv[1], "N");
    struct sigaction action = { .sa_handler = ignore }; /* without SA_RESTART */
    sigaction(SIGUSR2, &action, NULL);
    waiter = (pid_t)syscall(SYS_gettid);
    pthread_t helper;
    if (pthread_create(&helper, NULL, obey, NULL) != 0)
        die("cannot start a thread");
    int wait_end = wait_options(argc, argv, 2, "futexes: ready");
    for (unsigned long i = 0; i < count; i++)
        round_of_calls();
    printf("{\"eagain\":%lu,\"timeout\":%lu,\"eintr\":%lu,\"wait\":%lu,\"bitset\":%lu,\"pi\":%lu,"
           "\"waitv\":%lu,\"wait2\":%lu}\n",
           eagains, timeouts, eintrs, woken, bitsets, pis, waitvs, wait2s);
    fflush(stdout);
    if (wait_end)
        wait_for_line("futexes: done");
    return 0;
}
