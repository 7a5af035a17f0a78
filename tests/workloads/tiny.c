/* tiny MODE N: functions to be probed by name, in a program without OpenSSL.
 *
 * Modes: work (N calls of work), nested (N calls of outer, each of which calls inner twice), both.
 * Options as in signloop: --wait and --wait-end. */
#include "workload.h"

#include <time.h>

static unsigned long works, outers, inners;

/* Burns CPU: a call that takes no time would measure nothing but the probe. */
static void burn(unsigned microseconds)
{
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000000L + now.tv_nsec - begin.tv_nsec
           < microseconds * 1000L);
}

__attribute__((noinline, visibility("default"))) void work(void)
{
    burn(20);
    works++;
}

__attribute__((noinline, visibility("default"))) void inner(void)
{
    burn(10);
    inners++;
}

__attribute__((noinline, visibility("default"))) void outer(void)
{
    inner();
    inner();
    outers++; /* after the calls, so that neither becomes a tail call */
}

int main(int argc, char **argv)
{
    if (argc < 3)
        die("Usage: tiny work|nested|both N [--wait] [--wait-end]");
    int work_too = strcmp(argv[1], "work") == 0 || strcmp(argv[1], "both") == 0;
    int nested_too = strcmp(argv[1], "nested") == 0 || strcmp(argv[1], "both") == 0;
    unsigned long count = parse_count(argv[2], "N");
    int wait_end = wait_options(argc, argv, 3, "tiny: ready");
    for (unsigned long i = 0; i < count; i++) {
        if (work_too)
            work();
        if (nested_too)
            outer();
    }
    printf("{\"schema\":\"tiny/1\",\"pid\":%d,\"work\":%lu,\"outer\":%lu,\"inner\":%lu}\n",
           (int)getpid(), works, outers, inners);
    fflush(stdout);
    if (wait_end)
        wait_for_line("tiny: done");
    return 0;
}
