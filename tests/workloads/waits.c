/* waits MODE N FOLDER: threads that wait, in ways that are known, and time it themselves.
 *
 * Modes:
 *   parts    N requests (`handle`) that each sleep, read a slow pipe, and write and fsync a file
 *            in FOLDER
 *   pool     two threads that take a mutex N times each, beside eight that wait for work
 *   blocked  threads that wait since before the word to start, and on beyond the end
 *   quick    a thread for each CPU and one more, N calls of `outer` each, which calls `quick`
 *
 * Options as in signloop: --wait and --wait-end. */
#define _GNU_SOURCE
#include "workload.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define EXPORTED __attribute__((noinline, visibility("default")))
#define POOL 8

static unsigned long count;
static const char *folder;
static int waits_for_start, waits_for_end;

static void sleep_ns(uint64_t ns)
{
    struct timespec time = { .tv_sec = (time_t)(ns / NS_PER_SECOND),
                             .tv_nsec = (long)(ns % NS_PER_SECOND) };
    while (nanosleep(&time, &time) != 0)
        ;
}

static pthread_t start_thread_of(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, argument) != 0)
        die("cannot start a thread");
    return thread;
}

static void wait_for_start(void)
{
    if (waits_for_start)
        wait_for_line("waits: ready");
}

static void wait_for_end(void)
{
    fflush(stdout);
    if (waits_for_end)
        wait_for_line("waits: done");
}

/* parts */

static int asked[2], answered[2], file;
static uint64_t slept_ns, read_ns, synced_ns, requests_ns;

/* Each exported function waits in one way only, so that its waits are told by its stack. */
EXPORTED uint64_t part_sleep(void)
{
    uint64_t begin = now_ns();
    sleep_ns(2000000);
    return now_ns() - begin;
}

EXPORTED uint64_t part_pipe(void)
{
    char byte = 0;
    uint64_t begin = now_ns();
    if (write(asked[1], &byte, 1) != 1 || read(answered[0], &byte, 1) != 1)
        die("pipe: %s", strerror(errno));
    return now_ns() - begin;
}

EXPORTED uint64_t part_sync(void)
{
    static char block[65536];
    uint64_t begin = now_ns();
    if (pwrite(file, block, sizeof block, 0) != sizeof block || fsync(file) != 0)
        die("writing in %s: %s", folder, strerror(errno));
    return now_ns() - begin;
}

EXPORTED void handle(void)
{
    uint64_t begin = now_ns();
    slept_ns += part_sleep();
    read_ns += part_pipe();
    synced_ns += part_sync();
    requests_ns += now_ns() - begin;
}

/* The other end of the pipe takes its time. */
static void *answer_slowly(void *argument)
{
    char byte;
    (void)argument;
    while (read(asked[0], &byte, 1) == 1) {
        sleep_ns(3000000);
        if (write(answered[1], &byte, 1) != 1)
            break;
    }
    return NULL;
}

static void parts(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/waits.XXXXXX", folder);
    file = mkstemp(path);
    if (file < 0 || unlink(path) != 0 || pipe(asked) != 0 || pipe(answered) != 0)
        die("%s: %s", path, strerror(errno));
    start_thread_of(answer_slowly, NULL);
    wait_for_start();
    for (unsigned long i = 0; i < count; i++)
        handle();
    printf("{\"requests\":%lu,\"requests_ns\":%llu,\"slept_ns\":%llu,\"read_ns\":%llu,"
           "\"synced_ns\":%llu}\n",
           count, (unsigned long long)requests_ns, (unsigned long long)slept_ns,
           (unsigned long long)read_ns, (unsigned long long)synced_ns);
}

/* pool */

pthread_mutex_t g_work_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t g_pool_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t g_pool_ready = PTHREAD_COND_INITIALIZER;
static atomic_ullong waited_ns, contended;
static atomic_bool pool_ends;

/* Idle until the end, but woken now and then for nothing: so its waits do end. */
EXPORTED void *pool_run(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&g_pool_lock);
    while (!pool_ends)
        pthread_cond_wait(&g_pool_ready, &g_pool_lock);
    pthread_mutex_unlock(&g_pool_lock);
    return NULL;
}

