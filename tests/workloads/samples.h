/* Samples kept whole, and exact percentiles of them. */
#ifndef SAMPLES_H
#define SAMPLES_H

#include "workload.h"

#include <stdint.h>

/* Every duration of one kind, in nanoseconds. */
struct samples {
    uint64_t *values;
    size_t count;
    size_t capacity;
};

static void push(struct samples *samples, uint64_t value)
{
    if (samples->count == samples->capacity) {
        samples->capacity = samples->capacity ? samples->capacity * 2 : 4096;
        samples->values = realloc(samples->values, samples->capacity * sizeof(uint64_t));
        if (samples->values == NULL)
            die("out of memory");
    }
    samples->values[samples->count++] = value;
}

static int compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* The smallest sample that at least `per_mille` of 1000 samples do not exceed. */
static uint64_t nearest_rank(const struct samples *sorted, uint64_t per_mille)
{
    size_t rank = (sorted->count * per_mille + 999) / 1000;
    return sorted->values[rank == 0 ? 0 : rank - 1];
}

static void print_latency(struct samples *samples)
{
    unsigned __int128 sum = 0;
    qsort(samples->values, samples->count, sizeof(uint64_t), compare);
    for (size_t i = 0; i < samples->count; i++)
        sum += samples->values[i];
    printf("\"mean_ns\":%llu", (unsigned long long)(sum / samples->count));
    static const struct {
        const char *name;
        uint64_t per_mille;
    } ranks[] = { { "p50", 500 }, { "p90", 900 }, { "p99", 990 }, { "p999", 999 }, { "max", 1000 } };
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        printf(",\"%s_ns\":%llu", ranks[i].name,
               (unsigned long long)nearest_rank(samples, ranks[i].per_mille));
}

/* Moves the samples of `from` to the end of `to`. */
static void merge(struct samples *to, struct samples *from)
{
    for (size_t i = 0; i < from->count; i++)
        push(to, from->values[i]);
    free(from->values);
    memset(from, 0, sizeof *from);
}

#endif
