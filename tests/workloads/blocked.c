/* blocked: threads that block in ways that are hard to unwind, each under a name of its own.
 *
 * `blocked [MAPPINGS [UNKNOWN]]` maps its own code MAPPINGS times more, UNKNOWN of them without a file. After the
 * first word its threads block; after the second they go on, and the program ends. Compiled without
 * frame pointers. */
#define _GNU_SOURCE
#include "workload.h"

#include <alloca.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define EXPORT __attribute__((noinline, visibility("default")))

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;
static int pipe_fds[2];
static atomic_int blocked;

/* Keeps a call from being the last thing its caller does, which would make it a jump. */
#define AFTER_CALL() __asm__ volatile("" ::: "memory")

EXPORT void take_mutex(void)
{
    blocked++;
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    AFTER_CALL();
}

EXPORT void wait_for_condition(void)
{
    blocked++;
    pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&own);
    pthread_cond_wait(&condition, &own);
    pthread_mutex_unlock(&own);
}

EXPORT void wait_for_semaphore(void)
{
    blocked++;
    while (sem_wait(&semaphore) != 0)
        ;
    AFTER_CALL();
}

EXPORT void read_pipe(void)
{
    char byte;
    blocked++;
    while (read(pipe_fds[0], &byte, 1) < 0 && errno == EINTR)
        ;
    AFTER_CALL();
}

/* A frame whose size is known at run time only: rbp is its base. */
EXPORT void in_variable_frame(unsigned long bytes)
{
    char *buffer = alloca(bytes);
    memset(buffer, 1, bytes);
    __asm__ volatile("" ::"r"(buffer) : "memory");
    read_pipe();
    __asm__ volatile("" ::"r"(buffer) : "memory");
}

/* A frame that is aligned anew: the caller's is found through a saved pointer. */
EXPORT void in_aligned_frame(void)
{
    char buffer[256] __attribute__((aligned(64)));
    memset(buffer, 1, sizeof buffer);
    __asm__ volatile("" ::"r"(buffer) : "memory");
    wait_for_semaphore();
    __asm__ volatile("" ::"r"(buffer) : "memory");
}

static int compare(const void *left, const void *right)
{
    static _Thread_local int once;
    if (once++ == 0)
        take_mutex();
    return *(const int *)left - *(const int *)right;
}

EXPORT void in_libc_callback(void)
{
    int numbers[] = { 3, 1, 2 };
    qsort(numbers, 3, sizeof *numbers, compare);
    AFTER_CALL();
}

static void handler(int signal)
{
    (void)signal;
    read_pipe();
}

EXPORT void in_signal_handler(void)
{
    signal(SIGUSR1, handler);
    pthread_kill(pthread_self(), SIGUSR1);
    AFTER_CALL();
}

/* Many frames with nothing in them, and every register that a function must save in use. */
EXPORT unsigned long deep(unsigned long depth)
{
    if (depth == 0) {
        wait_for_condition();
        return 1;
    }
    unsigned long a = deep(depth - 1), b = a * depth, c = b ^ a, d = c + depth;
    __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
    return a + b + c + d;
}

/* A callback of a library that is loaded only now, through its code. */
typedef void *(*constructor)(void *hash, void *compare);
typedef void *(*inserter)(void *table, void *data);
typedef void (*visitor)(void *table, void (*visit)(void *data));

static unsigned long hash(const void *data)
{
    return *(const unsigned char *)data;
}

static void visit(void *data)
{
    (void)data;
    take_mutex();
}

static visitor doall;
static void *table;

EXPORT void in_late_library(void)
{
    doall(table, visit);
    AFTER_CALL();
}

static void load_late(void)
{
    void *library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        die("%s", dlerror());
    constructor make = (constructor)dlsym(library, "OPENSSL_LH_new");
    inserter insert = (inserter)dlsym(library, "OPENSSL_LH_insert");
    doall = (visitor)dlsym(library, "OPENSSL_LH_doall");
    if (make == NULL || insert == NULL || doall == NULL)
        die("no OPENSSL_LH_doall");
    table = make((void *)hash, (void *)strcmp);
    insert(table, "x");
    /* The tracer looks for new libraries four times a second. */
    sleep(1);
}

struct way {
    const char *name;
    void (*block)(void);
};

static void variable(void) { in_variable_frame(1000 + (unsigned long)getpid() % 100); AFTER_CALL(); }
static void recursive(void) { deep(60); AFTER_CALL(); }

static const struct way ways[] = {
    { "mutex", take_mutex },        { "condition", wait_for_condition },
    { "pipe", read_pipe },          { "variable", variable },
    { "aligned", in_aligned_frame }, { "callback", in_libc_callback },
    { "signal", in_signal_handler }, { "deep", recursive },
    { "late", in_late_library },
};
#define WAYS (sizeof ways / sizeof *ways)

static void *run(void *argument)
{
    const struct way *way = argument;
    prctl(PR_SET_NAME, way->name);
    way->block();
    /* Until the tracer has asked for the thread's name. */
    usleep(300000);
    return NULL;
}

/* Maps the page that this function is in, again and again; and pages of no file. Each stands alone. */
static void map_more(unsigned long files, unsigned long unknown)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], path[256] = "";
    unsigned long start = 0, end = 0, offset = 0, here = (unsigned long)map_more;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %255s", &start, &end, &offset, path) == 4
            && here >= start && here < end)
            break;
    int fd = open(path, O_RDONLY);
    for (unsigned long i = 0; i < files + unknown; i++) {
        char *place = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        int flags = MAP_PRIVATE | MAP_FIXED | (i < files ? 0 : MAP_ANONYMOUS);
        if (place == MAP_FAILED
            || mmap(place, 4096, PROT_READ | PROT_EXEC, flags, i < files ? fd : -1,
                    i < files ? (off_t)offset : 0) == MAP_FAILED)
            die("mmap: %s", strerror(errno));
    }
    fclose(maps);
    close(fd);
}

/* For a probe: the tracer wants one. */
EXPORT void finish(void)
{
    printf("{\"schema\":\"blocked/1\",\"threads\":%zu}\n", WAYS);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    pthread_t threads[WAYS];
    sem_init(&semaphore, 0, 0);
    if (pipe(pipe_fds) != 0)
        die("pipe: %s", strerror(errno));
    map_more(argc > 1 ? parse_count(argv[1], "MAPPINGS") : 0,
             argc > 2 ? parse_count(argv[2], "UNKNOWN") : 0);
    wait_for_line("blocked: ready");
    load_late();
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < WAYS; i++)
        if (pthread_create(&threads[i], NULL, run, (void *)&ways[i]) != 0)
            die("pthread_create failed");
    while (blocked < (int)WAYS)
        usleep(1000);
    usleep(100000);
    wait_for_line("blocked: blocked");
    pthread_mutex_unlock(&mutex);
    pthread_cond_broadcast(&condition);
    for (size_t i = 0; i < WAYS; i++) {
        sem_post(&semaphore);
        if (write(pipe_fds[1], "x", 1) != 1)
            die("pipe: %s", strerror(errno));
    }
    for (size_t i = 0; i < WAYS; i++)
        pthread_join(threads[i], NULL);
    finish();
    wait_for_line("blocked: done");
    return 0;
}
