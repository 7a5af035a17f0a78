/* paths: a program that leaves the CPU in very many different stacks.
 *
 * `paths STACKS CALLS` sleeps, as short as the kernel can, once in each of STACKS different stacks, and
 * before each calls `empty` CALLS times. A stack's way to the sleep is its number in binary: a call of
 * `zero` or of `one` for each of 20 digits. Options: --wait and --wait-end as in signloop. */
#define _GNU_SOURCE
#include "workload.h"

#include <time.h>

#define DIGITS 20

__attribute__((noinline, visibility("default"))) void empty(void)
{
    __asm__ volatile("nop" ::: "memory"); /* to be probed cheaply */
}

__attribute__((noinline, visibility("default"))) void zero(unsigned long path, int digits);
__attribute__((noinline, visibility("default"))) void one(unsigned long path, int digits);

__attribute__((noinline)) static void descend(unsigned long path, int digits)
{
    if (digits == 0) {
        static const struct timespec shortest = { .tv_nsec = 1 };
        clock_nanosleep(CLOCK_MONOTONIC, 0, &shortest, NULL);
    } else if (path & 1) {
        one(path >> 1, digits - 1);
    } else {
        zero(path >> 1, digits - 1);
    }
    __asm__ volatile("" ::: "memory"); /* no call is the last thing, which would become a jump */
}

void zero(unsigned long path, int digits)
{
    descend(path, digits);
    __asm__ volatile("" ::: "memory");
}

void one(unsigned long path, int digits)
{
    descend(path, digits);
    __asm__ volatile("" ::: "memory");
}

int main(int argc, char **argv)
{
    if (argc < 3)
        die("Usage: paths STACKS CALLS [--wait] [--wait-end]");
    unsigned long stacks = parse_count(argv[1], "STACKS"), calls = parse_count(argv[2], "CALLS");
    if (stacks >= 1UL << DIGITS)
        die("STACKS: below %lu", 1UL << DIGITS);
    int wait_end = wait_options(argc, argv, 3, "paths: ready");
    for (unsigned long path = 0; path < stacks; path++) {
        for (unsigned long i = 0; i < calls; i++)
            empty();
        descend(path, DIGITS);
    }
    printf("{\"schema\":\"paths/1\",\"pid\":%d,\"stacks\":%lu,\"calls\":%lu}\n", (int)getpid(), stacks,
           stacks * calls);
    fflush(stdout);
    if (wait_end)
        wait_for_line("paths: done");
    return 0;
}
