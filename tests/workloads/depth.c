/* depth: a thread that leaves the CPU again and again under a given number of frames.
 *
 * `depth N COUNT` descends N calls, each into another function, and then, COUNT times, sleeps for as
 * short as the kernel can. `depth N COUNT yield` gives the CPU to a second thread that does the same,
 * on one CPU: all that the tracer needs is in the caches then. */
#define _GNU_SOURCE
#include "workload.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <time.h>

static unsigned long levels_wanted, count;
static bool yields;

__attribute__((noinline)) static void leave_cpu(void)
{
    static const struct timespec shortest = { .tv_nsec = 1 };
    for (unsigned long i = 0; i < count; i++) {
        if (yields)
            sched_yield();
        else
            clock_nanosleep(CLOCK_MONOTONIC, 0, &shortest, NULL);
    }
}

#define LEVELS 64
typedef unsigned long level(unsigned long left);
static level *const levels[LEVELS];

/* The last statement is no call, which the compiler would make a jump. */
#define LEVEL(n) \
    __attribute__((noinline)) static unsigned long level_##n(unsigned long left) \
    { \
        unsigned long below = 0; \
        if (left == 0) \
            leave_cpu(); \
        else \
            below = levels[(n) + 1](left - 1); \
        __asm__ volatile("" : "+r"(below)); \
        return below + (n); \
    }
/* Eight functions each, numbered in octal. */
#define EIGHT(X, d) X(0##d##0) X(0##d##1) X(0##d##2) X(0##d##3) X(0##d##4) X(0##d##5) X(0##d##6) X(0##d##7)
#define ALL(X) \
    EIGHT(X, 0) EIGHT(X, 1) EIGHT(X, 2) EIGHT(X, 3) EIGHT(X, 4) EIGHT(X, 5) EIGHT(X, 6) EIGHT(X, 7)
#define NAME(n) level_##n,

ALL(LEVEL)
static level *const levels[LEVELS] = { ALL(NAME) };

/* For a probe: the tracer wants one. */
__attribute__((noinline, visibility("default"))) void finish(unsigned long switches)
{
    printf("{\"schema\":\"depth/1\",\"switches\":%lu}\n", switches);
    fflush(stdout);
}

static void *run(void *unused)
{
    levels[0](levels_wanted);
    return unused;
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4)
        die("Usage: depth LEVELS COUNT [yield]");
    levels_wanted = parse_count(argv[1], "LEVELS");
    count = parse_count(argv[2], "COUNT");
    if (levels_wanted >= LEVELS)
        die("LEVELS must be below %d", LEVELS);
    yields = argc == 4;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    if (yields && sched_setaffinity(0, sizeof one, &one) != 0)
        die("sched_setaffinity: %s", strerror(errno));
    wait_for_line("depth: ready");
    pthread_t other;
    if (yields && pthread_create(&other, NULL, run, NULL) != 0)
        die("pthread_create failed");
    levels[0](levels_wanted);
    if (yields)
        pthread_join(other, NULL);
    finish(count * (yields ? 2 : 1));
    wait_for_line("depth: done");
    return 0;
}
