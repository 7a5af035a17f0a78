/* hot: functions that do nothing, called as fast or as often as wanted, to tell what a probe costs.
 *
 * `hot FUNCTION CALLS` calls one of the functions below, and tells how long that took, and where in its
 * file the function is.
 * Options: --batches N (all of this N times, with --wait each after a word of its own), --threads N (each makes CALLS calls; they are there before the word to start), --rate HZ
 * (calls a second, of all threads together), --mappings N (so many further mappings of the program's own
 * file), --wait and --wait-end as in signloop. */
#define _GNU_SOURCE
#include "workload.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#define MAX_THREADS 4096

/* Each begins in a way of its own: the first instruction decides what a probe on it costs. */
#define FUNCTION(name, body) \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n.p2align 4\n" #name ":\n" body \
            "\n.size " #name ", .-" #name "\n"); \
    void name(uint64_t);
FUNCTION(site_nop, "nop\nret")
FUNCTION(site_push, "push %rbp\nmov %rsp, %rbp\npop %rbp\nret")
FUNCTION(site_endbr_push, "endbr64\npush %rbp\nmov %rsp, %rbp\npop %rbp\nret")
FUNCTION(site_mov_je, "mov %rdi, %rax\ntest %rax, %rax\nje 1f\nnop\n1: ret")
FUNCTION(site_sub_rsp, "sub $24, %rsp\nmov %rdi, (%rsp)\nadd $24, %rsp\nret")

static const struct {
    const char *name;
    void (*call)(uint64_t);
} functions[] = {
    { "site_nop", site_nop },
    { "site_push", site_push },
    { "site_endbr_push", site_endbr_push },
    { "site_mov_je", site_mov_je },
    { "site_sub_rsp", site_sub_rsp },
};

static void (*function)(uint64_t);
static uint64_t calls, rate_of_thread;

static pthread_barrier_t start;

static void *work(void *unused)
{
    pthread_barrier_wait(&start);
    uint64_t begin = now_ns();
    for (uint64_t done = 0; done < calls;) {
        uint64_t due = calls;
        if (rate_of_thread != 0) {
            /* In nanoseconds up to some months. */
            due = (uint64_t)((double)(now_ns() - begin) / 1e9 * (double)rate_of_thread);
            if (due > calls)
                due = calls;
        }
        for (; done < due; done++)
            function(done);
        if (rate_of_thread != 0 && done < calls) {
            struct timespec pause = { .tv_nsec = 500000 };
            nanosleep(&pause, NULL);
        }
    }
    return unused;
}

/* Each apart from the last by a page, so that the kernel does not make them one. */
static void map_own_file(unsigned long count)
{
    long page = sysconf(_SC_PAGESIZE);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    char *room = mmap(NULL, 2 * count * (size_t)page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (file < 0 || room == MAP_FAILED)
        die("mapping: %s", strerror(errno));
    for (unsigned long i = 0; i < count; i++)
        if (mmap(room + 2 * i * (size_t)page, (size_t)page, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED,
                 file, 0)
            == MAP_FAILED)
            die("mapping %lu: %s", i, strerror(errno));
    close(file);
}

/* Where the function is in the program's file. */
static unsigned long file_offset(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long start, end, offset, address = (unsigned long)function;
    char line[4096];
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        if (sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3 && start <= address
            && address < end) {
            fclose(maps);
            return address - start + offset;
        }
    die("/proc/self/maps does not hold the function");
}

/* Makes the calls, and prints how long they took. */
static void call_all(unsigned long threads, int wait)
{
    pthread_t others[MAX_THREADS];
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (unsigned long i = 1; i < threads; i++)
        if (pthread_create(&others[i], NULL, work, NULL) != 0)
            die("a thread cannot be started");
    if (wait)
        wait_for_line("hot: ready");
    uint64_t begin = now_ns();
    work(NULL);
    for (unsigned long i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
    uint64_t elapsed_ns = now_ns() - begin;
    pthread_barrier_destroy(&start);
    printf("{\"schema\":\"hot/1\",\"pid\":%d,\"offset\":%lu,\"calls\":%llu,\"elapsed_ns\":%llu}\n",
           (int)getpid(), file_offset(), (unsigned long long)(calls * threads),
           (unsigned long long)elapsed_ns);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        die("Usage: hot FUNCTION CALLS [--batches N] [--threads N] [--rate HZ] [--mappings N] "
            "[--wait] [--wait-end]");
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, argv[1]) == 0)
            function = functions[i].call;
    if (function == NULL)
        die("no function %s", argv[1]);
    calls = parse_count(argv[2], "CALLS");
    unsigned long batches = 1, threads = 1, rate = 0, mappings = 0;
    int wait = 0, wait_end = 0;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--wait") == 0)
            wait = 1;
        else if (strcmp(argv[i], "--wait-end") == 0)
            wait_end = 1;
        else if (strcmp(argv[i], "--batches") == 0 && i + 1 < argc)
            batches = parse_count(argv[++i], "--batches");
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            threads = parse_count(argv[++i], "--threads");
        else if (strcmp(argv[i], "--mappings") == 0 && i + 1 < argc)
            mappings = parse_count(argv[++i], "--mappings");
        else if (strcmp(argv[i], "--rate") == 0 && i + 1 < argc)
            rate = parse_count(argv[++i], "--rate");
        else
            die("unexpected argument '%s'", argv[i]);
    }
    if (threads == 0 || threads > MAX_THREADS)
        die("--threads: 1 to %d", MAX_THREADS);
    rate_of_thread = rate / threads;
    if (rate != 0 && rate_of_thread == 0)
        die("--rate: less than one a second and thread");
    if (mappings != 0)
        map_own_file(mappings);
    for (unsigned long batch = 0; batch < batches; batch++)
        call_all(threads, wait);
    if (wait_end)
        wait_for_line("hot: done");
    return 0;
}
