/* keysvc: a small key service, and the ground truth for the tracer.
 *
 * Threads serve requests. A request looks up its key under the key store's lock, signs a message
 * and verifies the signature. Each thread times itself, with CLOCK_MONOTONIC, around exactly the
 * EVP_DigestSign and EVP_DigestVerify calls, and keeps every sample: the percentiles printed at
 * the end are exact (nearest rank), with nothing estimated and nothing dropped.
 *
 * Messages go to stderr, the result goes to stdout as one JSON object. */
#define WORKLOAD_OPENSSL
#include "samples.h"
#include "workload.h"

#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <time.h>

#define MESSAGE_BYTES 256
#define MAX_SIGNATURE_BYTES 512
#define MAX_THREADS 1024

enum algorithm { RSA_2048, ECDSA_P256, ED25519, ALGORITHMS };
enum operation { SIGN, VERIFY, OPERATIONS };

static const char *const algorithm_names[ALGORITHMS] = { "rsa-2048", "ecdsa-p256", "ed25519" };
static const char *const operation_names[OPERATIONS] = { "sign", "verify" };

struct key {
    const char *name;
    EVP_PKEY *pkey;
    const EVP_MD *digest; /* NULL for Ed25519, which hashes by itself */
    /* A good signature of another message: what a forger would send. */
    unsigned char forged[MAX_SIGNATURE_BYTES];
    size_t forged_bytes;
};

struct worker {
    pthread_t thread;
    unsigned index;
    EVP_MD_CTX *context;
    struct samples samples[ALGORITHMS][OPERATIONS];
    struct samples requests;
    uint64_t size_queries[ALGORITHMS];
    uint64_t failures[ALGORITHMS];
    uint64_t verifies;
    uint64_t contended;
    uint64_t lock_wait_total_ns;
    uint64_t lock_wait_max_ns;
};

static struct {
    unsigned threads;
    unsigned first_algorithm, algorithms;
    uint64_t seconds; /* 0: until the count or a signal */
    uint64_t count;   /* requests per thread; 0: until the time or a signal */
    uint64_t rate;    /* requests per second and thread; 0: as fast as it goes */
    uint64_t hold_ns;
    uint64_t audit_ns; /* how long the audit log is written, under the lock; 0: there is none */
    uint64_t tamper;
    uint64_t progress_ms; /* how often the number of requests so far is told; 0: never */
    bool size_queries, wait_start, wait_end;
} options = { .threads = 4, .first_algorithm = 0, .algorithms = ALGORITHMS };

/* Not static: the tracer's report names the lock by this symbol. */
pthread_mutex_t g_keystore_lock = PTHREAD_MUTEX_INITIALIZER;

static struct key keystore[ALGORITHMS];
static unsigned char message[MESSAGE_BYTES];
static atomic_bool stop;
static atomic_uint running;
static int done_fd;

/* Finds the key of that name. The lock is tried first, so that only true waits are timed. */
static const struct key *look_up(struct worker *worker, const char *name)
{
    if (pthread_mutex_trylock(&g_keystore_lock) != 0) {
        uint64_t begin = now_ns();
        pthread_mutex_lock(&g_keystore_lock);
        uint64_t waited = now_ns() - begin;
        worker->contended++;
        worker->lock_wait_total_ns += waited;
        if (waited > worker->lock_wait_max_ns)
            worker->lock_wait_max_ns = waited;
    }
    const struct key *found = NULL;
    for (unsigned i = 0; i < ALGORITHMS && found == NULL; i++)
        if (keystore[i].name != NULL && strcmp(keystore[i].name, name) == 0)
            found = &keystore[i];
    if (options.hold_ns != 0)
        for (uint64_t until = now_ns() + options.hold_ns; now_ns() < until;)
            ; /* stands for work that does not belong under a lock */
    pthread_mutex_unlock(&g_keystore_lock);
    if (found == NULL)
        die("no key named %s", name);
    return found;
}

static atomic_int auditor_tid;
static uint64_t audits, audit_total_ns;

/* Writes the audit log, which takes its time, and holds the key store's lock meanwhile: a fault
 * that is often made. A function of its own, and exported, to be seen in stacks. */
__attribute__((noinline, visibility("default"))) void audit_log_write(void)
{
    struct timespec written = { .tv_sec = (time_t)(options.audit_ns / NS_PER_SECOND),
                                .tv_nsec = (long)(options.audit_ns % NS_PER_SECOND) };
    pthread_mutex_lock(&g_keystore_lock);
    uint64_t begin = now_ns();
    nanosleep(&written, NULL);
    audit_total_ns += now_ns() - begin;
    audits++;
    pthread_mutex_unlock(&g_keystore_lock);
}

