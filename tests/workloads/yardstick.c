/* yardstick: how fast the CPUs are at the moment, which in a virtual machine changes by tens of percent with
 * what other machines do on the same cores.
 *
 * `yardstick [CPU]`: a thread on each CPU, or on that one, wakes up every 10 ms and does one and the same
 * piece of work, some 250 us of the multiplications that elliptic curves are made of, before everything else
 * that wants the CPU. Seldom: each turn is two switches, and a tracer of switches is to be measured, not what
 * it tells of this one. Every 20 ms `progress: PIECES TIME_NS CPU_NS` on stderr tells the pieces so far,
 * CLOCK_MONOTONIC, and the CPU time that the pieces took. */
#define _GNU_SOURCE
#include "workload.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define LIMBS 4
#define MULTIPLICATIONS 10000

static _Atomic uint64_t pieces, spent_ns;

/* Replaces a number by the upper half of its square, and by something that is never 0. */
static void square(uint64_t number[LIMBS])
{
    uint64_t product[2 * LIMBS] = { 0 };
    for (int i = 0; i < LIMBS; i++) {
        unsigned __int128 carry = 0;
        for (int j = 0; j < LIMBS; j++) {
            carry += (unsigned __int128)number[i] * number[j] + product[i + j];
            product[i + j] = (uint64_t)carry;
            carry >>= 64;
        }
        product[i + LIMBS] = (uint64_t)carry;
    }
    for (int i = 0; i < LIMBS; i++)
        number[i] = product[i + LIMBS] ^ product[i] ^ UINT64_C(0x9e3779b97f4a7c15);
}

static void *measure(void *argument)
{
    uintptr_t cpu = (uintptr_t)argument;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(cpu, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus) != 0)
        die("yardstick: CPU %zu: %s", (size_t)cpu, strerror(errno));
    struct sched_param first = { .sched_priority = 1 };
    if (sched_setscheduler(0, SCHED_FIFO, &first) != 0)
        die("yardstick: SCHED_FIFO: %s", strerror(errno));
    uint64_t number[LIMBS] = { 1, 2, 3, 4 };
    struct timespec pause = { .tv_nsec = 10000000 };
    for (;;) {
        nanosleep(&pause, NULL);
        uint64_t begin = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        for (int i = 0; i < MULTIPLICATIONS; i++)
            square(number);
        /* What nobody looks at, the compiler leaves out. */
        __asm__ volatile("" : : "r"(number) : "memory");
        spent_ns += clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
        pieces++;
    }
}

int main(int argc, char **argv)
{
    cpu_set_t cpus;
    if (argc > 1) {
        CPU_ZERO(&cpus);
        CPU_SET(parse_count(argv[1], "CPU"), &cpus);
    } else if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) {
        die("yardstick: its CPUs: %s", strerror(errno));
    }
    for (uintptr_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        pthread_t thread;
        if (CPU_ISSET(cpu, &cpus) && pthread_create(&thread, NULL, measure, (void *)cpu) != 0)
            die("yardstick: cannot start a thread");
    }
    fprintf(stderr, "yardstick: ready\n");
    for (;;) {
        struct timespec pause = { .tv_nsec = 20000000 };
        nanosleep(&pause, NULL);
        fprintf(stderr, "progress: %llu %llu %llu\n", (unsigned long long)pieces,
                (unsigned long long)now_ns(), (unsigned long long)spent_ns);
    }
}
