/* oncpu MODE CPU_MS: a request() that spends CPU_MS of CPU time in one planted way.
 *
 * Modes:
 *   pause    two threads and a lock that is spun on inside request(), without a function of its own;
 *            its holder sleeps, so that whoever is on the CPU spins
 *   spin     the same with pthread_spin_lock
 *   malloc   a storm of small allocations
 *   names    work in functions and threads with names that nothing should trip over
 *
 * --wait and --wait-end as in tiny. */
#include "workload.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <time.h>

#define BLOCKS 256

static pthread_spinlock_t spinlock;
static atomic_int word;
static atomic_ulong requests;
static unsigned long cpu_ms;
static const char *mode;
static _Thread_local void *volatile blocks[BLOCKS];
static volatile unsigned long sink;

static unsigned long used_ms(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (unsigned long)used.tv_sec * 1000 + (unsigned long)used.tv_nsec / 1000000;
}

static void sleep_us(long microseconds)
{
    struct timespec time = { .tv_nsec = microseconds * 1000 };
    nanosleep(&time, NULL);
}

/* Only a name: a semicolon, spaces, tags, a control byte, and a byte that is no UTF-8. */
__attribute__((noinline)) void awkward(void) __asm__("\"a;b <c> \001&\377 7\"");
void awkward(void)
{
    for (unsigned i = 0; i < 100000; i++)
        sink += i;
}

static void storm(void)
{
    for (unsigned i = 0; i < BLOCKS; i++)
        blocks[i] = malloc(16 + i * 37 % 4000);
    for (unsigned i = 0; i < BLOCKS; i++)
        free(blocks[(i * 7) % BLOCKS]);
}

__attribute__((noinline, visibility("default"))) void request(void)
{
    switch (mode[0]) {
    case 'p':
        while (atomic_exchange_explicit(&word, 1, memory_order_acquire))
            while (atomic_load_explicit(&word, memory_order_relaxed))
                __builtin_ia32_pause();
        sleep_us(1000);
        atomic_store_explicit(&word, 0, memory_order_release);
        break;
    case 's':
        pthread_spin_lock(&spinlock);
        sleep_us(1000);
        pthread_spin_unlock(&spinlock);
        break;
    case 'm':
        storm();
        break;
    default:
        awkward();
    }
    requests++; /* after the calls, so that none becomes a tail call */
}

static void *run(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, mode[0] == 'n' ? "<w;\001\377> \"&' 7" : mode);
    while (used_ms() < cpu_ms)
        request();
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        die("Usage: oncpu pause|spin|malloc|names CPU_MS [--wait] [--wait-end]");
    mode = argv[1];
    if (strcmp(mode, "pause") && strcmp(mode, "spin") && strcmp(mode, "malloc")
        && strcmp(mode, "names"))
        die("no mode '%s'", mode);
    unsigned long milliseconds = parse_count(argv[2], "CPU_MS");
    int wait_end = wait_options(argc, argv, 3, "oncpu: ready");
    cpu_ms = used_ms() + milliseconds;
    pthread_spin_init(&spinlock, PTHREAD_PROCESS_PRIVATE);
    pthread_t threads[2];
    for (unsigned i = 0; i < 2; i++) {
        int error = pthread_create(&threads[i], NULL, run, NULL);
        if (error)
            die("pthread_create: %s", strerror(error));
    }
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("{\"schema\":\"oncpu/1\",\"pid\":%d,\"requests\":%lu}\n", (int)getpid(), requests);
    fflush(stdout);
    if (wait_end)
        wait_for_line("oncpu: done");
    return 0;
}