/* The auditor writes for a fifth of the time. */
static void *audit(void *argument)
{
    (void)argument;
    auditor_tid = (int)syscall(SYS_gettid);
    uint64_t pause_ns = 4 * options.audit_ns;
    struct timespec pause = { .tv_sec = (time_t)(pause_ns / NS_PER_SECOND),
                              .tv_nsec = (long)(pause_ns % NS_PER_SECOND) };
    while (!stop) {
        nanosleep(&pause, NULL);
        audit_log_write();
    }
    return NULL;
}

static void sign(struct worker *worker, const struct key *key, enum algorithm algorithm,
                 unsigned char *signature, size_t *signature_bytes)
{
    EVP_MD_CTX_reset(worker->context);
    check_ssl(EVP_DigestSignInit(worker->context, NULL, key->digest, NULL, key->pkey) == 1,
              "EVP_DigestSignInit");
    if (options.size_queries) {
        size_t needed = 0;
        check_ssl(EVP_DigestSign(worker->context, NULL, &needed, message, MESSAGE_BYTES) == 1
                      && needed <= MAX_SIGNATURE_BYTES,
                  "asking for the signature's size");
        worker->size_queries[algorithm]++;
    }
    *signature_bytes = MAX_SIGNATURE_BYTES;
    uint64_t begin = now_ns();
    int result = EVP_DigestSign(worker->context, signature, signature_bytes, message,
                                MESSAGE_BYTES);
    uint64_t end = now_ns();
    check_ssl(result == 1, "EVP_DigestSign");
    push(&worker->samples[algorithm][SIGN], end - begin);
}

static void verify(struct worker *worker, const struct key *key, enum algorithm algorithm,
                   const unsigned char *signature, size_t signature_bytes)
{
    bool forged = options.tamper != 0 && ++worker->verifies % options.tamper == 0;
    if (forged) {
        signature = key->forged;
        signature_bytes = key->forged_bytes;
    }
    EVP_MD_CTX_reset(worker->context);
    check_ssl(EVP_DigestVerifyInit(worker->context, NULL, key->digest, NULL, key->pkey) == 1,
              "EVP_DigestVerifyInit");
    uint64_t begin = now_ns();
    int result = EVP_DigestVerify(worker->context, signature, signature_bytes, message,
                                  MESSAGE_BYTES);
    uint64_t end = now_ns();
    check_ssl(result == (forged ? 0 : 1), "EVP_DigestVerify");
    ERR_clear_error();
    push(&worker->samples[algorithm][VERIFY], end - begin);
    worker->failures[algorithm] += forged;
}

/* One request. A function of its own, and exported, to be probed and to be seen in stacks. */
__attribute__((noinline, visibility("default"))) void handle_request(struct worker *worker,
                                                                     unsigned algorithm)
{
    unsigned char signature[MAX_SIGNATURE_BYTES];
    size_t signature_bytes;
    uint64_t begin = now_ns();
    const struct key *key = look_up(worker, algorithm_names[algorithm]);
    sign(worker, key, algorithm, signature, &signature_bytes);
    verify(worker, key, algorithm, signature, signature_bytes);
    push(&worker->requests, now_ns() - begin);
}