/* Takes the lock; only true waits are timed, as only those go into the kernel. */
EXPORTED void take_lock(void)
{
    if (pthread_mutex_trylock(&g_work_lock) == 0)
        return;
    uint64_t begin = now_ns();
    pthread_mutex_lock(&g_work_lock);
    waited_ns += now_ns() - begin;
    contended++;
}

EXPORTED void *work_under_lock(void *argument)
{
    pthread_setname_np(pthread_self(), argument);
    for (unsigned long i = 0; i < count; i++) {
        take_lock();
        sleep_ns(1000000);
        pthread_mutex_unlock(&g_work_lock);
        sleep_ns(200000);
    }
    return NULL;
}

static void pool(void)
{
    pthread_t idle[POOL], workers[2];
    for (int i = 0; i < POOL; i++)
        idle[i] = start_thread_of(pool_run, NULL);
    wait_for_start();
    workers[0] = start_thread_of(work_under_lock, "worker-0");
    workers[1] = start_thread_of(work_under_lock, "worker-1");
    for (int i = 0; i < 5; i++) {
        sleep_ns(20000000);
        pthread_cond_broadcast(&g_pool_ready);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(workers[i], NULL);
    pthread_mutex_lock(&g_pool_lock);
    pool_ends = true;
    pthread_cond_broadcast(&g_pool_ready);
    pthread_mutex_unlock(&g_pool_lock);
    for (int i = 0; i < POOL; i++)
        pthread_join(idle[i], NULL);
    printf("{\"contended\":%llu,\"waited_ns\":%llu}\n", (unsigned long long)contended,
           (unsigned long long)waited_ns);
}

/* blocked */

pthread_mutex_t g_never = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t g_released = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t g_late = PTHREAD_MUTEX_INITIALIZER;

static void *take_and_give(void *lock)
{
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}

static void blocked(void)
{
    pthread_mutex_lock(&g_never);
    pthread_mutex_lock(&g_released);
    pthread_mutex_lock(&g_late);
    start_thread_of(take_and_give, &g_never);
    pthread_t released = start_thread_of(take_and_give, &g_released);
    sleep_ns(200000000); /* they block by then, or the test sees that they do not */
    wait_for_start();
    start_thread_of(take_and_give, &g_late);
    sleep_ns(200000000);
    pthread_mutex_unlock(&g_released);
    pthread_join(released, NULL);
    sleep_ns(200000000);
    printf("{\"pid\":%d}\n", (int)getpid());
    wait_for_end();
    exit(0);
}

/* quick */

EXPORTED void quick(void)
{
    __asm__ volatile("nop" ::: "memory");
}

EXPORTED void outer(void)
{
    quick();
    __asm__ volatile("nop" ::: "memory"); /* no tail call */
}

static void *call_outer(void *argument)
{
    (void)argument;
    for (unsigned long i = 0; i < count; i++)
        outer();
    return NULL;
}

static void quickly(void)
{
    long threads = sysconf(_SC_NPROCESSORS_ONLN) + 1;
    pthread_t *all = calloc((size_t)threads, sizeof *all);
    wait_for_start();
    for (long i = 0; i < threads; i++)
        all[i] = start_thread_of(call_outer, NULL);
    for (long i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    printf("{\"calls\":%lu}\n", count * (unsigned long)threads);
    free(all);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } modes[] = { { "parts", parts }, { "pool", pool }, { "blocked", blocked }, { "quick", quickly } };

    if (argc < 4)
        die("Usage: waits parts|pool|blocked|quick N FOLDER [--wait] [--wait-end]");
    count = parse_count(argv[2], "N");
    folder = argv[3];
    for (int i = 4; i < argc; i++) {
        if (strcmp(argv[i], "--wait") == 0)
            waits_for_start = 1;
        else if (strcmp(argv[i], "--wait-end") == 0)
            waits_for_end = 1;
        else
            die("unexpected argument '%s'", argv[i]);
    }
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].run();
            wait_for_end();
            return 0;
        }
    }
    die("no mode '%s'", argv[1]);
}