/* Sleeps until the next request is due; what came late is not made up for by a burst. */
static void pace(uint64_t *due)
{
    uint64_t period = NS_PER_SECOND / options.rate;
    uint64_t now = now_ns();
    *due += period;
    if (*due + period < now)
        *due = now;
    struct timespec until = { .tv_sec = (time_t)(*due / NS_PER_SECOND),
                              .tv_nsec = (long)(*due % NS_PER_SECOND) };
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static void *serve(void *argument)
{
    struct worker *worker = argument;
    uint64_t due = now_ns();
    if (options.rate != 0) /* spread the threads over the period */
        due += NS_PER_SECOND / options.rate * worker->index / options.threads;
    for (uint64_t n = 0; !stop && (options.count == 0 || n < options.count); n++) {
        if (options.rate != 0)
            pace(&due);
        handle_request(worker, options.first_algorithm + (unsigned)(n % options.algorithms));
    }
    if (atomic_fetch_sub(&running, 1) == 1)
        eventfd_write(done_fd, 1);
    return NULL;
}

static void make_keys(void)
{
    static const unsigned char other[] = "another message";
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    memset(message, 'm', sizeof message);
    for (unsigned i = 0; i < options.algorithms; i++) {
        unsigned algorithm = options.first_algorithm + i;
        struct key *key = &keystore[algorithm];
        key->name = algorithm_names[algorithm];
        key->digest = algorithm == ED25519 ? NULL : EVP_sha256();
        key->pkey = algorithm == RSA_2048     ? make_rsa(2048)
                    : algorithm == ECDSA_P256 ? make_ec("P-256")
                                              : make_ed25519();
        key->forged_bytes = sizeof key->forged;
        EVP_MD_CTX_reset(context);
        check_ssl(EVP_DigestSignInit(context, NULL, key->digest, NULL, key->pkey) == 1
                      && EVP_DigestSign(context, key->forged, &key->forged_bytes, other,
                                        sizeof other)
                             == 1,
                  "signing another message");
    }
    EVP_MD_CTX_free(context);
}

/* Waits for a signal, for any of `fd` (-1: none), or `timeout_ms` (-1: for ever). Returns the
 * signal's number, 0 for the descriptor, -1 for the timeout. */
static int wait_for(int signal_fd, int fd, int timeout_ms)
{
    struct pollfd polled[2] = { { .fd = signal_fd, .events = POLLIN },
                                { .fd = fd, .events = POLLIN } };
    int ready;
    do
        ready = poll(polled, 2, timeout_ms);
    while (ready < 0 && errno == EINTR);
    if (ready == 0)
        return -1;
    if (polled[0].revents != 0) {
        struct signalfd_siginfo info;
        if (read(signal_fd, &info, sizeof info) != sizeof info)
            die("signalfd: %s", strerror(errno));
        return (int)info.ssi_signo;
    }
    return 0;
}

/* Waits for a line on stdin or SIGUSR1; after the end of stdin, for the signal alone. Returns
 * whether to go on: SIGTERM and SIGINT end the service. */
static bool wait_for_word(int signal_fd)
{
    int input = STDIN_FILENO;
    for (;;) {
        int event = wait_for(signal_fd, input, -1);
        if (event == SIGUSR1)
            return true;
        if (event != 0)
            return false;
        char byte;
        ssize_t got = read(STDIN_FILENO, &byte, 1);
        if (got <= 0)
            input = -1;
        else if (byte == '\n')
            return true;
    }
}

/* CPU time of all threads so far. */
static uint64_t cpu_so_far_ns(void)
{
    return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

/* Context switches of all threads so far, as the kernel counts them: voluntary, involuntary. */
static struct rusage switches_so_far(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage;
}

/* Tells how many requests there were so far, when that was, and the CPU time so far, on stderr. */
static void *tell_progress(void *argument)
{
    const struct worker *workers = argument;
    struct timespec pause = { .tv_sec = (time_t)(options.progress_ms / 1000),
                              .tv_nsec = (long)(options.progress_ms % 1000 * 1000000) };
    while (!stop) {
        nanosleep(&pause, NULL);
        size_t requests = 0;
        for (unsigned t = 0; t < options.threads; t++)
            requests += __atomic_load_n(&workers[t].requests.count, __ATOMIC_RELAXED);
        fprintf(stderr, "progress: %zu %llu %llu\n", requests, (unsigned long long)now_ns(),
                (unsigned long long)cpu_so_far_ns());
    }
    return NULL;
}

static void print_result(struct worker *workers, uint64_t elapsed_ns, uint64_t cpu_ns, long voluntary,
                         long involuntary)
{
    /* Everything goes to the first worker's records, which are then the service's. */
    struct worker *all = &workers[0];
    for (unsigned t = 1; t < options.threads; t++) {
        struct worker *worker = &workers[t];
        for (unsigned a = 0; a < ALGORITHMS; a++) {
            all->size_queries[a] += worker->size_queries[a];
            all->failures[a] += worker->failures[a];
            for (unsigned o = 0; o < OPERATIONS; o++)
                merge(&all->samples[a][o], &worker->samples[a][o]);
        }
        merge(&all->requests, &worker->requests);
        all->contended += worker->contended;
        all->lock_wait_total_ns += worker->lock_wait_total_ns;
        if (worker->lock_wait_max_ns > all->lock_wait_max_ns)
            all->lock_wait_max_ns = worker->lock_wait_max_ns;
    }
    uint64_t operations = 0, failures = 0, size_queries = 0;
    printf("{\"schema\":\"keysvc/1\",\"pid\":%d,\"threads\":%u,\"elapsed_ns\":%llu,\"operations\":[",
           (int)getpid(), options.threads, (unsigned long long)elapsed_ns);
    const char *separator = "";
    for (unsigned a = 0; a < ALGORITHMS; a++)
        for (unsigned o = 0; o < OPERATIONS; o++) {
            struct samples *samples = &all->samples[a][o];
            if (samples->count == 0)
                continue;
            uint64_t failed = o == VERIFY ? all->failures[a] : 0;
            uint64_t asked = o == SIGN ? all->size_queries[a] : 0;
            printf("%s{\"operation\":\"%s\",\"algorithm\":\"%s\",\"count\":%zu,\"failures\":%llu,"
                   "\"size_queries\":%llu,",
                   separator, operation_names[o], algorithm_names[a], samples->count,
                   (unsigned long long)failed, (unsigned long long)asked);
            print_latency(samples);
            printf("}");
            separator = ",";
            operations += samples->count;
            failures += failed;
            size_queries += asked;
        }
    printf("],\"totals\":{\"operations\":%llu,\"failures\":%llu,\"size_queries\":%llu}",
           (unsigned long long)operations, (unsigned long long)failures,
           (unsigned long long)size_queries);
    printf(",\"lock\":{\"acquisitions\":%zu,\"contended\":%llu,\"wait_total_ns\":%llu,"
           "\"wait_max_ns\":%llu}",
           all->requests.count, (unsigned long long)all->contended,
           (unsigned long long)all->lock_wait_total_ns, (unsigned long long)all->lock_wait_max_ns);
    printf(",\"cpu_ns\":%llu", (unsigned long long)cpu_ns);
    printf(",\"switches\":{\"voluntary\":%ld,\"involuntary\":%ld}", voluntary, involuntary);
    printf(",\"auditor\":{\"tid\":%d,\"writes\":%llu,\"held_ns\":%llu}", auditor_tid,
           (unsigned long long)audits, (unsigned long long)audit_total_ns);
    printf(",\"requests\":{\"count\":%zu", all->requests.count);
    if (all->requests.count != 0) {
        printf(",");
        print_latency(&all->requests);
    }
    printf("}}\n");
    if (fflush(stdout) != 0)
        die("stdout: %s", strerror(errno));
}

static void usage(FILE *stream)
{
    fputs("Usage: keysvc [OPTION]...\n"
          "A key service that signs and verifies with OpenSSL and times itself.\n\n"
          "  --threads N        serve from N threads (default 4)\n"
          "  --algorithm NAME   rsa-2048, ecdsa-p256, ed25519 or all, in turn (default all)\n"
          "  --seconds S        end after S seconds\n"
          "  --count N          end after N requests per thread\n"
          "  --rate OPS         start OPS requests a second per thread (default: no pause)\n"
          "  --hold-us N        hold the key store's lock N microseconds per request (default 0)\n"
          "  --audit-ms N       have a thread that writes an audit log: it holds the lock for N ms,\n"
          "                     and then pauses four times as long\n"
          "  --tamper N         give every Nth verification of a thread a wrong signature\n"
          "  --size-queries     ask for the signature's size before each signing\n"
          "  --progress MS      tell on stderr every MS milliseconds: requests so far, the clock and\n"
          "                     the CPU time in ns\n"
          "  --wait-start       begin only after a line on stdin or SIGUSR1\n"
          "  --wait-end         after the result, stay until a line on stdin or a signal\n"
          "  --help             print this\n\n"
          "SIGTERM and SIGINT end the service; the result is printed on stdout as JSON.\n"
          "'keysvc: ready' on stderr says that the keys are made.\n",
          stream);
}

static void parse_options(int argc, char **argv)
{
    enum { THREADS = 256, ALGORITHM, SECONDS, COUNT, RATE, HOLD, AUDIT, TAMPER, SIZE, PROGRESS,
           START, END, HELP };
    static const struct option table[] = {
        { "threads", required_argument, NULL, THREADS },
        { "algorithm", required_argument, NULL, ALGORITHM },
        { "seconds", required_argument, NULL, SECONDS },
        { "count", required_argument, NULL, COUNT },
        { "rate", required_argument, NULL, RATE },
        { "hold-us", required_argument, NULL, HOLD },
        { "audit-ms", required_argument, NULL, AUDIT },
        { "tamper", required_argument, NULL, TAMPER },
        { "size-queries", no_argument, NULL, SIZE },
        { "progress", required_argument, NULL, PROGRESS },
        { "wait-start", no_argument, NULL, START },
        { "wait-end", no_argument, NULL, END },
        { "help", no_argument, NULL, HELP },
        { NULL, 0, NULL, 0 },
    };
    int option;
    while ((option = getopt_long(argc, argv, "", table, NULL)) != -1) {
        switch (option) {
        case THREADS: options.threads = (unsigned)parse_count(optarg, "--threads"); break;
        case ALGORITHM:
            if (strcmp(optarg, "all") == 0)
                break;
            options.algorithms = 1;
            for (options.first_algorithm = 0; options.first_algorithm < ALGORITHMS;
                 options.first_algorithm++)
                if (strcmp(optarg, algorithm_names[options.first_algorithm]) == 0)
                    break;
            if (options.first_algorithm == ALGORITHMS)
                die("--algorithm: '%s' is none of rsa-2048, ecdsa-p256, ed25519, all", optarg);
            break;
        case SECONDS: options.seconds = parse_count(optarg, "--seconds"); break;
        case COUNT: options.count = parse_count(optarg, "--count"); break;
        case RATE: options.rate = parse_count(optarg, "--rate"); break;
        case HOLD: options.hold_ns = parse_count(optarg, "--hold-us") * 1000; break;
        case AUDIT: options.audit_ns = parse_count(optarg, "--audit-ms") * 1000000; break;
        case TAMPER: options.tamper = parse_count(optarg, "--tamper"); break;
        case SIZE: options.size_queries = true; break;
        case PROGRESS: options.progress_ms = parse_count(optarg, "--progress"); break;
        case START: options.wait_start = true; break;
        case END: options.wait_end = true; break;
        case HELP: usage(stdout); exit(0);
        default: usage(stderr); exit(2);
        }
    }
    if (optind != argc)
        die("unexpected argument '%s'; see --help", argv[optind]);
    if (options.threads == 0 || options.threads > MAX_THREADS)
        die("--threads: from 1 to %d", MAX_THREADS);
    if (options.rate > NS_PER_SECOND)
        die("--rate: at most %llu", (unsigned long long)NS_PER_SECOND);
    if (options.seconds > 86400)
        die("--seconds: at most 86400");
}

int main(int argc, char **argv)
{
    /* Signals are taken from a descriptor, by the main thread alone; the workers inherit the
     * mask and are never interrupted. */
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    parse_options(argc, argv);
    int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
    done_fd = eventfd(0, EFD_CLOEXEC);
    if (signal_fd < 0 || done_fd < 0)
        die("signalfd or eventfd: %s", strerror(errno));
    make_keys();
    struct worker *workers = calloc(options.threads, sizeof *workers);
    if (workers == NULL)
        die("out of memory");

    fprintf(stderr, "keysvc: ready, pid %d\n", (int)getpid());
    if (options.wait_start && !wait_for_word(signal_fd))
        stop = true;

    struct rusage before = switches_so_far();
    uint64_t cpu_before_ns = cpu_so_far_ns();
    uint64_t begin = now_ns();
    running = options.threads;
    for (unsigned t = 0; t < options.threads; t++) {
        workers[t].index = t;
        workers[t].context = EVP_MD_CTX_new();
        check_ssl(workers[t].context != NULL, "EVP_MD_CTX_new");
        if (pthread_create(&workers[t].thread, NULL, serve, &workers[t]) != 0)
            die("cannot start thread %u", t);
    }
    pthread_t auditor, progress;
    if (options.progress_ms != 0 && pthread_create(&progress, NULL, tell_progress, workers) != 0)
        die("cannot start the thread that tells the progress");
    if (options.audit_ns != 0 && pthread_create(&auditor, NULL, audit, NULL) != 0)
        die("cannot start the auditor");
    int timeout_ms = options.seconds ? (int)(options.seconds * 1000) : -1;
    while (wait_for(signal_fd, done_fd, timeout_ms) == SIGUSR1)
        ; /* a second word to start means nothing; the time then starts anew */
    stop = true;
    for (unsigned t = 0; t < options.threads; t++) {
        pthread_join(workers[t].thread, NULL);
        EVP_MD_CTX_free(workers[t].context);
    }
    if (options.audit_ns != 0)
        pthread_join(auditor, NULL);
    if (options.progress_ms != 0)
        pthread_join(progress, NULL);
    uint64_t elapsed_ns = now_ns() - begin;
    struct rusage after = switches_so_far();
    print_result(workers, elapsed_ns, cpu_so_far_ns() - cpu_before_ns, after.ru_nvcsw - before.ru_nvcsw,
                 after.ru_nivcsw - before.ru_nivcsw);
    if (options.wait_end)
        wait_for_word(signal_fd);

    for (unsigned a = 0; a < ALGORITHMS; a++) {
        EVP_PKEY_free(keystore[a].pkey);
        for (unsigned o = 0; o < OPERATIONS; o++)
            free(workers[0].samples[a][o].values);
    }
    free(workers[0].requests.values);
    free(workers);
    return 0;
}
